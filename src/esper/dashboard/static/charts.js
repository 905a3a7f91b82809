/** Charts over rounds: a title, a legend with numbers, the drawing, and the numbers as a table. */

import { classes, html, useEffect, useMemo, useRef, useState } from "./html.js";
import { AlignedData, seriesSummary, stacked, trailingMean } from "./chart_data.js";
import { saveCsv, savePng } from "./chart_files.js";
import { useRange, useSmoothing } from "./chart_group.js";
import { Plot } from "./chart_plot.js";
import { seriesColour, seriesDash } from "./colours.js";
import { Dialog } from "./components/dialog.js";
import { compact } from "./format.js";
import { useOneTabStop } from "./keys.js";
import { useTheme } from "./theme.js";

const MAX_ROWS = 200;
const HEIGHT = 206;

/**
 * Draws series over rounds.
 *
 * series: [{ label, rounds, values }] or [{ label, constant }]; with isPoints, scale ("second" for an axis of its
 * own), colour and dash. unit is the title of the axis, secondUnit that of the second one, xTitle what is counted
 * across. version changes when the arrays have grown. The number of series is fixed by key. allSeries, if given,
 * promises the same series with the points of all rounds, where those drawn lack some.
 */
export function Chart({ name, title, note, series, version, group, height = HEIGHT, format = compact, xTitle = "round", isLarge = false, allSeries = null, ...look }) {
  const theme = useTheme();
  const smoothing = useSmoothing(group);
  const averaged = look.isStacked ? 1 : smoothing;
  const box = useRef(null);
  const tip = useRef(null);
  const values = useRef([]);
  const [hidden, setHidden] = useState(new Set());
  const [isOpen, setOpen] = useState(false);
  const data = useMemo(() => new AlignedData(series.length), [series.length]);
  const plot = useRef(null);
  const current = useRef(null);
  current.current = { series, data, format, xTitle, hidden, averaged, columns: current.current?.columns ?? data.columns };

  useEffect(() => {
    const onCursor = (index, left) => {
      showValues(values.current, current.current, index);
      showTip(tip.current, box.current, current.current, index, left);
    };
    plot.current = new Plot(box.current, { series, group, height, onCursor, xTitle, ...look });
    return () => plot.current.destroy();
  }, [series.length, group]);
  useEffect(() => {
    data.update(series);
    const drawn = averaged > 1 ? data.columns.map((one, k) => smoothed(series[k], data.rounds, one, averaged)) : data.columns;
    current.current.columns = drawn;
    const lines = look.isStacked ? stacked(data.columns, hidden) : drawn;
    plot.current.setData([data.rounds, ...lines, ...data.columns]);
    plot.current.showRaw(averaged > 1);
    showValues(values.current, current.current, plot.current.cursorRow());
  }, [data, version, group, averaged, look.isStacked && hidden]);
  useEffect(() => plot.current.recolour(), [theme]);

  const toggle = (k) => {
    const next = new Set(hidden);
    if (!next.delete(k)) next.add(k);
    plot.current.show(k, !next.has(k));
    setHidden(next);
  };
  const summary = useMemo(
    () => series.map((one) => seriesSummary(one.label, one, format)).join("; "),
    [series.length, version],
  );
  const whole = { name, title, note, series, version, group, format, xTitle, allSeries, ...look };
  const png = () => savePng(name, { title, note, canvas: plot.current.canvas, series: legendOf(series, hidden, theme) });
  const csv = async () => {
    const all = allSeries ? await allSeries() : series;
    const numbers = new AlignedData(all.length);
    numbers.update(all);
    saveCsv(name, xTitle, all, numbers);
  };
  return html`
    <figure class=${classes("panel chart", isLarge && "large")} data-test=${`chart-${name}`}>
      <figcaption class="panel-head">
        <h2>${title}</h2>
        ${note && html`<span class="muted small">${note}</span>`}
      </figcaption>
      <div class="chart-place">
        <div class="chart-box" ref=${box} role="img" aria-label=${`${title} by ${xTitle}. ${summary}.`}
          style=${{ height: `${height}px` }}></div>
        <div class="chart-tip" ref=${tip} aria-hidden="true"></div>
      </div>
      <${Legend} ...${{ series, theme, hidden, toggle, values, isStacked: look.isStacked }} />
      <div class="chart-foot">
        <${ChartTable} ...${{ title, series, data, version, format, xTitle }} />
        <${Tools} label=${`${title}: enlarge or save`} tools=${[
          ...(isLarge ? [] : [["enlarge", "Show a larger drawing", () => setOpen(true)]]),
          ["PNG", "Save the drawing", png],
          ["CSV", "Save the numbers of all rounds", csv],
        ]} />
      </div>
      ${isOpen && html`<${Dialog} label=${title} onClose=${() => setOpen(false)}>
        <${Chart} ...${whole} name=${`${name}-large`} isLarge=${true} height=${largeHeight()} /><//>`}
    </figure>`;
}

/** Gives a column as the line that is drawn of it; single points and level lines stay as they are. */
function smoothed(one, rounds, column, span) {
  return one.isPoints || !one.rounds ? column : trailingMean(rounds, column, span);
}

function largeHeight() {
  return Math.max(220, Math.min(620, Math.round(window.innerHeight * 0.58)));
}

function legendOf(series, hidden, theme) {
  const all = series.map((one, k) => ({ label: one.label, colour: one.colour?.(theme) ?? seriesColour(k, theme), k }));
  return all.filter(({ k }) => !hidden.has(k));
}

/** Says at the cursor which round it is at and what the lines are there; only in the chart that the mouse is in. */
function showTip(tip, box, { series, data, format, xTitle, hidden, averaged, columns }, index, left) {
  const isShown = index !== null && index !== undefined && left >= 0 && box.matches(":hover");
  tip.classList.toggle("shown", isShown);
  if (!isShown) return;
  const words = averaged > 1 ? `, mean of the last ${averaged}` : "";
  const lines = series.flatMap(({ label, isPoints }, k) => {
    const value = columns[k][isPoints ? index : lastKnown(columns[k], index)];
    return hidden.has(k) || value === null || value === undefined ? [] : [[label, format(value)]];
  });
  const head = document.createElement("strong");
  head.textContent = `${xTitle} ${data.rounds[index]}${words}`;
  tip.replaceChildren(head, ...lines.map(([label, value]) => tipLine(label, value)));
  const plot = box.querySelector(".u-over");
  const x = plot.offsetLeft + left;
  const isRight = x > box.clientWidth / 2;
  tip.style.left = isRight ? "auto" : `${x + 12}px`;
  tip.style.right = isRight ? `${box.clientWidth - x + 12}px` : "auto";
}

function tipLine(label, value) {
  const line = document.createElement("div");
  const number = document.createElement("b");
  line.textContent = `${label} `;
  number.textContent = value;
  line.append(number);
  return line;
}

/** What can be done with a chart: [name, description, what to call]. */
function Tools({ label, tools }) {
  const { box, press, focus, tab } = useOneTabStop(".tool", tools.length);
  return html`<div class="chart-tools" role="group" aria-label=${label} ref=${box} onKeyDown=${press} onFocusIn=${focus}>
    ${tools.map(([name, title, call], k) => html`<button type="button" class="tool" key=${name} title=${title} tabindex=${tab(k)}
      onClick=${call}>${name}</button>`)}
  </div>`;
}

function Legend({ series, theme, hidden, toggle, values, isStacked }) {
  const { box, press, focus, tab } = useOneTabStop(".legend-item", series.length);
  return html`<ul class="legend" ref=${box} onKeyDown=${press} onFocusIn=${focus}>
    ${series.map((one, k) => html`<li key=${one.label}>
      <button type="button" tabindex=${tab(k)} class=${classes("legend-item", hidden.has(k) && "off")} aria-pressed=${!hidden.has(k)}
        title=${`${hidden.has(k) ? "show" : "hide"} ${one.label}`} onClick=${() => toggle(k)}>
        <${Swatch} colour=${one.colour?.(theme) ?? seriesColour(k, theme)}
          dash=${one.dash ?? (isStacked ? [] : seriesDash(k))} isPoints=${one.isPoints} isArea=${isStacked} />
        <span>${one.label}</span>
        <span class="legend-value" ref=${(element) => { values.current[k] = element; }}></span>
      </button>
    </li>`)}
  </ul>`;
}

/** The line of a series as it is drawn. */
export function Swatch({ colour, dash = [], isPoints = false, isArea = false }) {
  return html`<svg width="22" height="10" aria-hidden="true">
    ${isArea
      ? html`<rect x="4" y="0" width="12" height="10" rx="2" fill=${colour} />`
      : html`<line x1="1" y1="5" x2="21" y2="5" stroke=${colour} stroke-width="2" stroke-dasharray=${dash.join(" ")} />`}
    ${isPoints && html`<circle cx="11" cy="5" r="3.5" fill=${colour} />`}
  </svg>`;
}

/** Gives the last row up to one that has a value; the first row if none has. */
function lastKnown(column, index) {
  let row = index;
  while (row > 0 && (column[row] === null || column[row] === undefined)) row -= 1;
  return row;
}

/** Writes the values at a row, or the last known ones, without rendering again. */
function showValues(elements, { series, columns, format }, index) {
  series.forEach((one, k) => {
    const element = elements[k];
    if (!element) return;
    const column = columns[k] ?? [];
    const row = lastKnown(column, index ?? column.length - 1);
    const text = column.length ? format(column[row]) : "";
    if (element.textContent !== text) element.textContent = text;
  });
}

function ChartTable({ title, series, data, format, xTitle }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details class="chart-table" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>numbers</summary>
    ${isOpen && html`<${Numbers} ...${{ title, series, data, format, xTitle }} />`}
  </details>`;
}

function Numbers({ title, series, data, format, xTitle }) {
  const stride = Math.max(1, Math.ceil(data.rounds.length / MAX_ROWS));
  const rows = data.rounds.map((round, i) => [round, i]).filter(([, i]) => i % stride === 0).reverse();
  return html`<div class="table-box chart-rows" tabindex="0" role="region" aria-label=${`${title}, numbers`}>
    <table class="plain small">
      <thead><tr><th scope="col">${xTitle}</th>
        ${series.map(({ label }) => html`<th scope="col" class="n">${label}</th>`)}</tr></thead>
      <tbody>${rows.map(([round, i]) => html`<tr key=${round}><th scope="row">${round}</th>
        ${data.columns.map((column) => html`<td class="n">${column[i] == null ? "" : format(column[i])}</td>`)}
      </tr>`)}</tbody>
    </table>
  </div>`;
}

const SMOOTHINGS = [5, 20, 100];

/** Says which rounds are shown and how lines are smoothed, and changes both. */
export function ZoomBar({ group, last }) {
  const range = useRange(group);
  const smoothing = useSmoothing(group);
  const spans = [100, 20];
  const isLast = (span) => range && range[1] === last && range[0] === last - span;
  return html`<div class="zoom" role="group" aria-label="Rounds shown">
    <span class="muted small zoom-words" aria-live="polite">
      ${range ? `rounds ${range[0]} to ${range[1]}` : "all rounds"}<span
        class="mouse-only">${range ? "" : "; drag in a chart to zoom"}</span></span>
    ${spans.map((span) => html`<button type="button" class="button" aria-pressed=${Boolean(isLast(span))}
      disabled=${last <= span} onClick=${() => group.zoom([last - span, last])}>last ${span}</button>`)}
    <button type="button" class="button" disabled=${!range} onClick=${() => group.zoom(null)}>Reset zoom</button>
    <label class="field">smoothing <select class="smoothing" value=${smoothing} onChange=${(event) => group.smooth(Number(event.currentTarget.value))}
      title="Draw each line as the mean of the last rounds; the rounds themselves stay visible behind it.">
      <option value="1">none</option>
      ${SMOOTHINGS.filter((rounds) => rounds < last).map((rounds) => html`<option key=${rounds} value=${rounds}>
        ${rounds} rounds</option>`)}
    </select></label>
    <label class="field">charts <input type="search" class="find-charts" placeholder="name or line"
      onInput=${(event) => group.find(event.currentTarget.value)} /></label>
  </div>`;
}

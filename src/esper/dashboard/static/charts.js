/** Charts over rounds: a title, a legend with numbers, the drawing, and the numbers as a table. */

import { classes, html, useEffect, useMemo, useRef, useState } from "./html.js";
import { AlignedData, seriesSummary, stacked } from "./chart_data.js";
import { useRange } from "./chart_group.js";
import { Plot } from "./chart_plot.js";
import { seriesColour, seriesDash } from "./colours.js";
import { compact } from "./format.js";
import { useTheme } from "./theme.js";

const MOST_ROWS = 200;

/**
 * Draws series over rounds.
 *
 * series: [{ label, rounds, values }] or [{ label, constant }]; with isPoints, scale ("second" for an axis of its
 * own), colour and dash. version changes when the arrays have grown. The number of series is fixed by key.
 */
export function Chart({ name, title, note, series, version, group, height = 190, format = compact, ...look }) {
  const theme = useTheme();
  const box = useRef(null);
  const values = useRef([]);
  const [hidden, setHidden] = useState(new Set());
  const data = useMemo(() => new AlignedData(series.length), [series.length]);
  const plot = useRef(null);
  const current = useRef(null);
  current.current = { series, data, format };

  useEffect(() => {
    const onCursor = (index) => showValues(values.current, current.current, index);
    plot.current = new Plot(box.current, { series, group, height, onCursor, ...look });
    return () => plot.current.destroy();
  }, [series.length, group]);
  useEffect(() => {
    data.update(series);
    plot.current.setData(look.isStacked ? [data.rounds, ...stacked(data.columns, hidden)] : data.table());
    showValues(values.current, current.current, plot.current.cursorRow());
  }, [data, version, group, look.isStacked && hidden]);
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
  return html`
    <figure class="panel chart" data-test=${`chart-${name}`}>
      <figcaption class="panel-head">
        <h2>${title}</h2>
        ${note && html`<span class="muted small">${note}</span>`}
      </figcaption>
      <div class="chart-box" ref=${box} role="img" aria-label=${`${title} by round. ${summary}.`}
        style=${{ height: `${height}px` }}></div>
      <${Legend} ...${{ series, theme, hidden, toggle, values, isStacked: look.isStacked }} />
      <${ChartTable} ...${{ title, series, data, version, format }} />
    </figure>`;
}

function Legend({ series, theme, hidden, toggle, values, isStacked }) {
  return html`<ul class="legend">
    ${series.map((one, k) => html`<li key=${one.label}>
      <button type="button" class=${classes("legend-item", hidden.has(k) && "off")} aria-pressed=${!hidden.has(k)}
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

/** Writes the values at a row, or the last there are, without rendering anew. */
function showValues(elements, { series, data, format }, index) {
  series.forEach((one, k) => {
    const element = elements[k];
    if (!element) return;
    const column = data.columns[k];
    let row = index ?? column.length - 1;
    while (row > 0 && (column[row] === null || column[row] === undefined)) row -= 1;
    const text = column.length ? format(column[row]) : "";
    if (element.textContent !== text) element.textContent = text;
  });
}

function ChartTable({ title, series, data, format }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details class="chart-table" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary>numbers</summary>
    ${isOpen && html`<${Numbers} ...${{ title, series, data, format }} />`}
  </details>`;
}

function Numbers({ title, series, data, format }) {
  const stride = Math.max(1, Math.ceil(data.rounds.length / MOST_ROWS));
  const rows = data.rounds.map((round, i) => [round, i]).filter(([, i]) => i % stride === 0).reverse();
  return html`<div class="table-box chart-rows" tabindex="0" role="region" aria-label=${`${title}, numbers`}>
    <table class="plain small">
      <thead><tr><th scope="col">round</th>
        ${series.map(({ label }) => html`<th scope="col" class="n">${label}</th>`)}</tr></thead>
      <tbody>${rows.map(([round, i]) => html`<tr key=${round}><th scope="row">${round}</th>
        ${data.columns.map((column) => html`<td class="n">${column[i] == null ? "" : format(column[i])}</td>`)}
      </tr>`)}</tbody>
    </table>
  </div>`;
}

/** Says which rounds are shown, and goes back to all. */
export function ZoomBar({ group, last }) {
  const range = useRange(group);
  const spans = [100, 20];
  const isLast = (span) => range && range[1] === last && range[0] === last - span;
  return html`<div class="zoom" role="group" aria-label="Rounds shown">
    <span class="muted small zoom-words" aria-live="polite">
      ${range ? `rounds ${range[0]} to ${range[1]}` : "all rounds"}<span
        class="mouse-only">${range ? "" : "; drag in a chart to zoom"}</span></span>
    ${spans.map((span) => html`<button type="button" class="button" aria-pressed=${Boolean(isLast(span))}
      disabled=${last <= span} onClick=${() => group.zoom([last - span, last])}>last ${span}</button>`)}
    <button type="button" class="button" disabled=${!range} onClick=${() => group.zoom(null)}>Reset zoom</button>
  </div>`;
}

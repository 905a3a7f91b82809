/** Differences with their intervals, as dots and whiskers on one scale with a line at zero. */

import { html } from "../html.js";
import { clearTone, gapWords, signed, tick } from "../format.js";
import { useWidth } from "./size.js";

const ROW = 30;
const AXIS = 42;
const RIGHT = 64;

/** Draws rows of [{ name, colour, gap }]; a row without a gap says so. title is that of the axis. */
export function GapPlot({ rows, title }) {
  const [box, width] = useWidth();
  const known = rows.filter(({ gap }) => gap);
  const left = Math.min(220, Math.max(64, ...rows.map(({ name }) => 7.2 * name.length + 24)), 0.4 * (width || 400));
  const { ticks, x } = makeScale(known.map(({ gap }) => gap), left, Math.max(80, width - RIGHT));
  const height = rows.length * ROW + AXIS;
  return html`<div class="gap-plot" ref=${box} style=${{ minHeight: `${height}px` }}>
    ${width > 0 && html`<svg width=${width} height=${height} role="img" aria-label=${words(rows, title)}>
      ${ticks.map((value) => html`<g key=${value}>
        <line class=${value === 0 ? "gap-zero" : "gridline"} x1=${x(value)} x2=${x(value)} y1="0" y2=${height - AXIS + 4} />
        <text class="tick" x=${x(value)} y=${height - AXIS + 18} text-anchor="middle">${tick(value)}</text></g>`)}
      <text class="tick" x=${(x(ticks[0]) + x(ticks.at(-1))) / 2} y=${height - 3} text-anchor="middle">${title}</text>
      ${rows.map((row, k) => html`<${Row} key=${row.name} ...${{ ...row, x, left, y: ROW * (k + 0.5) }} />`)}
    </svg>`}
  </div>`;
}

function Row({ name, colour, gap, x, left, y }) {
  return html`<g>
    <text class="gap-name" x=${left - 14} y=${y + 4} text-anchor="end">${fitted(name, left - 16)}<title>${name}</title></text>
    ${gap
      ? html`<g style=${{ color: colour }}><title>${gapWords(gap)}</title>
          <line class="gap-whisker" x1=${x(gap.low)} x2=${x(gap.high)} y1=${y} y2=${y} />
          <circle class="gap-dot" cx=${x(gap.mean)} cy=${y} r="5" />
          <text class=${`gap-value ${clearTone(gap)}`} x=${x(gap.high) + 8} y=${y + 4}>${signed(gap.mean)}</text></g>`
      : html`<text class="tick" x=${left} y=${y + 4}>no final comparison yet</text>`}
  </g>`;
}

/** Gives round values that hold all intervals and zero, and where a value lies. */
function makeScale(gaps, left, right) {
  const values = [0, ...gaps.flatMap(({ low, high }) => [low, high])];
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const rough = (most - least || 0.1) / Math.max(2, Math.min(6, (right - left) / 70));
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10, 20].map((one) => one * power).find((one) => one >= rough);
  const first = Math.floor(least / step - 1e-9);
  const last = Math.ceil(most / step + 1e-9);
  const ticks = Array.from({ length: last - first + 1 }, (_, k) => Number(((first + k) * step).toPrecision(6)));
  const x = (value) => left + ((right - left) * (value - ticks[0])) / (ticks.at(-1) - ticks[0]);
  return { ticks, x };
}

function fitted(name, width) {
  const letters = Math.max(4, Math.floor(width / 7));
  return name.length > letters ? `${name.slice(0, letters - 1)}…` : name;
}

function words(rows, title) {
  return `${title}: ${rows.map(({ name, gap }) => `${name} ${gap ? `${signed(gap.mean)}, ${gapWords(gap)}` : "not known yet"}`).join("; ")}.`;
}

/** Differences as dots with whiskers, against a line at zero. */

import { classes, html } from "../html.js";

const MARGIN = 0.04;

/**
 * Draws a row for each difference: its name, the dot and its interval, its value.
 *
 * rows: [{ name, mean, low, high, isSure }]; a filled dot is a difference that is shown.
 */
export function IntervalPlot({ rows, label, format, unit = "" }) {
  const known = rows.filter(({ mean, low, high }) => [mean, low, high].every(Number.isFinite));
  if (known.length === 0) return null;
  const place = scale(known);
  return html`<div class="interval-plot" role="table" aria-label=${label} data-test="interval-plot">
    ${known.map((row) => html`<${Row} key=${row.name} ...${{ row, place, format }} />`)}
    <div class="interval-axis" aria-hidden="true">
      <span class="interval-track">
        <span class=${classes("interval-side left", place(0) < 22 && "narrow")} style=${{ right: `${100 - place(0)}%` }}>worse</span>
        <span class="interval-zero-label" style=${{ left: `${place(0)}%` }}>0</span>
        <span class=${classes("interval-side right", place(0) > 78 && "narrow")} style=${{ left: `${place(0)}%` }}>better</span>
      </span>
      <span class="interval-unit">${unit}</span>
    </div>
  </div>`;
}

function Row({ row, place, format }) {
  const { name, mean, low, high, isSure } = row;
  const tone = !isSure ? "unsure" : mean > 0 ? "good" : "bad";
  const words = `${format(mean)}, from ${format(low)} to ${format(high)}`;
  return html`<div class=${classes("interval-row", tone)} role="row" title=${`${name}: ${words}`}>
    <span class="interval-name" role="rowheader">${name}</span>
    <span class="interval-track" aria-hidden="true">
      <span class="interval-zero" style=${{ left: `${place(0)}%` }}></span>
      <span class="interval-whisker" style=${{ left: `${place(low)}%`, width: `${place(high) - place(low)}%` }}></span>
      <span class="interval-dot" style=${{ left: `${place(mean)}%` }}></span>
    </span>
    <span class="interval-value" role="cell">${format(mean)}${" "}
      <span class="muted small">[${format(low)}, ${format(high)}]</span></span>
  </div>`;
}

/** Gives where a value is, in percent of the width; zero is always on the axis. */
function scale(rows) {
  const low = Math.min(0, ...rows.map((row) => row.low));
  const high = Math.max(0, ...rows.map((row) => row.high));
  const span = high - low || 1;
  return (value) => 100 * (MARGIN + (1 - 2 * MARGIN) * ((value - low) / span));
}

/** A small line without axes. */

import { html } from "../html.js";

/** Draws values from left to right; room is left for as many as may still come. */
export function Sparkline({ values, room, low, high }) {
  const width = Math.max(1, room - 1);
  const span = high - low || 1;
  const points = values
    .map((value, k) => (value === null ? null : `${(100 * k) / width},${29 - (27 * (value - low)) / span}`))
    .filter((point) => point !== null);
  if (points.length === 1) points.push(points[0]);
  return html`<svg class="sparkline" viewBox="0 0 100 30" preserveAspectRatio="none" aria-hidden="true">
    <polyline points=${points.join(" ")} />
  </svg>`;
}

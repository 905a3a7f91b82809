/** A small line without axes. */

import { html } from "../html.js";
import { isNumber, number } from "../format.js";

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

const WIDTH = 96;
const HEIGHT = 24;

/** The held-out return of a run over all its rounds, with a dashed line for the fixed schedule on the same hosts. */
export function CurveSpark({ points, rounds, scale }) {
  const level = points?.fixed;
  const known = (points?.rounds ?? []).map((round, k) => [round, points.values[k]]).filter(([, value]) => isNumber(value));
  if (known.length === 0 || !scale) return html`<svg class="curve-spark" width=${WIDTH} height=${HEIGHT} aria-hidden="true"></svg>`;
  const [low, high] = scale;
  const last = Math.max(1, rounds ?? 0, known.at(-1)[0]);
  const x = (round) => 3 + ((WIDTH - 6) * round) / last;
  const y = (value) => HEIGHT - 3 - ((HEIGHT - 6) * (value - low)) / (high - low || 1);
  const [endRound, end] = known.at(-1);
  const words = `from ${number(known[0][1])} in round ${known[0][0]} to ${number(end)} in round ${endRound}`;
  return html`<svg class="curve-spark" width=${WIDTH} height=${HEIGHT} role="img" aria-label=${words}><title>${words}</title>
    ${isNumber(level) && html`<line class="curve-level" x1="3" x2=${WIDTH - 3} y1=${y(level)} y2=${y(level)} />`}
    <polyline points=${known.map(([round, value]) => `${x(round)},${y(value)}`).join(" ")} />
    <circle cx=${x(endRound)} cy=${y(end)} r="2.2" />
  </svg>`;
}

/** Gives what finds the scale of a run's curve: the same for all runs of a task with the same options. */
export function curveScales(runs) {
  const key = ({ task, task_options: options }) => JSON.stringify([task, options]);
  const scales = new Map();
  for (const run of runs) {
    const values = [...(run.returns?.values ?? []), run.returns?.fixed].filter(isNumber);
    if (values.length === 0) continue;
    const [low, high] = scales.get(key(run)) ?? [Infinity, -Infinity];
    scales.set(key(run), [Math.min(low, ...values), Math.max(high, ...values)]);
  }
  return (run) => scales.get(key(run)) ?? null;
}

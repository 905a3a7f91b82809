/** What a run came to: a sentence about its strongest opponent, and its difference to each. */

import { html } from "../html.js";
import { number, signed, withMinus } from "../format.js";
import { arm } from "../words.js";
import { IntervalPlot } from "./interval_plot.js";

/** The verdicts of a run, those of esper evaluate first; nothing without results. */
export function Verdicts({ comparison }) {
  if (!comparison) return null;
  const evaluations = comparison.evaluations ?? [];
  return html`<div class="verdicts">
    ${evaluations.map((one) => html`<${EvaluationVerdict} key=${one.file + one.price} evaluation=${one} />`)}
    <${FinalVerdict} comparison=${comparison} />
  </div>`;
}

/** The comparison at a run's end. */
export function FinalVerdict({ comparison }) {
  if (!comparison?.differences?.length) return null;
  const [first, growth] = comparison.sentences;
  return html`<section class="panel verdict" data-test="verdict">
    <p class="verdict-sentence">${withMinus(first)}</p>
    ${growth && html`<p class="verdict-more">${withMinus(growth)}</p>`}
    <h3 class="verdict-plot-title">Return, learned minus each
      <span class="muted small">${comparison.n_hosts} held-out hosts, ${comparison.split} split; 95% confidence intervals</span></h3>
    <${Differences} differences=${comparison.differences} />
  </section>`;
}

/** The differences of return at a run's end, the strongest opponent first. */
export function Differences({ differences }) {
  const rows = differences.map(({ against, ep_rew: value, is_sure: isSure }) => ({ name: arm(against), ...value, isSure }));
  return html`<${IntervalPlot} rows=${strongestFirst(rows)} format=${signed}
    label="Difference of return to each controller" />`;
}

function EvaluationVerdict({ evaluation }) {
  const [first, ...others] = evaluation.sentences;
  return html`<section class="panel verdict" data-test="evaluation">
    <p class="verdict-sentence">${withMinus(first)}</p>
    <h3 class="verdict-plot-title">Score in points, learned minus each
      <span class="muted small">esper evaluate at price ${evaluation.price}: ${evaluation.n_hosts} hosts of${" "}
        ${evaluation.task}, ${evaluation.split} split</span></h3>
    <${ArmDifferences} differences=${evaluation.differences} />
    <details class="verdict-details"><summary>in words</summary>
      <ul class="sentences">${others.map((line) => html`<li>${withMinus(line)}</li>`)}</ul></details>
  </section>`;
}

/** The differences of score in an evaluation, in points, the strongest arm first. */
export function ArmDifferences({ differences }) {
  const rows = (differences ?? []).map(({ label, score, is_sure: isSure }) => ({ name: label, ...score, isSure }));
  return html`<${IntervalPlot} rows=${strongestFirst(rows)} format=${points} label="Difference of score to each arm, in points" />`;
}

function strongestFirst(rows) {
  return [...rows].sort((a, b) => a.mean - b.mean);
}

function points(value) {
  return value === 0 ? number(0, 1) : signed(100 * value, 1);
}

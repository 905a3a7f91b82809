/** What a run came to: a sentence about the best baseline, and the difference to each. */

import { html } from "../html.js";
import { number, signed, withMinus } from "../format.js";
import { IntervalPlot } from "./interval_plot.js";

/** The verdicts of a run, those of esper evaluate first; nothing without results. */
export function Verdicts({ comparison }) {
  if (!comparison) return null;
  const evaluations = comparison.evaluations ?? [];
  return html`<div class="verdicts">
    ${evaluations.map((one) => html`<${EvaluationVerdict} key=${one.file + one.price} evaluation=${one} />`)}
    <${FinalVerdict} comparison=${comparison} isOnly=${evaluations.length === 0} />
  </div>`;
}

/** The comparison at a run's end. */
function FinalVerdict({ comparison, isOnly }) {
  if (!comparison?.differences?.length) return null;
  const [first, growth] = comparison.sentences;
  return html`<section class="panel verdict" data-test="verdict">
    <p class="verdict-sentence">${withMinus(first)}</p>
    ${growth && html`<p class="verdict-more">${withMinus(growth)}</p>`}
    <h3 class="verdict-plot-title">Return in points, learned minus each
      <span class="muted small">${comparison.n_hosts} held-out hosts, ${comparison.split} split; 95% confidence intervals</span></h3>
    <${Differences} differences=${comparison.differences} />
    ${isOnly && html`<p class="muted small">Not benchmarked against tuned baselines yet; run <code>esper evaluate</code>.</p>`}
  </section>`;
}

function Differences({ differences }) {
  const rows = differences.map(({ label, ep_rew: value, is_sure: isSure }) => ({ name: label, ...value, isSure }));
  return html`<${IntervalPlot} rows=${rows.sort((a, b) => a.mean - b.mean)} format=${points}
    label="Difference of return to each baseline, in points" />
    ${rows.some(({ isSure }) => !isSure) && html`<p class="muted small">Hollow: no clear difference, after correction for all comparisons; intervals are not corrected.</p>`}`;
}

/** The result of esper evaluate at one price. */
export function EvaluationVerdict({ evaluation }) {
  const [first, second, ...more] = evaluation.sentences;
  const others = [...more, ...evaluation.differences.map(({ sentence }) => sentence)];
  return html`<section class="panel verdict" data-test="evaluation">
    <p class="verdict-sentence">${withMinus(first)}</p>
    ${second && html`<p class="verdict-more">${withMinus(second)}</p>`}
    <h3 class="verdict-plot-title">Return in points, learned minus each
      <span class="muted small">esper evaluate at price ${evaluation.price}: ${evaluation.n_hosts} hosts of${" "}
        ${evaluation.task}, ${evaluation.split} split</span></h3>
    <${Differences} differences=${evaluation.differences} />
    <details class="verdict-details"><summary>in words</summary>
      <ul class="sentences">${others.map((line) => html`<li>${withMinus(line)}</li>`)}</ul>
      ${evaluation.command && html`<pre class="command" tabindex="0">${evaluation.command}</pre>`}</details>
  </section>`;
}

function points(value) {
  return value === 0 ? number(0, 1) : signed(100 * value, 1);
}

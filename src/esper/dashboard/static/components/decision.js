/** One decision: what was likely, what was chosen, what it was worth. */

import { html } from "../html.js";
import { number, probability, signed } from "../format.js";
import { plain, refusalWords, stepWords, whenWords } from "../words.js";
import { Heads } from "./heads.js";
import { RewardTerms } from "./reward_terms.js";
import { SlotTable } from "./slot_table.js";

/** Shows a step of the view episode_detail; overview has the names of choices and what each op reads. */
export function Decision({ step, overview, slots, soFar }) {
  const refusal = refusalWords(step);
  return html`<section class="panel decision" data-test="decision" aria-label="Decision">
    <div class="panel-head">
      <h2>${stepWords(step)}</h2>
      <span class="muted small">${whenWords(step)}${overview?.learns === false ? "" : `, round ${step.round}`}</span>
    </div>
    <p class="decision-refusal small">${refusal ? html`<span class="bad">${refusal}</span>` : doneWords(step)}</p>
    <dl class="decision-facts">
      <${Fact} name="score" value=${number(step.score)} title="Validation score after the step." />
      ${hasReward(step) && html`<${Fact} name="reward" value=${signed(step.reward)} />
      <${Fact} name="return so far" value=${number(soFar)} title="Sum of the rewards up to this step." />`}
      <${Fact} name="value estimate" value=${number(step.value)} title="The critic's estimate of the remaining return before this step." />
      <${Fact} name="probability" value=${step.log_prob === null ? "–" : probability(Math.exp(step.log_prob))}
        title="Probability of the action, over the heads that the op reads." />
      <${Fact} name="FLOPs" value=${number(step.flops, 2)} title="Spent so far, relative to the reference run." />
    </dl>
    <${Heads} step=${step} overview=${overview} slots=${slots} />
  </section>`;
}

/** Shows the outcome of a step: the terms of its reward, and the slots after it. */
export function Outcomes({ step, slots }) {
  return html`<section class="panel outcomes" aria-label="Outcome of the step">
    ${hasReward(step) && html`
      <div class="panel-head"><h2>Reward</h2><span class="muted small">${signed(step.reward)}</span></div>
      <${RewardTerms} terms=${step.terms} reward=${step.reward} />`}
    <div class="panel-head"><h2>Slots after the step</h2></div>
    <${SlotTable} states=${step.slots} names=${slots} chosen=${step.slot} />
  </section>`;
}

/** Whether a reward or one of its terms is known; a training of the user's own has none. */
function hasReward({ reward, terms }) {
  return reward !== null || Object.values(terms).some((value) => value !== null);
}

function Fact({ name, value, title }) {
  return html`<div title=${title}><dt>${name}</dt><dd>${value}</dd></div>`;
}

function doneWords(step) {
  return step.op === step.op_done ? html`<span class="muted">Carried out.</span>` : `Executed as ${plain(step.op_done)}.`;
}

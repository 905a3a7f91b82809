/** One episode: what came of it, its timeline, the chosen decision, and the network as it was then. */

import { html, useCallback, useMemo, useState } from "../html.js";
import { many, number, parameters } from "../format.js";
import { Decision, Outcomes } from "./decision.js";
import { Empty } from "./messages.js";
import { Network } from "./network.js";
import { Player } from "./player.js";
import { missingBaseline, baselineOf, baselineWords } from "./baseline.js";
import { Timeline, TimelineLegend } from "./timeline.js";

/** Shows the view episode_detail. onStep receives the number of the shown step; with isKeyed, keys go through the steps. */
export function Episode({ detail, overview, firstStep = null, onStep = () => {}, title, head, isRunning = false, isKeyed = false }) {
  const steps = detail.steps;
  const [chosen, setChosen] = useState(firstStep);
  const step = Math.min(chosen ?? startStep(steps), steps.length - 1);
  const choose = useCallback((next) => {
    setChosen(next);
    onStep(next);
  }, [onStep]);
  const sums = useMemo(() => runningSums(steps), [steps]);
  return html`<div class="stack">
    <section class="panel" aria-label="Timeline">
      <div class="panel-head">
        <h2>${title ?? `Environment ${detail.env}, episode ${detail.episode}`}</h2>
        <span class="rest">${head}</span>
        <${Problem} detail=${detail} />
        <${Outcome} ...${{ detail, isRunning }} />
      </div>
      ${steps.length === 0
        ? html`<${Empty} title="The steps of this episode were not recorded.">Its seeds and stages are shown, its decisions are not.<//>`
        : null}
      <${Timeline} ...${{ detail, isRunning }} step=${steps.length ? step : null} onStep=${choose} />
      ${steps.length > 0 && html`<${Player} ...${{ steps, step, onStep: choose, isKeyed }} />`}
      <${TimelineLegend} detail=${detail} />
      <${MissingBaseline} detail=${detail} />
    </section>
    ${steps.length > 0 && html`<div class="episode-parts">
      <${Decision} step=${steps[step]} overview=${overview} slots=${detail.slots} soFar=${sums[step]} />
      <div class="stack">
        <${Network} ...${{ overview, detail, step: steps[step] }} />
        <${Outcomes} step=${steps[step]} slots=${detail.slots} />
      </div>
    </div>`}
  </div>`;
}

/** What the host had to learn, and with which settings. */
function Problem({ detail: { problem, settings } }) {
  if (!problem && !settings) return null;
  return html`<span class="small outcome" data-test="problem">${problem}${problem && settings ? "; " : ""}<span
    class="muted">${settings}</span></span>`;
}

function MissingBaseline({ detail }) {
  const words = missingBaseline(detail, baselineOf(detail));
  return words && html`<p class="muted small" data-test="missing-baseline">${words}</p>`;
}

function Outcome({ detail, isRunning }) {
  const { result } = detail;
  const taken = many(detail.steps.length, "step");
  if (!result) {
    const words = isRunning ? `in progress, ${taken} so far` : `unfinished when the run ended, after ${taken}`;
    return html`<span class="muted small outcome">${words}</span>`;
  }
  const relative = detail.reward === "scheduled" ? " relative to the fixed schedule" : "";
  const words = [
    `return ${number(result.ep_rew)}${relative}`,
    `final score ${number(result.final_score)}`,
    ...baselineWords(baselineOf(detail)),
    many(result.n_epochs, "epoch"),
    `FLOPs ${number(result.flops, 2)}`,
    `${parameters(result.host_parameters, result.seed_parameters || null)} parameters`,
  ];
  return html`<span class="muted small outcome">${words.join(", ")}</span>`;
}

/** The first step that did something, so that there is something to see. */
function startStep(steps) {
  const first = steps.findIndex(({ op_done: op }) => op !== "wait");
  return Math.max(0, first);
}

/** Returns the sum of the rewards up to each step; null where none is known. */
function runningSums(steps) {
  let sum = null;
  return steps.map(({ reward }) => (sum = reward === null ? sum : (sum ?? 0) + reward));
}

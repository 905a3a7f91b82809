/** All hosts that are being grown: how each does, what lives in its slots, what was done last. */

import { html, useRef, useState } from "../html.js";
import { runPath, withQuery } from "../api.js";
import { Fact, Facts } from "../components/facts.js";
import { MarkLegend } from "../components/marks.js";
import { HostCard, isLiveStage, shownScore } from "../components/host_card.js";
import { Empty, Problem, Waiting } from "../components/messages.js";
import { StageLegend } from "../components/stages.js";
import { useQuery } from "../data.js";
import { isNumber, many, number, percent, signed } from "../format.js";
import { useOneTabStop } from "../keys.js";
import { useLiveRun, useRowMark } from "../live.js";

/** Orders of the hosts: a name, and what is compared, the largest first. */
const ORDERS = {
  number: ["number", ({ env }) => -env],
  best: ["highest score", (host) => shownScore(host) ?? -Infinity],
  worst: ["lowest score", (host) => -(shownScore(host) ?? Infinity)],
  gain: ["largest gain over no growth", ({ gain }) => gain ?? -Infinity],
  kept: ["most seeds kept", ({ n_kept: kept }) => kept],
  live: ["most live seeds", ({ stages }) => stages.filter(isLiveStage).length],
  epoch: ["most epochs", ({ epoch }) => epoch],
};

const WHICH = { finished: "finished", last: "at the end" };

/** A grid of hosts; each opens its episode. */
export function EnvironmentsScreen({ id }) {
  const isRunning = useLiveRun(id)?.state === "running";
  const [wanted, setWanted] = useState(null);
  // A run that has ended was cut off in the middle of most episodes; those before them have results.
  const which = wanted ?? (isRunning ? "last" : "finished");
  const { data, error } = useQuery(withQuery(runPath(id, "environments"), { which }), useRowMark(id));
  const [order, setOrder] = useState("number");
  if (!data) return error ? html`<${Problem} error=${error} />` : html`<${Waiting} height=${600} />`;
  const hasGain = data.envs.some(({ gain }) => isNumber(gain));
  return html`
    <div class="screen-head">
      <h1>Environments</h1>
      <span class="muted small">${about(which, isRunning)}</span>
      <div class="rest">
        ${data.has_steps && html`<div class="choice-row" role="group" aria-label="Which host of each environment">
          ${Object.entries(WHICH).map(([key, words]) => html`<button type="button" key=${key} aria-pressed=${which === key}
            onClick=${() => setWanted(key)}>${key === "last" && isRunning ? "current" : words}</button>`)}</div>`}
        <label class="field">sort by <select value=${order} onChange=${(event) => setOrder(event.currentTarget.value)}>
          ${Object.entries(ORDERS).filter(([key]) => key !== "gain" || hasGain).map(([key, [words]]) => html`<option key=${key}
            value=${key}>${words}</option>`)}</select></label>
      </div>
    </div>
    <${Problem} error=${error} />
    ${data.envs.length === 0
      ? html`<div class="panel"><${Nothing} ...${{ which, hasSteps: data.has_steps, isRunning }} /></div>`
      : html`<${Summary} ...${{ data, isRunning, which }} />
        ${data.has_steps && html`<${Legends} ...${{ data, isRunning }} />`}
        <${Hosts} ...${{ id, data, order, isRunning }} />`}`;
}

function about(which, isRunning) {
  if (which === "finished") return "the last host of each environment that finished its episode";
  return isRunning ? "the host of each environment, in its current episode" : "the host of each environment when the run ended";
}

/** Says what the looks on the cards mean: all that may come, and after the run those that are there. */
function Legends({ data: { envs }, isRunning }) {
  if (isRunning) return html`<div class="timeline-legend"><${StageLegend} /><${MarkLegend} /></div>`;
  return html`<div class="timeline-legend"><${StageLegend} stages=${envs.flatMap(({ stages }) => stages)} />
    <${MarkLegend} kinds=${new Set(envs.map(({ op }) => op))} /></div>`;
}

/** All hosts in a few numbers. */
function Summary({ data: { envs, has_steps: hasSteps }, isRunning, which }) {
  const isLast = which === "last" && hasSteps;
  const unfinished = envs.filter(({ is_over: isOver }) => !isOver).length;
  const live = envs.flatMap(({ stages }) => stages).filter(isLiveStage).length;
  const kept = envs.reduce((sum, { n_kept: n }) => sum + n, 0);
  const scores = envs.map(shownScore).filter(isNumber).sort((a, b) => a - b);
  const gains = envs.map(({ gain }) => gain).filter(isNumber).sort((a, b) => a - b);
  return html`<${Facts} label="All hosts">
    <${Fact} name=${envs.length === 1 ? "host" : "hosts"}>${envs.length}<//>
    ${isLast && html`<${Fact} name=${isRunning ? "in progress" : "unfinished"} note=${isRunning ? null : "when the run ended"}>
      ${unfinished}<//>`}
    <${Fact} name=${isLast ? "median score so far" : "median final score"}
      note=${scores.length ? `from ${number(scores[0], 2)} to ${number(scores.at(-1), 2)}` : null}>${number(quantile(scores, 0.5))}<//>
    ${!isLast && gains.length > 0 && html`<${Fact} name="median gain" note=${`over no growth, ${many(gains.length, "host")}`}>
      ${signed(quantile(gains, 0.5))}<//>`}
    ${isLast && html`<${Fact} name="live seeds" note=${`${number(live / envs.length, 1)} per host`}>${live}<//>`}
    <${Fact} name="seeds kept" note=${`by ${percent(envs.filter(({ n_kept: n }) => n > 0).length / envs.length)} of the hosts`}>${kept}<//>
  <//>`;
}

function quantile(sorted, share) {
  if (sorted.length === 0) return null;
  const at = share * (sorted.length - 1);
  const [low, high] = [sorted[Math.floor(at)], sorted[Math.ceil(at)]];
  return low + (at - Math.floor(at)) * (high - low);
}

function Hosts({ id, data, order, isRunning }) {
  const cards = useRef(new Map());
  const [, value] = ORDERS[order];
  const hosts = [...data.envs].sort((a, b) => value(b) - value(a) || a.env - b.env);
  const { box, press, focus, tab } = useOneTabStop(".host", hosts.length);
  const [low, high] = range(data.envs);
  return html`
    ${data.has_steps && html`<p class="muted small host-scale">Each card: environment, last op, score; the score after each epoch${" "}
      from ${number(low, 1)} to ${number(high, 1)} over ${many(data.n_epochs_max ?? 0, "epoch")}, all on the same scale; the stage of each slot and the seeds kept.</p>`}
    <ul class="hosts" ref=${box} onKeyDown=${press} onFocusIn=${focus}>
      ${hosts.map((host, k) => cached(cards.current, host, [id, low, high, isRunning, tab(k)], () => html`<${HostCard}
        key=${host.env} ...${{ id, host, low, high, isRunning }} slots=${data.slots} room=${data.n_epochs_max} tabindex=${tab(k)} />`))}
    </ul>`;
}

function Nothing({ which, hasSteps, isRunning }) {
  const soon = isRunning ? "Hosts appear here during training." : "The run ended before.";
  if (which === "finished") return html`<${Empty} title="No episode has ended yet.">${soon}<//>`;
  return hasSteps
    ? html`<${Empty} title="No steps yet.">${soon}<//>`
    : html`<${Empty} title="No host to show yet.">The result of each environment's last episode appears here.<//>`;
}

/** Gives the same element for a host that has not changed, so that it is not looked at again. */
function cached(cards, host, scale, make) {
  const sign = [host.episode, host.epoch, host.is_over, host.op, host.score, ...scale].join(" ");
  const known = cards.get(host.env);
  if (known?.sign === sign) return known.element;
  const element = make();
  cards.set(host.env, { sign, element });
  return element;
}

function range(envs) {
  let [low, high] = [Infinity, -Infinity];
  for (const { scores } of envs) {
    for (const score of scores) {
      if (score === null) continue;
      low = Math.min(low, score);
      high = Math.max(high, score);
    }
  }
  if (low > high) return [0, 1];
  return [Math.floor(10 * low) / 10, Math.max(Math.ceil(10 * high), Math.floor(10 * low) + 1) / 10];
}

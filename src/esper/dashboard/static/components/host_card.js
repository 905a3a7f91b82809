/** One host of many: its number, its last op, its score so far, and the stages of its slots. */

import { classes, html } from "../html.js";
import { isNumber, many, number, signed } from "../format.js";
import { address } from "../router.js";
import { plain } from "../words.js";
import { MarkAt } from "./marks.js";
import { Sparkline } from "./sparkline.js";
import { StageSwatch } from "./stages.js";

/** Tells whether a seed lives in a slot at this stage. */
export function isLiveStage(stage) {
  return ["germinated", "training", "blending", "holding"].includes(stage);
}

/** Gives the score of a host: the final one once its episode is over. */
export function shownScore(host) {
  return host.final_score ?? host.score;
}

/** A link to the host's episode. */
export function HostCard({ id, host, slots, room, low, high, isRunning, tabindex }) {
  const stages = slots.slice(0, host.stages.length).map((name, k) => `${name} ${host.stages[k]}`).join(", ");
  const state = host.is_over ? "finished" : isRunning ? "in progress" : "unfinished when the run ended";
  const words = [
    `Environment ${host.env}, episode ${host.episode}, ${state} after epoch ${host.epoch}`,
    `${isNumber(host.final_score) ? "final score" : "score"} ${number(shownScore(host))}`,
    ...(isNumber(host.gain) ? [`gain over no growth ${signed(host.gain)}`] : []),
    `${many(host.n_kept, "seed")} kept`,
    ...(host.op ? [`last op ${plain(host.op)}`] : []),
    ...(stages ? [stages] : []),
  ].join("; ");
  return html`<li><a class=${classes("host", !host.is_over && !isRunning && "unfinished", host.stages.length === 0 && "short")}
    data-test=${`env-${host.env}`} aria-label=${words} title=${words} tabindex=${tabindex}
    href=${address(["run", id, "growth", host.env, host.episode])}>
    <span class="host-head">
      <span class="host-number">${host.env}</span>
      ${host.op && html`<svg width="14" height="14" viewBox="-8 -8 16 16" aria-hidden="true"><${MarkAt} kind=${host.op} x="0" y="0" /></svg>`}
      <span class="host-score">${number(shownScore(host), 2)}</span>
    </span>
    ${host.stages.length > 0
      ? html`<${Sparkline} values=${host.scores} room=${room ?? host.scores.length} low=${low} high=${high} />
        <span class="host-slots">${host.stages.map((stage, k) => html`<${StageSwatch} key=${k} stage=${stage} size=${12} />`)}
          ${host.n_kept > 0 && html`<span class="host-kept" title="seeds kept">+${host.n_kept}</span>`}</span>`
      : html`<span class="muted">${host.n_kept} kept${isNumber(host.gain) ? html`<br />gain ${signed(host.gain, 2)}` : ""}</span>`}
  </a></li>`;
}

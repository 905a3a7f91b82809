/** One host of many: its number, its last op, its score so far, and the stages of its slots. */

import { html } from "../html.js";
import { number } from "../format.js";
import { address } from "../router.js";
import { plain } from "../words.js";
import { MarkAt } from "./marks.js";
import { Sparkline } from "./sparkline.js";
import { StageSwatch } from "./stages.js";

/** A link to the host's episode. */
export function HostCard({ id, host, slots, room, low, high }) {
  const stages = slots.map((name, k) => `${name} ${host.stages[k] ?? "dormant"}`).join(", ");
  const place = `Environment ${host.env}, episode ${host.episode}, epoch ${host.epoch}`;
  const words = `${place}, score ${number(host.score)}, last op ${plain(host.op)}; ${stages}`;
  return html`<li><a class="host" data-test=${`env-${host.env}`} aria-label=${words} title=${words}
    href=${address(["run", id, "growth", host.env, host.episode])}>
    <span class="host-head">
      <span class="host-number">${host.env}</span>
      <svg width="14" height="14" viewBox="-8 -8 16 16" aria-hidden="true"><${MarkAt} kind=${host.op} x="0" y="0" /></svg>
      <span class="host-score">${number(host.score, 2)}</span>
    </span>
    <${Sparkline} values=${host.scores} room=${room ?? host.scores.length} low=${low} high=${high} />
    <span class="host-slots">${host.stages.map((stage, k) => html`<${StageSwatch} key=${k} stage=${stage} size=${12} />`)}</span>
  </a></li>`;
}

/** All hosts that are being grown: how each does, what lives in its slots, what was done last. */

import { html, useRef } from "../html.js";
import { runPath } from "../api.js";
import { MarkLegend } from "../components/marks.js";
import { HostCard } from "../components/host_card.js";
import { Empty, Problem, Waiting } from "../components/messages.js";
import { StageLegend } from "../components/stages.js";
import { useQuery } from "../data.js";
import { many, number } from "../format.js";
import { useRowMark } from "../live.js";

/** A grid of hosts; each opens its episode. */
export function EnvironmentsScreen({ id }) {
  const { data, error } = useQuery(runPath(id, "environments"), useRowMark(id));
  const cards = useRef(new Map());
  if (!data) return error ? html`<${Problem} error=${error} />` : html`<${Waiting} height=${600} />`;
  const [low, high] = range(data.envs);
  return html`
    <div class="screen-head">
      <h1>Environments</h1>
      <span class="muted small">${many(data.envs.length, "host")}, each in its current episode;
        lines: score from ${number(low, 1)} to ${number(high, 1)} over ${data.n_epochs_max ?? "–"} epochs</span>
    </div>
    <${Problem} error=${error} />
    ${data.envs.length === 0
      ? html`<div class="panel"><${Nothing} hasSteps=${data.has_steps} /></div>`
      : html`<ul class="hosts">${data.envs.map((host) => cached(cards.current, host, [id, low, high], () =>
            html`<${HostCard} key=${host.env} ...${{ id, host, low, high }} slots=${data.slots} room=${data.n_epochs_max} />`))}
        </ul>
        <div class="timeline-legend"><${StageLegend} /><${MarkLegend} /></div>`}`;
}

function Nothing({ hasSteps }) {
  return hasSteps === false
    ? html`<${Empty} title="This run does not record steps.">Only the results of its episodes are available.<//>`
    : html`<${Empty} title="No steps yet.">Hosts appear with the first steps of round 1.<//>`;
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

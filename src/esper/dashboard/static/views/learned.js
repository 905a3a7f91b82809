/** Learned: how what the controller does changed over its training. */

import { html } from "../html.js";
import { runPath } from "../api.js";
import { Learned } from "../components/learned.js";
import { Empty, Problem, Waiting } from "../components/messages.js";
import { useQuery } from "../data.js";
import { useRoundMark } from "../live.js";

/** What a run's controller learned to do. */
export function LearnedScreen({ id }) {
  const { data, error } = useQuery(runPath(id, "learned"), useRoundMark(id));
  if (!data) return error ? html`<${Problem} error=${error} />` : html`<${Waiting} height=${600} />`;
  return html`
    <div class="screen-head"><h1>What the controller learned</h1>
      <span class="muted small">by part of training, from first to last</span></div>
    <${Problem} error=${error} />
    ${data.parts.length === 0
      ? html`<div class="panel"><${Empty} title="No rounds yet.">Come back after a few rounds.<//></div>`
      : html`<${Learned} learned=${data} />`}`;
}

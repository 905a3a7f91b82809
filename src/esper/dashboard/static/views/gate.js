/** What is shown of a run before there is anything to show of it. */

import { html } from "../html.js";
import { runPath } from "../api.js";
import { Empty, Problem, Waiting } from "../components/messages.js";
import { useQuery } from "../data.js";
import { useReadiness } from "../live.js";

/** Shows its children once a run has rows, and otherwise the reason why it has none. */
export function Gate({ id, children }) {
  const readiness = useReadiness(id);
  if (readiness === "waiting") return html`<${Waiting} height=${600} />`;
  if (readiness === "unknown") {
    return html`<div class="panel"><${Empty} title="No such run.">
      A run that is just starting appears here in a few seconds.${" "}<a href="#/">All runs</a><//></div>`;
  }
  if (readiness === "unreadable") return html`<${Unreadable} id=${id} />`;
  if (readiness === "empty") {
    return html`<div class="panel"><${Empty} title="No records yet.">
      The run appears here as soon as its hosts are created.<//></div>`;
  }
  return children;
}

function Unreadable({ id }) {
  const { data, error } = useQuery(runPath(id));
  if (!data && !error) return html`<${Waiting} height=${600} />`;
  return html`<${Problem} error=${error ?? { message: data.problem ?? "Cannot read this run." }} />`;
}

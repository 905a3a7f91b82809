/** Health: what went wrong or nearly so, how fast it goes, and where the time goes. */

import { html } from "../html.js";
import { get, runPath, withQuery } from "../api.js";
import { useChartGroup, useRange } from "../chart_group.js";
import { ZoomBar } from "../charts.js";
import { Conclusion, HealthCharts, HealthFacts, Notices, Restored } from "../components/health.js";
import { Problem, Waiting } from "../components/messages.js";
import { useHealth } from "../data.js";
import { useRoundMark } from "../live.js";

/** The health of a run. */
export function HealthScreen({ id }) {
  const group = useChartGroup();
  const { data, shown, error } = useHealth(id, useRoundMark(id), useRange(group));
  if (!data) return error ? html`<${Problem} error=${error} />` : html`<${Waiting} height=${600} />`;
  return html`<div data-test="health">
    <div class="screen-head"><h1>Health</h1>
      <div class="rest"><${ZoomBar} group=${group} last=${data.throughput.rounds.at(-1) ?? 0} /></div></div>
    <${Problem} error=${error} />
    <${Conclusion} conclusion=${data.conclusion} />
    <${HealthFacts} health=${data} />
    <div class="stack">
      <${HealthCharts} health=${data} shown=${shown} group=${group}
        complete=${() => get(withQuery(runPath(id, "health"), { points: "all" }))} />
      <div class="grid-2"><${Restored} health=${data} id=${id} /><${Notices} health=${data} /></div>
    </div>
  </div>`;
}

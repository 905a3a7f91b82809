/** Compare: runs side by side, their curves in the same charts, their settings where they differ. */

import { classes, html } from "../html.js";
import { useChartGroup, useRange } from "../chart_group.js";
import { ZoomBar } from "../charts.js";
import { DifferingSettings, Headlines, Outcome } from "../components/headlines.js";
import { Empty, Problem, Waiting } from "../components/messages.js";
import { completeTable, useDetail, useManyMetrics, useManyRuns, useQuery } from "../data.js";
import { useAnyMark } from "../live.js";
import { address, go } from "../router.js";
import { CompareCharts } from "./compare_charts.js";

/** Two or more runs. */
export function CompareScreen({ ids }) {
  const mark = useAnyMark();
  const all = useQuery("runs", mark);
  const { data: runs, error } = useManyRuns(ids, mark);
  return html`
    <div class="screen-head"><h1>Compare</h1></div>
    <${Chooser} runs=${all.data?.runs ?? []} ids=${ids} />
    <${Problem} error=${error ?? all.error} />
    ${ids.length < 2
      ? html`<div class="panel"><${Empty} title="Choose two or more runs.">
          Their learning curves and settings are compared here.<//></div>`
      : runs
        ? html`<${Compared} key=${ids.join("\n")} runs=${runs} ids=${ids} mark=${mark} />`
        : html`<${Waiting} height=${600} />`}`;
}

function Chooser({ runs, ids }) {
  const turn = (id) => {
    const next = ids.includes(id) ? ids.filter((one) => one !== id) : [...ids, id];
    go(address(["compare"], { runs: next.map(encodeURIComponent).join(",") }), { replace: true });
  };
  return html`<fieldset class="chooser"><legend class="hidden-text">Runs</legend>
    ${runs.filter(({ position }) => position > 0).map(({ id, name, task }) => html`<label key=${id}
      class=${classes("chip", ids.includes(id) && "on")} title=${task}>
      <input type="checkbox" checked=${ids.includes(id)} onChange=${() => turn(id)} />${name}</label>`)}
  </fieldset>`;
}

/** The comparison of runs with their curves. */
export function Compared({ runs, ids, mark }) {
  const { tables, version: known, error } = useManyMetrics(ids, mark);
  const group = useChartGroup();
  const version = Math.max(known, useDetail(tables, useRange(group)));
  const last = Math.max(0, ...tables.map(({ roundsDone }) => roundsDone ?? 0));
  return html`<div class="stack">
    <${Problem} error=${error} />
    <${Outcome} runs=${runs} />
    <${Headlines} runs=${runs} />
    <${DifferingSettings} runs=${runs} />
    <div class="screen-head compare-zoom"><h2>Learning curves</h2>
      <div class="rest"><${ZoomBar} group=${group} last=${last} /></div></div>
    ${version > 0 && html`<${CompareCharts} names=${runs.map(({ name }) => name)}
      rewards=${runs.map(({ overview }) => overview?.reward ?? null)} ...${{ tables, version, group }}
      complete=${completeTable} />`}
  </div>`;
}

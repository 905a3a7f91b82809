/** One run: how far it is, what it came to, and its charts as they grow. */

import { html, useMemo } from "../html.js";
import { runPath } from "../api.js";
import { StateBadge } from "../components/badge.js";
import { ActivityPanel } from "../components/activity.js";
import { Comparison } from "../components/comparison.js";
import { Fact, Facts, Progress } from "../components/facts.js";
import { Verdicts } from "../components/verdict.js";
import { Empty, Problem, Waiting } from "../components/messages.js";
import { ZoomBar } from "../charts.js";
import { useChartGroup, useRange } from "../chart_group.js";
import { completeTable, useDetail, useMetrics, useQuery } from "../data.js";
import { clearTone, compact, duration, isNumber, number, parameters, percent, probability, signed, whole } from "../format.js";
import { useLiveRun, useRowMark } from "../live.js";
import { activityWords } from "../words.js";
import { RunCharts, stepsPerRound } from "./run_charts.js";

/** The overview of a run. */
export function RunScreen({ id }) {
  const live = useLiveRun(id);
  const mark = useRowMark(id);
  const { data: run, error } = useQuery(runPath(id), mark);
  const { table, version: known, error: metricsError } = useMetrics(id, mark);
  const group = useChartGroup();
  const detail = useDetail(useMemo(() => [table], [table]), useRange(group));
  const version = Math.max(known, detail);
  const limit = run?.overview?.kl_limit ?? null;
  const learns = run?.overview?.learns ?? true;
  const grows = run?.overview?.grows ?? true;
  const steps = stepsPerRound(run?.overview);
  const reward = run?.overview?.reward ?? null;
  const charts = useMemo(
    () => html`<${RunCharts} ...${{ table, version, group, steps, grows, reward }} complete=${completeTable} klLimit=${limit} learns=${learns} />`,
    [table, version, group, limit, learns, steps, grows, reward],
  );
  if (!run) return error ? html`<${Problem} error=${error} />` : html`<${Waiting} />`;
  const done = Math.max(run.rounds_done ?? 0, table.roundsDone ?? 0);
  const activity = live?.activity ?? null;
  return html`
    <div class="screen-head">
      <h1>${run.name}</h1><${StateBadge} state=${live?.state ?? run.state} />
      <span class="muted">${taskWords(run)}</span>
      ${done > 0 && html`<div class="rest"><${ZoomBar} group=${group} last=${done} /></div>`}
    </div>
    <${Problem} error=${error ?? metricsError} />
    <${Verdicts} comparison=${run.comparison} />
    <${RunFacts} run=${run} done=${done} state=${live?.state ?? run.state} activity=${activity} />
    ${version === 0
      ? html`<${Waiting} height=${900} />`
      : done === 0 && activity
        ? html`<${ActivityPanel} activity=${activity} />`
      : done === 0
        ? html`<div class="panel"><${Empty} title="No rounds yet.">
            ${learns && grows ? "Evaluations on held-out hosts come first; charts" : "Charts"} start with round 1.<//></div>`
        : html`<div class="stack">
            ${charts}
            <${Comparison} comparison=${run.comparison} />
          </div>`}`;
}

/** The numbers at the top of a run. */
export function RunFacts({ run, done = run.rounds_done, state = run.state, activity = null }) {
  const learns = run.overview?.learns ?? true;
  const grows = run.overview?.grows ?? true;
  const left = timeLeft(run, done);
  return html`<${Facts} label="How the run is">
    <div class="fact fact-progress">
      <dt>${learns ? "round" : "epoch"}<${Progress} share=${done / run.rounds} label="rounds done" /></dt>
      <dd><span data-test="round">${done}</span> <small>of ${run.rounds ?? "–"}</small></dd>
    </div>
    <${Fact} name=${state === "running" ? "time left, about" : "training time"}
      note=${activity && done > 0
        ? `${activityWords(activity).phase}, ${percent(activity.share)}`
        : `${whole(run.steps_per_second)} ${learns ? "steps" : "epochs"} per second`}>
      ${duration(state === "running" ? left : run.seconds)}<//>
    ${!grows && html`<${PPOFacts} run=${run} />`}
    ${learns && grows && html`<${Fact} name=${run.is_final ? "return, test split" : "best held-out return"}
      note=${`fixed schedule ${number(run.fixed_return)}`}>${number(run.best_return)}<//>
    <${Fact} name="gain in score" note=${`no growth ${number(run.no_growth_score)}`}
      title="The score minus that of the same hosts with no growth.">
      <span class=${clearTone(run.score_gap)}>${signed(run.score_gain)}</span><//>`}
    ${grows && isNumber(run.refused_share) && html`<${CarriedOut} run=${run} />`}
    ${grows && html`<${Fact} name="parameters" note=${learns ? "host + seeds" : "given + grown"}>
      ${parameters(run.host_parameters, run.seed_parameters)}<//>
    <${Fact} name="FLOPs" note="of the reference run">${percent(run.flops)}<//>`}
  <//>`;
}

function taskWords({ task, task_options: options, overview }) {
  if (overview?.learns === false) return `${task} of ${options.model}, controller ${options.controller}`;
  return overview?.grows === false ? `${task}, policy ${options.policy}` : task;
}

/** The numbers of PPO on an environment of the user's own. */
function PPOFacts({ run }) {
  return html`<${Fact} name="environment steps" note="of all environments">${whole(run.env_steps)}<//>
    <${Fact} name="return" note="of the last episodes">${compact(run.last_return)}<//>
    ${isNumber(run.best_return) && html`<${Fact} name="best return" note="of evaluations">${compact(run.best_return)}<//>`}`;
}

/** The share of steps whose action was carried out, and why others were not. */
function CarriedOut({ run }) {
  const { refused_share: refused, illegal_share: illegal } = run;
  const note = refused + illegal === 0
    ? "none refused or illegal"
    : `refused ${probability(refused)}, illegal ${probability(illegal)}`;
  return html`<${Fact} name="actions carried out" note=${note}
    title="Share of all steps. An action that a gate refuses or that is illegal is a wait.">
    ${refused + illegal === 0 ? percent(1) : probability(1 - refused - illegal)}<//>`;
}

function timeLeft(run, done) {
  if (!isNumber(run.seconds) || !done || !run.rounds) return null;
  return (run.seconds / done) * (run.rounds - done);
}

/** Runs side by side: their headline numbers, and the settings in which they differ. */

import { html } from "../html.js";
import { seriesColour } from "../colours.js";
import { clearTone, duration, gapWords, isNumber, number, parameters, percent, signed, whole } from "../format.js";
import { address } from "../router.js";
import { useTheme } from "../theme.js";
import { differingSettings } from "../toml.js";
import { heldOutReward, RELATIVE_TO } from "../words.js";
import { StateBadge } from "./badge.js";
import { IntervalPlot } from "./interval_plot.js";
import { TableBox } from "./table_box.js";

const ROWS = [
  ["state", (run) => html`<${StateBadge} state=${run.state} />`],
  ["task", (run) => run.task],
  ["rounds", (run) => `${run.rounds_done ?? 0} of ${run.rounds ?? "–"}`],
  ["final return, test split", finalWords],
  ["return minus the fixed schedule", (run) => gapCell(run.fixed_gap)],
  ["score minus no growth", (run) => gapCell(run.score_gap)],
  ["best return during training", (run) => number(bestReturn(run))],
  ["parameters, host + seeds", (run) => parameters(run.host_parameters, run.seed_parameters)],
  ["FLOPs, relative to the reference run", (run) => percent(run.flops)],
  ["steps per second", (run) => whole(run.steps_per_second)],
  ["training time", (run) => duration(run.seconds)],
];

/** What the runs came to, in a sentence and a plot. */
export function Outcome({ runs }) {
  const rows = runs.filter(({ fixed_gap: gap }) => gap).map(({ name, fixed_gap: { is_sure: isSure, ...gap } }) => ({ name, isSure, ...gap }));
  const missing = runs.filter(({ fixed_gap: gap }) => !gap).map(({ name }) => name);
  return html`<section class="panel">
    <div class="panel-head"><h2>Result</h2></div>
    <p class="conclusion-line" data-test="compare-verdict">${verdict(runs)}</p>
    ${rows.length > 0 && html`<h3 class="verdict-plot-title">Return minus the fixed schedule${" "}
      <span class="muted small">comparison at the end of each run, on held-out hosts; 95% confidence intervals</span></h3>
      <${IntervalPlot} rows=${rows} format=${signed} label="Return of each run minus the fixed schedule" />`}
    ${rows.length > 0 && missing.length > 0 && html`<p class="muted small">No comparison at the end yet: ${missing.join(", ")}.</p>`}
  </section>`;
}

/** Says which run is better, only if that can be said. */
function verdict(runs) {
  const differing = differingSettings(runs.map((run) => run.overview?.config_toml ?? "")).map(({ name }) => name);
  if (differing.some((name) => name === "task" || name.startsWith("task_options"))) {
    return "The runs have different tasks: returns and scores of one say nothing about those of another.";
  }
  if (differing.some((name) => name.startsWith("budget."))) {
    return "The runs have different budgets or prices: their returns are not comparable.";
  }
  if (new Set(runs.map(({ overview }) => RELATIVE_TO[heldOutReward(overview?.reward)] ?? null)).size > 1) {
    return "The returns of the runs are relative to different things; only their differences from the fixed schedule are comparable.";
  }
  const known = runs.map((run) => ({ name: run.name, final: finalOf(run) })).filter(({ final }) => isNumber(final?.mean));
  if (known.length < 2) return "Fewer than two of the runs have been compared on held-out hosts at their end.";
  const [best, second] = known.sort((a, b) => b.final.mean - a.final.mean);
  const by = `final return ${number(best.final.mean)} against ${number(second.final.mean)}`;
  if (best.final.low > Math.max(...known.slice(1).map(({ final }) => final.high))) {
    return `${best.name} has the highest final return, outside noise: ${by}.`;
  }
  return `No run is clearly better: the intervals of their final returns overlap (${best.name}: ${by}).`;
}

/** A table with a column for each run. Nothing in it is emphasised: the plot above shows what is outside noise. */
export function Headlines({ runs }) {
  const theme = useTheme();
  return html`<${TableBox} label="Runs" className="panel"><table class="plain headlines">
    <thead><tr><th scope="col"><span class="hidden-text">number</span></th>
      ${runs.map((run, k) => html`<th scope="col" key=${run.id}>
        <span class="run-colour" style=${{ background: seriesColour(k, theme) }}></span>
        <a href=${address(["run", run.id])}>${run.name}</a></th>`)}</tr></thead>
    <tbody>${ROWS.map(([name, words]) => html`<tr key=${name}><th scope="row" class="muted">${name}</th>
      ${runs.map((run) => html`<td key=${run.id}>${words(run)}</td>`)}</tr>`)}</tbody>
  </table><//>`;
}

function gapCell(gap) {
  return gap ? html`<span class=${clearTone(gap)} title=${gapWords(gap)}>${signed(gap.mean)}</span>${" "}
    <span class="muted small">[${signed(gap.low)}, ${signed(gap.high)}]</span>` : "–";
}

function bestReturn(run) {
  const values = (run.returns?.values ?? []).filter(isNumber);
  return values.length ? Math.max(...values) : null;
}

/** The settings that differ between runs. */
export function DifferingSettings({ runs }) {
  const rows = differingSettings(runs.map((run) => run.overview?.config_toml ?? ""));
  return html`<section class="panel">
    <div class="panel-head"><h2>Settings that differ</h2></div>
    ${rows.length === 0 && html`<p class="muted">None.</p>`}
    ${rows.length > 0 && html`<${TableBox} label="Settings that differ" className="scroll-rows">
      <table class="plain small differing"><thead><tr><th scope="col">setting</th>
        ${runs.map((run) => html`<th scope="col" key=${run.id}>${run.name}</th>`)}</tr></thead>
      <tbody>${rows.map(({ name, comment, values }) => html`<tr key=${name}>
        <th scope="row" title=${comment}><code>${name}</code></th>
        ${values.map((value) => html`<td><code>${value ?? "–"}</code></td>`)}</tr>`)}</tbody></table><//>`}
  </section>`;
}

function finalOf(run) {
  return run.comparison?.arms?.find(({ name }) => name === "learned")?.ep_rew ?? null;
}

function finalWords(run) {
  const final = finalOf(run);
  return final ? html`${number(final.mean)} <span class="muted small">[${number(final.low)}, ${number(final.high)}]</span>` : "–";
}

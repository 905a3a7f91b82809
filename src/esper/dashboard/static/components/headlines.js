/** Runs side by side: their headline numbers, and the settings in which they differ. */

import { html } from "../html.js";
import { duration, number, parameters, percent, signed, whole } from "../format.js";
import { address } from "../router.js";
import { differingSettings } from "../toml.js";
import { StateBadge } from "./badge.js";
import { TableBox } from "./table_box.js";

const ROWS = [
  ["state", (run) => html`<${StateBadge} state=${run.state} />`],
  ["task", (run) => run.task],
  ["rounds", (run) => `${run.rounds_done ?? 0} of ${run.rounds ?? "–"}`],
  ["best return, held-out hosts", (run) => number(run.best_return), (run) => run.best_return],
  ["fixed schedule, held-out hosts", (run) => number(run.fixed_return)],
  ["gain over no growth", (run) => signed(run.accuracy_gain), (run) => run.accuracy_gain],
  ["score", (run) => number(run.best_score), (run) => run.best_score],
  ["final return, test split", (run) => finalWords(run), (run) => finalOf(run)?.mean],
  ["parameters, host + seeds", (run) => parameters(run.host_parameters, run.seed_parameters)],
  ["FLOPs, relative to the reference run", (run) => percent(run.flops)],
  ["steps per second", (run) => whole(run.steps_per_second)],
  ["training time", (run) => duration(run.seconds)],
];

/** A table with a column for each run; the best values are bold. */
export function Headlines({ runs }) {
  return html`<${TableBox} label="Runs" className="panel"><table class="plain headlines">
    <thead><tr><th scope="col"><span class="hidden-text">number</span></th>
      ${runs.map((run) => html`<th scope="col" key=${run.id}>
        <a href=${address(["run", run.id])}>${run.name}</a></th>`)}</tr></thead>
    <tbody>${ROWS.map(([name, words, value]) => {
      const best = value ? Math.max(...runs.map((run) => value(run) ?? -Infinity)) : null;
      return html`<tr key=${name}><th scope="row" class="muted">${name}</th>
        ${runs.map((run) => html`<td key=${run.id} class=${value && value(run) === best ? "best" : ""}>
          ${words(run)}</td>`)}</tr>`;
    })}</tbody>
  </table><//>`;
}

/** The settings that differ between runs. */
export function DifferingSettings({ runs }) {
  const rows = differingSettings(runs.map((run) => run.overview?.config_toml ?? ""));
  return html`<section class="panel">
    <div class="panel-head"><h2>Settings that differ</h2></div>
    ${rows.length === 0 && html`<p class="muted">None.</p>`}
    ${rows.length > 0 && html`<${TableBox} label="Settings that differ">
      <table class="plain small"><thead><tr><th scope="col">setting</th>
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
  return final ? `${number(final.mean)} [${number(final.low)}, ${number(final.high)}]` : "–";
}

/** The runs there are: what they learn, how far they are, what they came to. */

import { html, useState } from "../html.js";
import { StateBadge } from "../components/badge.js";
import { Progress } from "../components/facts.js";
import { Empty, Problem, Waiting } from "../components/messages.js";
import { firstLine, tagsIn } from "../components/notes.js";
import { CurveSpark, curveScales } from "../components/sparkline.js";
import { TableBox } from "../components/table_box.js";
import { useQuery } from "../data.js";
import { clearTone, gapWords, isNumber, many, moment, number, parameters, percent, signed } from "../format.js";
import { useAnyMark } from "../live.js";
import { address, go } from "../router.js";
import { activityWords } from "../words.js";

const COLUMNS = [
  { key: "name", label: "run", start: 1 },
  { key: "state", label: "state", start: 1 },
  { key: "task", label: "task", start: 1 },
  { key: "progress", label: "rounds", start: -1, of: (run) => run.rounds_done / run.rounds },
  { key: "best_return", label: "held-out return", start: -1, isNumber: true,
    title: "Return on held-out hosts over training, and the best or, once the run is done, the one of the final comparison. Curves of the same task have the same scale; the dashed line is the fixed schedule." },
  { key: "fixed_gap", label: "vs fixed schedule", start: -1, isNumber: true, of: fixedGap,
    title: "Return minus that of the fixed schedule on the same hosts. Coloured if the verdict shows a difference; in brackets while there is no final comparison." },
  { key: "score_gap", label: "gain", start: -1, isNumber: true, of: scoreGap,
    title: "Score minus that of the same hosts with no growth. Coloured if the verdict shows a difference; in brackets while there is no final comparison." },
  { key: "parameters", label: "parameters", start: -1, isNumber: true, title: "host + seeds", of: allParameters },
  { key: "created_at", label: "started", start: -1 },
];

/** What runs can be grouped by, and the groups of a run; it is in one for each of its tags. */
const GROUPS = {
  "": () => [""],
  task: (run) => [run.task ?? "unknown task"],
  tag: (run) => (tagsIn(run.notes).length ? tagsIn(run.notes).map((tag) => `#${tag}`) : ["no tag"]),
  state: (run) => [run.state],
};

/** All runs in a table that can be searched and sorted, with boxes to compare some of them. */
export function RunsScreen() {
  const { data, error } = useQuery("runs", useAnyMark());
  const [order, setOrder] = useState({ key: "created_at", direction: -1 });
  const [ticked, setTicked] = useState(new Set());
  const [wanted, setWanted] = useState("");
  const [group, setGroup] = useState("");
  if (!data) return error ? html`<${Problem} error=${error} />` : html`<${Waiting} />`;
  const runs = sorted(data.runs.filter((run) => matches(run, wanted)), order);
  const chosen = data.runs.filter(({ id }) => ticked.has(id)).map(({ id }) => id);
  const tick = (id) => {
    const next = new Set(ticked);
    if (!next.delete(id)) next.add(id);
    setTicked(next);
  };
  return html`
    <div class="screen-head">
      <h1>Runs</h1>
      <span class="muted small">${many(data.runs.length, "run")} in ${data.runs_dir}</span>
      <div class="rest">
        ${data.runs.length > 1 && html`<label class="field">find <input type="search" value=${wanted} placeholder="name, task, #tag"
          onInput=${(event) => setWanted(event.currentTarget.value)} /></label>
        <label class="field">group by <select value=${group} onChange=${(event) => setGroup(event.currentTarget.value)}>
          ${Object.keys(GROUPS).map((name) => html`<option key=${name} value=${name}>${name || "nothing"}</option>`)}</select></label>`}
        <button type="button" class="button main" disabled=${chosen.length < 2}
          title=${chosen.length < 2 ? "Select two or more runs to compare." : ""}
          onClick=${() => go(address(["compare"], { runs: chosen.map(encodeURIComponent).join(",") }))}>
          Compare${chosen.length > 1 ? ` ${chosen.length}` : ""}</button>
      </div>
    </div>
    <${Problem} error=${error} />
    ${data.runs.length === 0
      ? html`<div class="panel"><${Empty} title="No runs yet.">
          Start one with <code>esper train</code>; it appears here automatically.<//></div>`
      : runs.length === 0
        ? html`<div class="panel"><${Empty} title="No matching run.">
            Names, tasks, states and notes are searched.<//></div>`
        : html`<${TableBox} label="Runs" className="panel"><${Table} ...${{ runs, order, setOrder, ticked, tick, setWanted }} groupOf=${GROUPS[group]}
            scales=${curveScales(data.runs)} /><//>
          <p class="muted small under">Select two or more runs to compare them. Notes are edited on a run's Settings; a <code>#word</code> in them is a tag.</p>`}`;
}

/** Tells whether every word is somewhere in what is known of a run. */
function matches(run, wanted) {
  const text = [run.name, run.task, run.state, run.notes].join(" ").toLowerCase();
  return wanted.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

/** The runs under a heading for each group, which are sorted by name. */
function grouped(runs, groupOf) {
  const groups = new Map();
  runs.forEach((run) => groupOf(run).forEach((name) => groups.set(name, [...(groups.get(name) ?? []), run])));
  return [...groups].sort(([a], [b]) => (a < b ? -1 : 1));
}

function Table({ runs, order, setOrder, ticked, tick, setWanted, groupOf, scales }) {
  return html`<table class="plain runs">
    <thead><tr><th scope="col"><span class="hidden-text">compare</span></th>
      ${COLUMNS.map((column) => html`<${Heading} key=${column.key} ...${{ column, order, setOrder }} />`)}
    </tr></thead>
    ${grouped(runs, groupOf).map(([name, members]) => html`<tbody key=${name}>
      ${name && html`<tr class="runs-group"><th scope="rowgroup" colspan=${COLUMNS.length + 1}>${name}
        ${" "}<span class="muted small">${many(members.length, "run")}</span></th></tr>`}
      ${members.map((run) => html`<${Row} key=${run.id} run=${run} isTicked=${ticked.has(run.id)}
        ...${{ tick, setWanted }} scale=${scales(run)} />`)}</tbody>`)}
  </table>`;
}

function Heading({ column, order, setOrder }) {
  const isOrder = order.key === column.key;
  const turn = () => setOrder({ key: column.key, direction: isOrder ? -order.direction : column.start });
  const words = isOrder ? (order.direction > 0 ? "ascending" : "descending") : "none";
  return html`<th scope="col" class=${column.isNumber ? "n" : ""} aria-sort=${words}>
    <button type="button" class="sort" title=${column.title} onClick=${turn}>${column.label}<span
      aria-hidden="true">${isOrder ? (order.direction > 0 ? "↑" : "↓") : ""}</span></button></th>`;
}

function Row({ run, isTicked, tick, setWanted, scale }) {
  const box = html`<input type="checkbox" checked=${isTicked} disabled=${run.state === "unreadable"}
    aria-label=${`compare ${run.name}`} onChange=${() => tick(run.id)} />`;
  if (run.state === "unreadable") {
    return html`<tr data-test="run-row"><td>${box}</td><th scope="row">${run.name}</th>
      <td><${StateBadge} state=${run.state} /></td>
      <td colspan=${COLUMNS.length - 2} class="muted small">${run.problem}</td></tr>`;
  }
  return html`<tr data-test="run-row">
    <td>${box}</td>
    <th scope="row"><a href=${address(["run", run.id])}>${run.name}</a>
      ${run.notes && html`<div class="runs-notes muted small" title=${run.notes}>${firstLine(run.notes)}</div>
        ${tagsIn(run.notes).map((tag) => html`<button type="button" class="tag" key=${tag} title="Show the runs with this tag."
          onClick=${() => setWanted(`#${tag}`)}>#${tag}</button>`)}`}</th>
    <td><${StateBadge} state=${run.state} /></td>
    <td class="runs-task">${run.task}</td>
    <td class="runs-progress"><${Progress} ...${progressOf(run)} />
      <span class="small muted">${roundWords(run)}</span></td>
    <td class="n" data-name="held-out return"><span class="runs-curve">
      <${CurveSpark} points=${run.returns} rounds=${run.rounds} scale=${scale} />
      ${number(run.best_return)}</span></td>
    <td class="n" data-name="vs fixed"><${Gap} gap=${run.fixed_gap} otherwise=${fixedGap(run)} /></td>
    <td class="n" data-name="gain"><${Gap} gap=${run.score_gap} otherwise=${scoreGap(run)} /></td>
    <td class="n" data-name="parameters">${parameters(run.host_parameters, run.seed_parameters)}</td>
    <td class="small muted runs-begun">${moment(run.created_at)}</td>
  </tr>`;
}

function progressOf({ rounds_done: done, rounds, activity }) {
  return !done && activity
    ? { share: activity.share, label: activityWords(activity).title }
    : { share: done / rounds, label: "rounds done" };
}

/** The rounds done or, before the first, what the run is doing. */
function roundWords({ rounds_done: done, rounds, activity }) {
  if (!done && activity) return `${activityWords(activity).phase}, ${percent(activity.share)}`;
  return `${done ?? 0} of ${rounds ?? "–"}`;
}

/** A difference on held-out hosts: final with its interval, or so far in brackets. */
export function Gap({ gap, otherwise }) {
  if (gap) return html`<span class=${clearTone(gap)} title=${gapWords(gap)}>${signed(gap.mean)}</span>`;
  if (!isNumber(otherwise)) return "–";
  return html`<span class="muted" title="The best evaluation during training; not a final comparison.">(${signed(otherwise)})</span>`;
}

/** Gives the return minus that of the fixed schedule, as well as it is known. */
export function fixedGap(run) {
  if (run.fixed_gap) return run.fixed_gap.mean;
  return isNumber(run.best_return) && isNumber(run.fixed_return) ? run.best_return - run.fixed_return : null;
}

/** Gives the score minus that of the same hosts with no growth, as well as it is known. */
export function scoreGap(run) {
  return run.score_gap ? run.score_gap.mean : (run.score_gain ?? null);
}

function allParameters(run) {
  return isNumber(run.host_parameters) ? run.host_parameters + (run.seed_parameters ?? 0) : null;
}

function sorted(runs, { key, direction }) {
  const column = COLUMNS.find((one) => one.key === key);
  const value = (run) => (column.of ? column.of(run) : run[key]) ?? null;
  const compare = (a, b) => {
    const [left, right] = [value(a), value(b)];
    if (left === null || right === null) return Number(left === null) - Number(right === null);
    return direction * (left < right ? -1 : left > right ? 1 : 0);
  };
  return [...runs].sort(compare);
}

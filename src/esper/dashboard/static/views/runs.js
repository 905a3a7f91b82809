/** The runs there are: what they learn, how far they are, what they came to. */

import { html, useState } from "../html.js";
import { StateBadge } from "../components/badge.js";
import { Progress } from "../components/facts.js";
import { Empty, Problem, Waiting } from "../components/messages.js";
import { TableBox } from "../components/table_box.js";
import { useQuery } from "../data.js";
import { isNumber, moment, number, parameters, signed, tone } from "../format.js";
import { useAnyMark } from "../live.js";
import { address, go } from "../router.js";

const COLUMNS = [
  { key: "name", label: "run", start: 1 },
  { key: "state", label: "state", start: 1 },
  { key: "task", label: "task", start: 1 },
  { key: "progress", label: "rounds", start: -1, of: (run) => run.rounds_done / run.rounds },
  { key: "best_return", label: "best return", start: -1, isNumber: true, title: "on held-out hosts" },
  { key: "accuracy_gain", label: "gain", start: -1, isNumber: true, title: "score minus that of the same hosts without growth" },
  { key: "parameters", label: "parameters", start: -1, isNumber: true, title: "host + seeds", of: allParameters },
  { key: "created_at", label: "started", start: -1 },
];

/** All runs in a table that can be sorted, with boxes to compare some of them. */
export function RunsScreen() {
  const { data, error } = useQuery("runs", useAnyMark());
  const [order, setOrder] = useState({ key: "created_at", direction: -1 });
  const [ticked, setTicked] = useState(new Set());
  if (!data) return error ? html`<${Problem} error=${error} />` : html`<${Waiting} />`;
  const runs = sorted(data.runs, order);
  const chosen = data.runs.filter(({ id }) => ticked.has(id)).map(({ id }) => id);
  const tick = (id) => {
    const next = new Set(ticked);
    if (!next.delete(id)) next.add(id);
    setTicked(next);
  };
  return html`
    <div class="screen-head">
      <h1>Runs</h1>
      <span class="muted small">${data.runs_dir}</span>
      <div class="rest">
        <span class="muted small">${chosen.length < 2 ? "Select two or more to compare." : ""}</span>
        <button type="button" class="button main" disabled=${chosen.length < 2}
          onClick=${() => go(address(["compare"], { runs: chosen.map(encodeURIComponent).join(",") }))}>
          Compare${chosen.length > 1 ? ` ${chosen.length}` : ""}</button>
      </div>
    </div>
    <${Problem} error=${error} />
    ${runs.length === 0
      ? html`<div class="panel"><${Empty} title="No runs yet.">
          Start one with <code>esper train</code>; it appears here automatically.<//></div>`
      : html`<${TableBox} label="Runs" className="panel"><${Table} ...${{ runs, order, setOrder, ticked, tick }} /><//>`}`;
}

function Table({ runs, order, setOrder, ticked, tick }) {
  return html`<table class="plain runs">
    <thead><tr><th scope="col"><span class="hidden-text">compare</span></th>
      ${COLUMNS.map((column) => html`<${Heading} key=${column.key} ...${{ column, order, setOrder }} />`)}
    </tr></thead>
    <tbody>${runs.map((run) => html`<${Row} key=${run.id} run=${run} isTicked=${ticked.has(run.id)} tick=${tick} />`)}</tbody>
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

function Row({ run, isTicked, tick }) {
  const box = html`<input type="checkbox" checked=${isTicked} disabled=${run.state === "unreadable"}
    aria-label=${`compare ${run.name}`} onChange=${() => tick(run.id)} />`;
  if (run.state === "unreadable") {
    return html`<tr data-test="run-row"><td>${box}</td><th scope="row">${run.name}</th>
      <td><${StateBadge} state=${run.state} /></td>
      <td colspan=${COLUMNS.length - 2} class="muted small">${run.problem}</td></tr>`;
  }
  return html`<tr data-test="run-row">
    <td>${box}</td>
    <th scope="row"><a href=${address(["run", run.id])}>${run.name}</a></th>
    <td><${StateBadge} state=${run.state} /></td>
    <td class="runs-task">${run.task}</td>
    <td class="runs-progress"><${Progress} share=${run.rounds_done / run.rounds} label="rounds done" />
      <span class="small muted">${run.rounds_done ?? 0} of ${run.rounds ?? "–"}</span></td>
    <td class="n" data-name="best return">${number(run.best_return)}</td>
    <td class="n" data-name="gain"><span class=${tone(run.accuracy_gain)}>
      ${signed(run.accuracy_gain)}</span></td>
    <td class="n" data-name="parameters">${parameters(run.host_parameters, run.seed_parameters)}</td>
    <td class="small muted runs-begun">${moment(run.created_at)}</td>
  </tr>`;
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

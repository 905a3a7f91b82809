/** What a controller learned: its ops, its blueprints, when it grows and when it stops. */

import { classes, html } from "../html.js";
import { number, percent, probability, whole } from "../format.js";
import { plain } from "../words.js";
import { Histograms, roundsOf } from "./histograms.js";
import { TableBox } from "./table_box.js";

const OPS = ["germinate", "advance", "set_alpha_target", "fossilize", "prune", "wait", "finish"];
const WAIT = "wait";
const MIN_SHARE = 0.005;

/** Draws the view learned; the report shows the same. */
export function Learned({ learned }) {
  const { parts } = learned;
  return html`<div class="stack">
    ${learned.summary && html`<p class="conclusion-line" data-test="learned-verdict">${learned.summary}</p>`}
    <${BarTable} title="Ops" note="per episode, by part of training; ops that never occurred are left out"
      parts=${parts} rows=${opRows(parts).filter(({ name }) => name !== WAIT)} format=${twoDigits} extra=${numberRows(learned)} />
    <${BarTable} title="Blueprints" note="share of the seeds germinated" parts=${parts} rows=${shareRows(parts, "blueprints")}
      format=${percent} />
    <div class="grid-2">
      <${Histograms} title="When seeds are germinated" note="share of the seeds, by epoch" parts=${parts}
        field="germination_epochs" empty="Nothing was germinated." />
      <${Histograms} title="When hosts are finished early" note="share of early-finished hosts, by epoch" parts=${parts}
        field="finish_epochs" empty="No host was finished early." />
    </div>
  </div>`;
}

function opRows(parts) {
  const names = [...new Set(parts.flatMap(({ ops }) => Object.keys(ops)))];
  const rank = (name) => (OPS.includes(name) ? OPS.indexOf(name) : OPS.length);
  names.sort((a, b) => rank(a) - rank(b));
  const rows = names.map((name) => ({ name, values: parts.map((part) => (part.n_episodes ? part.ops[name] ?? 0 : null)) }));
  return rows.filter(({ values }) => values.some((value) => value > 0));
}

/** Rows of plain numbers: what is not an act of growth, or has a scale of its own. */
function numberRows({ parts, reward }) {
  const relative = reward === "scheduled" ? " above schedule" : "";
  return [
    { name: "episodes", values: parts.map((part) => whole(part.n_episodes)) },
    { name: `mean return${relative}`, values: parts.map((part) => number(part.mean_return)) },
    { name: "mean final score", values: parts.map((part) => number(part.mean_score)) },
    { name: "waits per episode", values: parts.map((part) => (part.n_episodes ? twoDigits(part.ops[WAIT] ?? 0) : "–")) },
  ];
}

/** The blueprints that were used at all, those used most in the end first. */
function shareRows(parts, field) {
  const names = [...new Set(parts.flatMap((part) => Object.keys(part[field])))];
  const rows = names.map((name) => ({ name, values: parts.map((part) => part[field][name] ?? 0) }));
  const kept = rows.filter(({ values }) => Math.max(...values) >= MIN_SHARE);
  return kept.sort((a, b) => b.values.at(-1) - a.values.at(-1) || b.values[0] - a.values[0]);
}

/** A table of numbers over the parts of a run, each with a bar; all bars of a table have the same scale. */
function BarTable({ title, note, parts, rows, format, extra = [] }) {
  const maximum = Math.max(1e-9, ...rows.flatMap(({ values }) => values));
  return html`<section class="panel">
    <div class="panel-head"><h2>${title}</h2><span class="muted small">${note}</span></div>
    ${rows.length === 0 && html`<p class="muted">None.</p>`}
    ${rows.length > 0 && html`<${TableBox} label=${title}><table class="plain small bar-table">
      <thead><tr><th scope="col">rounds</th>
        ${parts.map((part) => html`<th scope="col">${roundsOf(part)}</th>`)}</tr></thead>
      <tbody>
        ${extra.map(({ name, values }) => html`<tr key=${name}><th scope="row" class="muted">${name}</th>
          ${values.map((value) => html`<td class="muted">${value}</td>`)}</tr>`)}
        ${rows.map(({ name, values }) => html`<tr key=${name}><th scope="row">${plain(name)}</th>
          ${values.map((value) => html`<${BarCell} value=${value} maximum=${maximum} format=${format} />`)}</tr>`)}
      </tbody></table><//>`}
  </section>`;
}

function twoDigits(value) {
  return number(value, 2);
}

function BarCell({ value, maximum, format }) {
  const share = (value ?? 0) / maximum;
  return html`<td class=${classes("bar-cell", !(value >= MIN_SHARE) && "muted")}>
    <span class="bar-cell-value">${format(value)}</span>
    <span class="bar-cell-track"><span style=${{ width: `${100 * share}%` }}></span></span></td>`;
}

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
    <${BarTable} title="Ops" note="per episode, by part of training; all bars have the same scale"
      parts=${parts} rows=${opRows(parts).filter(({ name }) => name !== WAIT)} format=${twoDigits} extra=${numberRows(learned)} />
    <${CarriedOut} carriedOut=${learned.carried_out} />
    <div class="grid-2">
      <${BarTable} title="Blueprints germinated" note="share of the seeds germinated" parts=${parts} rows=${shareRows(parts, "blueprints")}
        format=${percent} />
      <${BarTable} title="Blueprints kept" note="share of the seeds fossilized" parts=${parts} rows=${shareRows(parts, "committed")}
        format=${percent} />
    </div>
    <div class="grid-2">
      <${Histograms} title="When seeds are germinated" note="share of the seeds, by epoch" parts=${parts}
        field="germination_epochs" empty="Nothing was germinated." />
      <${Histograms} title="When hosts are finished early" note="share of early-finished hosts, by epoch" parts=${parts}
        field="finish_epochs" empty="No host was finished early." />
    </div>
  </div>`;
}

/** What was chosen and what was carried out, as shares of the latest steps. */
function CarriedOut({ carriedOut }) {
  const { n_steps: n, ops, reasons } = carriedOut;
  if (n === 0) return null;
  const lost = ops.reduce((sum, { refused, illegal }) => sum + refused + illegal, 0);
  const maximum = Math.max(...ops.flatMap(({ chosen, done }) => [chosen, done]));
  const share = (value) => probability(value / n);
  return html`<section class="panel" data-test="carried-out">
    <div class="panel-head"><h2>Chosen and carried out</h2>
      <span class="muted small">share of ${whole(n)} steps, ${roundWords(carriedOut)}</span></div>
    <p class="carried-out-words">${lost === 0
      ? "Every action was carried out: none was illegal or refused by a gate."
      : `${share(lost)} of the actions were not carried out; gates refuse them or they are illegal, and the step is a wait.`}</p>
    <${TableBox} label="Chosen and carried out"><table class="plain small bar-table carried-out">
      <thead><tr><th scope="col">op</th>${["chosen", "carried out", "refused", "illegal"]
        .map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>${inOrder(ops).map(({ op, chosen, done, refused, illegal }) => html`<tr key=${op}><th scope="row">${plain(op)}</th>
        <${BarCell} value=${chosen / n} maximum=${maximum / n} format=${probability} />
        <${BarCell} value=${done / n} maximum=${maximum / n} format=${probability} />
        ${[refused, illegal].map((count) => html`<td class=${classes(count === 0 && "muted")}>${count ? share(count) : "0%"}</td>`)}
      </tr>`)}</tbody></table><//>
    ${reasons.length > 0 && html`<h3 class="carried-out-reasons">Why gates refused</h3>
      <ul class="rows">${reasons.map(({ reason, count }) => html`<li><span>${share(count)}</span>
        <span class="muted">${reason}</span></li>`)}</ul>`}
  </section>`;
}

function roundWords({ first_round: first, last_round: last }) {
  return first === last ? `round ${first}` : `rounds ${first} to ${last}`;
}

function inOrder(ops) {
  const rank = ({ op }) => (OPS.includes(op) ? OPS.indexOf(op) : OPS.length);
  return [...ops].sort((a, b) => rank(a) - rank(b));
}

function opRows(parts) {
  const names = [...new Set(parts.flatMap(({ ops }) => Object.keys(ops)))];
  const rank = (name) => (OPS.includes(name) ? OPS.indexOf(name) : OPS.length);
  names.sort((a, b) => rank(a) - rank(b));
  return names.map((name) => ({ name: plain(name), values: parts.map((part) => (part.n_episodes ? part.ops[name] ?? 0 : null)) }));
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

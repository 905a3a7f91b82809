/** The parts of a run's health: numbers, charts and lists. */

import { html } from "../html.js";
import { isReport } from "../api.js";
import { useFound } from "../chart_group.js";
import { Chart } from "../charts.js";
import { bytes, compact, many, moment, number, whole } from "../format.js";
import { address } from "../router.js";
import { Fact, Facts } from "./facts.js";
import { TableBox } from "./table_box.js";

const MAX_PARTS = 7;

const SIGNS = {
  ok: html`<path d="M1 5.5L4 8.5L9 1.5" fill="none" stroke="currentColor" stroke-width="2" />`,
  warn: html`<path d="M5 0.5L9.8 9.5H0.2Z" fill="none" stroke="currentColor" stroke-width="1.4" /><path d="M5 3.6V6.4M5 7.4V8.4"
    stroke="currentColor" stroke-width="1.4" />`,
  bad: html`<path d="M1 1L9 9M9 1L1 9" stroke="currentColor" stroke-width="2" />`,
};
const LEVELS = { ok: "in order", warn: "to look at", bad: "wrong" };

/** What the numbers below amount to. */
export function Conclusion({ conclusion: { summary, findings } }) {
  return html`<section class="panel conclusion" data-test="conclusion" aria-label="Conclusion">
    <p><strong>${summary}</strong></p>
    <ul>${findings.map(({ level, text }) => html`<li key=${text} class=${level}>
      <svg width="11" height="11" viewBox="0 0 10 10" role="img" aria-label=${LEVELS[level]}>${SIGNS[level]}</svg><span>${text}</span></li>`)}</ul>
  </section>`;
}

/** Counts of problems, and the latest speed and memory. */
export function HealthFacts({ health }) {
  const facts = [
    ["hosts rolled back", health.governor.total, "The governor saw a loss or gradient that was not finite, or far out of range."],
    ["updates rejected", health.refused_updates.length, "A value was not finite, so the update was undone."],
    ["updates stopped early", health.early_stops.total, "The KL divergence reached its limit before the last epoch."],
    ["illegal actions", health.illegal, "Steps whose action was illegal in the host's state."],
    ["rejected by gates", health.refused_by_gates, "Steps whose action a gate rejected; they were treated as waits."],
  ];
  const shown = health.grows === false ? facts.filter(([name]) => name.startsWith("updates")) : facts;
  return html`<${Facts} label="Health">
    ${shown.map(([name, value, title]) => html`<${Fact} key=${name} name=${name} title=${title}>${whole(value)}<//>`)}
    <${Fact} name="steps per second" note="last round">${whole(health.throughput.values.at(-1))}<//>
    <${Fact} name="memory" note="last round">${bytes(health.memory.values.at(-1))}<//>
    ${health.workers && html`<${Fact} name="workers" note=${`${many(health.workers.restarted ?? 0, "restart")}, idle ${number(health.workers.waited ?? 0, 1)} s`}
      title="Processes that collect side by side; a dead one is replaced and its work repeated.">
      ${whole(health.workers.alive)}<//>`}
  <//>`;
}

/**
 * Throughput, memory, time and the governor, round by round.
 *
 * shown is the health with more points where charts are zoomed in. complete, if given, promises all points.
 */
export function HealthCharts({ health, shown = health, group, complete = null }) {
  // A zoom must not change which parts are named, nor their colours.
  const order = largestParts(health.seconds_by_part);
  const allSeries = (name) => async () => chartsOf(await complete(), order).find((chart) => chart.name === name).series;
  return html`<div class="charts charts-2">
    ${useFound(group, chartsOf(shown, order)).map((chart) => html`<${Chart} key=${`${chart.name}-${chart.series.length}`} ...${chart} fromZero=${true}
      version=${shown} group=${group} allSeries=${complete && allSeries(chart.name)} />`)}
  </div>`;
}

function chartsOf(health, order) {
  const { memory } = health;
  const megabytes = memory.values.map((value) => (value === null ? null : value / 1e6));
  return [
    {
      name: "seconds", title: "Time per round, by part", unit: "seconds", isStacked: true, height: 230, format: seconds2,
      series: partSeries(health.seconds_by_part, order),
    },
    {
      name: "throughput", title: "Throughput", unit: "steps per second", height: 230, format: compact,
      series: [{ label: "steps per second", ...health.throughput }],
    },
    {
      name: "memory", title: "Memory", note: "of the training process", unit: "MB", format: compact,
      series: [{ label: "resident", rounds: memory.rounds, values: megabytes }],
    },
    {
      name: "governor", title: "Governor", note: "rollbacks", unit: "hosts per round", minTop: 4, format: whole,
      series: health.grows === false ? [] : [{ label: "hosts rolled back", ...health.governor.by_round }],
    },
  ].filter(({ series }) => series.length > 0);
}

function seconds2(value) {
  return number(value, 2);
}

/** The parts of a round that take most time, the longest first; the others have no line of their own. */
function largestParts({ names, values }) {
  const sum = (name) => values[names.indexOf(name)].reduce((total, value) => total + (value ?? 0), 0);
  const sorted = [...names].sort((a, b) => sum(b) - sum(a));
  return sorted.length <= MAX_PARTS ? sorted : sorted.slice(0, MAX_PARTS - 1);
}

/** The parts of a round in an order, and all others as one. */
function partSeries({ names, rounds, values }, order) {
  const others = names.map((name, k) => k).filter((k) => !order.includes(names[k]));
  const named = order.map((label) => ({ label, rounds, values: values[names.indexOf(label)] ?? [] }));
  if (others.length === 0) return named;
  return [...named, { label: "other", rounds, values: rounds.map((_, i) => others.reduce((total, k) => total + (values[k][i] ?? 0), 0)) }];
}

/** Hosts that were rolled back, and updates that were rejected. */
export function Restored({ health, id }) {
  const { last, total } = health.governor;
  return html`<section class="panel">
    <div class="panel-head"><h2>${health.grows === false ? "Updates" : "Hosts rolled back"}</h2>
      <span class="muted small">${total > last.length ? `the last ${last.length} of ${whole(total)}` : ""}</span></div>
    ${last.length === 0 && html`<p class="muted">${health.grows === false ? noProblem(health) : "None."}</p>`}
    <ul class="rows scroll-rows">${last.map((one) => html`<li>
      ${isReport()
        ? html`<span>round ${one.round}, env ${one.env}</span>`
        : html`<a href=${address(["run", id, "growth", one.env, one.episode])}>round ${one.round}, env ${one.env}</a>`}
      <span class="muted small">epoch ${one.epoch}: ${one.reason}</span></li>`)}</ul>
    ${health.refused_updates.length > 0 && html`<h3>Updates rejected</h3>
      <ul class="rows">${health.refused_updates.map((one) => html`<li><span>round ${one.round}</span>
        <span class="muted small">${one.reason}</span></li>`)}</ul>`}
    <${EarlyStops} stops=${health.early_stops} />
  </section>`;
}

function noProblem({ refused_updates: refused, early_stops: stops }) {
  return refused.length + stops.total === 0 ? "None was rejected or stopped early." : "";
}

function EarlyStops({ stops }) {
  if (stops.total === 0) return null;
  const shown = stops.rounds.slice(-12);
  return html`<p class="small early-stops">Updates stopped early in ${many(stops.total, "round")}:${" "}
    <span class="muted">${shown.length < stops.rounds.length ? "…, " : ""}${shown.join(", ")}</span></p>`;
}

/** The notices of a run. */
export function Notices({ health }) {
  return html`<section class="panel">
    <div class="panel-head"><h2>Notices</h2></div>
    ${health.notices.length === 0 && html`<p class="muted">None yet.</p>`}
    <ul class="rows scroll-rows">${health.notices.map((one) => html`<li><span>round ${one.round} · ${one.kind}</span>
      <span class="muted small">${one.message}</span></li>`)}</ul>
  </section>`;
}

/** The processes that trained a run. */
export function Sessions({ sessions }) {
  return html`<section class="panel">
    <div class="panel-head"><h2>Sessions</h2><span class="muted small">processes that trained this run</span></div>
    <${TableBox} label="Sessions"><table class="plain small sessions">
      <thead><tr>${["started", "ended", "outcome", "from round", "process", "threads", "esper", "torch", "python", "platform"]
        .map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
      <tbody>${sessions.map((one) => html`<tr key=${one.started_at}>
        <td>${moment(one.started_at)}</td><td>${one.ended_at ? moment(one.ended_at) : "–"}</td>
        <td class="session-outcome" title=${one.message}>${one.outcome ?? "–"}${one.message ? html`<div class="muted">${one.message}</div>` : ""}</td>
        <td>${one.first_round}</td><td>${one.pid}</td><td>${one.threads}</td>
        <td>${one.esper_version}</td><td>${one.torch_version}</td><td>${one.python_version}</td><td>${one.platform}</td>
      </tr>`)}</tbody>
    </table><//>
  </section>`;
}

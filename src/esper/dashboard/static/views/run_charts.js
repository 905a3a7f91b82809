/** The charts of one run, from its metrics; the dashboard and the report show the same. */

import { html } from "../html.js";
import { useFound } from "../chart_group.js";
import { Chart } from "../charts.js";
import { compact, count, number, probability } from "../format.js";
import { plain, RELATIVE_TO } from "../words.js";

const GREY = () => "#85898e";
const HEADS = ["op", "slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve"];
const OPS = ["germinate", "advance", "set_alpha_target", "fossilize", "prune", "wait", "finish"];

/** All charts in a grid. complete, if given, promises the table with all points, which a file of numbers has. */
export function RunCharts({ table, version, klLimit, group, complete = null, steps = null, learns = true, grows = true, reward = null }) {
  const make = (from) => (!grows ? ppoCharts(from, klLimit) : learns ? chartsOf(from, klLimit, steps, reward) : ownCharts(from));
  const allSeries = (name) => async () => make(await complete(table)).find((chart) => chart.name === name).series;
  return html`<div class="charts">
    ${useFound(group, make(table)).map((chart) => html`<${Chart} key=${`${chart.name}-${chart.series.length}`} ...${chart}
      ...${{ version, group }} allSeries=${complete && allSeries(chart.name)} xTitle=${learns ? "round" : "epoch"} />`)}
  </div>`;
}

/** The steps of all environments in a round, or null if unknown. */
export function stepsPerRound(overview) {
  return overview?.n_envs && overview?.n_steps ? overview.n_envs * overview.n_steps : null;
}

function chartsOf(table, klLimit, steps = null, reward = null) {
  const line = (label, name, look = {}) => ({ label, ...table.get(name), ...look });
  return [
    ...returnCharts(table, line, reward),
    {
      name: "score", title: "Score", note: "of the final host", unit: "score", format: number,
      series: [
        line("training", "growth/score"),
        line("held-out", "eval/score", { isPoints: true, dash: [] }),
        constant("no growth", lastOf(table.get("growth/no_growth_score"))),
      ],
    },
    {
      name: "parameters", title: "Parameters", note: "mean per host", unit: "parameters", format: count, fromZero: true,
      series: [line("initial host", "growth/host_parameters", { dash: [7, 4], colour: GREY }), total(table)],
    },
    {
      name: "flops", title: "FLOPs", note: "relative to the reference run", unit: "share of reference", fromZero: true, format: number,
      series: [
        line("training", "growth/flops"),
        line("held-out", "eval/flops", { isPoints: true, dash: [] }),
      ],
    },
    {
      name: "kl", title: "KL divergence of the update", unit: "nats", fromZero: true, format: compact,
      series: [
        line("mean over heads", "train/approx_kl"),
        line("joint action", "train/joint_kl"),
        ...(klLimit === null ? [] : [constant("stops updates", klLimit)]),
      ],
    },
    {
      name: "entropy", title: "Entropy by head", note: "0 is deterministic", unit: "nats", fromZero: true, format: compact,
      series: known(table, "train/entropy/", HEADS).map((head) => line(plain(head), `train/entropy/${head}`)),
    },
    {
      name: "losses", title: "Losses", unit: "value loss", secondUnit: "policy loss", format: compact,
      series: [
        line("value", "train/value_loss"),
        line("policy", "train/policy_gradient_loss", { scale: "second" }),
      ],
    },
    {
      name: "explained-variance", title: "Explained variance", note: "1 is perfect", unit: "share of variance", format: number,
      series: [line("explained variance", "train/explained_variance")],
    },
    {
      name: "ops", title: "Ops", note: "of episodes that ended in the round", unit: "per episode", fromZero: true, format: compact,
      series: known(table, "ops/", OPS).map((op) => line(plain(op), `ops/${op}`)).filter(({ values }) => values.some((value) => value !== 0)),
    },
    {
      name: "not-carried-out", title: "Actions not carried out", unit: "share of steps", fromZero: true, format: probability,
      axisFormat: probability,
      series: steps === null ? [] : lost(table, steps),
    },
  ].filter(({ series }) => series.length > 0);
}

/**
 * Returns of training and of held-out hosts: in one chart only if they are relative to the same thing.
 *
 * Rewards that are relative to the fixed schedule exist in training alone; held-out hosts are compared with no growth.
 */
function returnCharts(table, line, reward) {
  const training = line("training", "rollout/ep_rew_mean");
  const heldOut = line("held-out", "eval/mean_reward", { isPoints: true, dash: [] });
  const fixed = constant("fixed schedule", lastOf(table.get("eval/fixed_reward")));
  const look = { unit: "return", format: number };
  if (reward !== "scheduled") {
    const note = reward === "paired" ? `relative to ${RELATIVE_TO.paired}` : "score minus costs, mean per episode";
    return [{ name: "return", title: "Return", note, ...look, series: [training, heldOut, fixed] }];
  }
  return [
    { name: "return", title: "Return, held-out hosts", note: `relative to ${RELATIVE_TO.paired}`, ...look, series: [heldOut, fixed] },
    {
      name: "training-return", title: "Return, training hosts", note: `relative to ${RELATIVE_TO.scheduled}`, ...look,
      series: [training, constant("fixed schedule", 0)],
    },
  ];
}

/** The charts of a training of the user's own: what no controller learns from has no place in them. */
function ownCharts(table) {
  return chartsOf(table, null)
    .map((chart) => ({ ...chart, series: chart.series.filter(({ values }) => values?.length > 0) }))
    .filter(({ name, series }) => series.length > 0 && name !== "ops")
    .map((chart) => (chart.name === "score" ? asValidation(chart) : { ...chart, note: null }));
}

/** The charts of PPO on an environment of the user's own, which has returns and updates but no hosts. */
function ppoCharts(table, klLimit) {
  const lengths = {
    name: "length", title: "Episode length", note: "steps", format: compact, fromZero: true,
    series: [{ label: "training", ...table.get("rollout/ep_len_mean") }],
  };
  const [first, ...others] = chartsOf(table, klLimit)
    .map((chart) => ({ ...chart, series: chart.series.filter(hasValues) }))
    .filter(({ series }) => series.some(({ rounds }) => rounds));
  const returns = { ...first, note: "mean of episodes", format: compact, series: first.series.map(asEvaluation) };
  const updates = table.namesBelow("train/entropy/").length > 1 ? others : others.map(ofOneHead);
  return [returns, ...(hasValues(lengths.series[0]) ? [lengths] : []), ...updates];
}

/** Leaves out heads: an action of one part has only one. */
function ofOneHead(chart) {
  const named = (label, series) => series.map((one) => ({ ...one, label }));
  if (chart.name === "entropy") return { ...chart, title: "Entropy", series: named("policy", chart.series) };
  if (chart.name !== "kl") return chart;
  const [mean, , ...limit] = chart.series;
  return { ...chart, series: [...named("update", [mean]), ...limit] };
}

function hasValues({ values, constant }) {
  return values ? values.some((value) => value !== null) : Number.isFinite(constant);
}

function asEvaluation(one) {
  return one.label === "held-out" ? { ...one, label: "evaluation" } : one;
}

function asValidation(chart) {
  return { ...chart, title: "Score", note: null, series: chart.series.map((one) => ({ ...one, label: "validation" })) };
}

/** Actions that were refused or illegal as shares of steps; nothing without any. */
function lost(table, steps) {
  return [["refused by a gate", "growth/refused"], ["illegal", "growth/illegal"]]
    .map(([label, name]) => ({ label, ...table.get(name) }))
    .filter(({ values }) => values.some((value) => value > 0))
    .map((one) => ({ ...one, values: one.values.map((value) => value / steps) }));
}

/** Hosts with their seeds, as one series. */
function total(table) {
  const host = table.get("growth/host_parameters");
  const seeds = table.get("growth/seed_parameters");
  let last = 0; // of the hosts, up to the round: in a long run, each series keeps rounds of its own
  const values = seeds.values.map((value, i) => {
    while (last + 1 < host.rounds.length && host.rounds[last + 1] <= seeds.rounds[i]) last += 1;
    const base = host.values[last] ?? null;
    return value === null || base === null ? null : base + value;
  });
  return { label: "with seeds", rounds: seeds.rounds, values, colour: null, dash: [] };
}

/** A level line. It has its place in the legend from the start, so that nothing moves when it is known. */
function constant(label, value) {
  return { label, constant: value, colour: GREY, dash: [4, 4] };
}

function lastOf({ values }) {
  return values.length ? values.at(-1) : null;
}

function known(table, prefix, order) {
  const names = table.namesBelow(prefix);
  const rank = (name) => (order.includes(name) ? order.indexOf(name) : order.length);
  return names.sort((a, b) => rank(a) - rank(b));
}

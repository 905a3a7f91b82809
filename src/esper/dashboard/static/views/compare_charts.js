/** The curves of several runs in the same charts; the dashboard and the report show the same. */

import { html } from "../html.js";
import { useFound } from "../chart_group.js";
import { Chart } from "../charts.js";
import { compact, count, number } from "../format.js";
import { heldOutReward, RELATIVE_TO } from "../words.js";

const CHARTS = [
  { name: "return", unit: "return", title: "Return, held-out hosts", metric: "eval/mean_reward", format: number, isPoints: true, ofReward: heldOutReward },
  { name: "rollout", unit: "return", title: "Return, training", metric: "rollout/ep_rew_mean", format: number, ofReward: (reward) => reward },
  { name: "score", unit: "score", title: "Score, held-out hosts", metric: "eval/score", format: number, isPoints: true },
  { name: "parameters", unit: "parameters", title: "Parameters grown", metric: "growth/seed_parameters", format: count, fromZero: true },
  { name: "flops", unit: "share of reference", title: "FLOPs", metric: "growth/flops", format: number, fromZero: true },
  { name: "kl", unit: "nats", title: "KL of the update", metric: "train/approx_kl", format: compact, fromZero: true },
  { name: "entropy", unit: "nats", title: "Entropy of op", metric: "train/entropy/op", format: compact, fromZero: true },
  { name: "losses", unit: "value loss", title: "Value loss", metric: "train/value_loss", format: compact, fromZero: true },
  { name: "explained-variance", unit: "share of variance", title: "Explained variance", metric: "train/explained_variance", format: number },
];

/** A chart for each metric, a line for each run. rewards are the forms of their rewards; complete is as in RunCharts. */
export function CompareCharts({ names, rewards, tables, version, group, complete = null }) {
  const found = useFound(group, CHARTS.map((chart) => ({ ...chart, series: [] })));
  return html`<div class="charts">
    ${found.map(({ metric, isPoints, ofReward, series: _, ...chart }) => {
      const seriesOf = (all) => all.map((table, k) => ({ label: names[k], isPoints, ...table.get(metric) }));
      const allSeries = complete && (async () => seriesOf(await Promise.all(tables.map(complete))));
      return html`<${Chart} key=${chart.name} ...${chart} ...${{ version, group, allSeries }} note=${ofReward && relativeNote(rewards.map(ofReward))} series=${seriesOf(tables)} />`;
    })}
  </div>`;
}

/** Says what the returns of all runs are relative to, or that they are relative to different things. */
function relativeNote(rewards) {
  const [first, ...others] = new Set(rewards.map((reward) => RELATIVE_TO[reward] ?? null));
  if (others.length > 0) return "not comparable: the runs have different rewards";
  return first ? `relative to ${first}` : null;
}

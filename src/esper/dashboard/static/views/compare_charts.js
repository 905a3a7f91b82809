/** The curves of several runs in the same charts; the dashboard and the report show the same. */

import { html } from "../html.js";
import { Chart } from "../charts.js";
import { compact, count, number } from "../format.js";

const CHARTS = [
  { name: "return", title: "Return, held-out hosts", metric: "eval/mean_reward", format: number, isPoints: true },
  { name: "rollout", title: "Return, training", metric: "rollout/ep_rew_mean", format: number },
  { name: "score", title: "Accuracy, held-out hosts", metric: "eval/score", format: number, isPoints: true },
  { name: "parameters", title: "Parameters grown", metric: "growth/seed_parameters", format: count, fromZero: true },
  { name: "flops", title: "FLOPs", metric: "growth/flops", format: number, fromZero: true },
  { name: "kl", title: "KL of the update", metric: "train/approx_kl", format: compact, fromZero: true },
  { name: "entropy", title: "Entropy of op", metric: "train/entropy/op", format: compact, fromZero: true },
  { name: "losses", title: "Value loss", metric: "train/value_loss", format: compact, fromZero: true },
  { name: "explained-variance", title: "Explained variance", metric: "train/explained_variance", format: number },
];

/** A chart for each metric, a line for each run. */
export function CompareCharts({ names, tables, version, group }) {
  return html`<div class="charts">
    ${CHARTS.map(({ metric, isPoints, ...chart }) => html`<${Chart} key=${chart.name} ...${chart} ...${{ version, group }}
      series=${tables.map((table, k) => ({ label: names[k], isPoints, ...table.get(metric) }))} />`)}
  </div>`;
}

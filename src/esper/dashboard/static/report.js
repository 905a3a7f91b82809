/** Where a report starts: draws into the places that its page has, from the values that are in it. */

import { html, render } from "./html.js";
import { useChartGroup } from "./chart_group.js";
import { ZoomBar } from "./charts.js";
import { Episode } from "./components/episode.js";
import { HealthCharts } from "./components/health.js";
import { Learned } from "./components/learned.js";
import { StagePatterns } from "./components/stages.js";
import { ArmDifferences, Differences } from "./components/verdict.js";
import { metricTable } from "./metrics.js";
import { startTheme } from "./theme.js";
import { CompareCharts } from "./views/compare_charts.js";
import { RunCharts, stepsPerRound } from "./views/run_charts.js";

/** What can be drawn, by the name that an element asks for; each gives nothing where there is nothing. */
const DRAWINGS = {
  charts: (runs, run) => (run ? html`<${Charts} run=${run} />` : html`<${AllCharts} runs=${runs} />`),
  episode: (runs, run, number) => {
    const one = run?.episodes?.[number];
    return one && html`<${Episode} detail=${one.detail} overview=${run.overview} title=${one.title} />`;
  },
  learned: (runs, run) => run?.learned?.parts.length > 0 && html`<${Learned} learned=${run.learned} />`,
  differences: (runs, run) =>
    run?.comparison?.differences.length > 0 && html`<${Differences} differences=${run.comparison.differences} />`,
  health: (runs, run) => run?.health && html`<${Health} health=${run.health} />`,
};

function Charts({ run }) {
  const group = useChartGroup();
  const table = metricTable(run.metrics);
  return html`<${Zoom} group=${group} last=${table.roundsDone} />
    <${RunCharts} ...${{ table, group }} version=${1} klLimit=${run.overview.kl_limit} steps=${stepsPerRound(run.overview)} reward=${run.overview.reward ?? null} grows=${run.overview.grows ?? true} learns=${run.overview.learns ?? true} />`;
}

function AllCharts({ runs }) {
  const group = useChartGroup();
  const tables = runs.map((run) => metricTable(run.metrics));
  return html`<${Zoom} group=${group} last=${Math.max(...tables.map(({ roundsDone }) => roundsDone))} />
    <${CompareCharts} ...${{ tables, group }} names=${runs.map(({ name }) => name)} rewards=${runs.map(({ overview }) => overview?.reward ?? null)} version=${1} />`;
}

function Health({ health }) {
  const group = useChartGroup();
  return html`<${Zoom} group=${group} last=${health.throughput.rounds.at(-1) ?? 0} />
    <${HealthCharts} health=${health} group=${group} />`;
}

function Zoom({ group, last }) {
  return html`<div class="report-zoom"><${ZoomBar} group=${group} last=${last} /></div>`;
}

function drawingOf({ report, run, episode, evaluation }, { runs, evaluations }) {
  if (report === "arms") return html`<${ArmDifferences} differences=${evaluations[Number(evaluation)].differences} />`;
  return DRAWINGS[report]?.(runs, run === undefined ? null : runs[Number(run)], Number(episode));
}

/** Fills one place; what stands there stays if it cannot be drawn. */
function draw(place, values) {
  const element = drawingOf(place.dataset, values);
  if (!element) return;
  const instead = [...place.childNodes];
  place.replaceChildren();
  try {
    render(element, place);
  } catch (error) {
    place.replaceChildren(...instead);
    throw error;
  }
}

/** Lets paper be light, whatever the screen is. */
function printLight() {
  const { dataset } = document.documentElement;
  let shown = dataset.theme;
  window.addEventListener("beforeprint", () => {
    shown = dataset.theme;
    dataset.theme = "light";
  });
  window.addEventListener("afterprint", () => {
    dataset.theme = shown;
  });
}

/** Draws everything there is to draw. */
function start() {
  const values = JSON.parse(document.getElementById("report-data").textContent);
  startTheme();
  printLight();
  const patterns = document.createElement("div");
  document.body.append(patterns);
  render(html`<${StagePatterns} />`, patterns);
  document.querySelectorAll("[data-report]").forEach((place) => draw(place, values));
}

start();

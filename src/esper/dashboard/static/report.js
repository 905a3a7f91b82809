/** Where a report starts: the page's own screens, one below the other, with the data that is in the file. */

import { html, render, useEffect } from "./html.js";
import { answerFrom, runPath } from "./api.js";
import { Mark, ThemeButton } from "./components/bar.js";
import { Episode } from "./components/episode.js";
import { Empty } from "./components/messages.js";
import { StagePatterns } from "./components/stages.js";
import { EvaluationVerdict } from "./components/verdict.js";
import { moment } from "./format.js";
import { live } from "./live.js";
import { address, hasScreen } from "./router.js";
import { startTheme } from "./theme.js";
import { Compared } from "./views/compare.js";
import { HealthScreen } from "./views/health.js";
import { LearnedScreen } from "./views/learned.js";
import { RunScreen } from "./views/run.js";
import { SettingsScreen } from "./views/settings.js";

const data = JSON.parse(document.getElementById("report-data").textContent);

const SCREENS = {
  "": ["Overview", RunScreen],
  growth: ["Growth", EpisodesScreen],
  learned: ["Learned", LearnedScreen],
  health: ["Health", HealthScreen],
  settings: ["Settings", SettingsScreen],
};

function screensOf({ run }) {
  return Object.entries(SCREENS).filter(([name]) => hasScreen(name, run));
}

function addressOf(id, name) {
  return address(name ? ["run", id, name] : ["run", id]);
}

/** The whole report. */
function Report() {
  const { runs } = data;
  useEffect(() => document.getElementById(decodeURIComponent(window.location.hash.slice(1)))?.scrollIntoView(), []);
  return html`
    <header class="bar">
      <span class="bar-home"><${Mark} />Esper</span>
      <nav class="tabs" aria-label="Contents">${runs.length === 1
        ? screensOf(runs[0]).map(([name, [label]]) => html`<a class="tab" href=${addressOf(runs[0].id, name)}>${label}</a>`)
        : html`<a class="tab" href="#/compare">Compare</a>
          ${runs.map(({ id, run }) => html`<a class="tab" href=${addressOf(id)}>${run.name}</a>`)}`}</nav>
      <div class="bar-rest"><span class="muted small">Report of ${moment(data.made_at)}, Esper ${data.esper_version}</span><${ThemeButton} /></div>
    </header>
    <${StagePatterns} />
    <main class="screen report">
      ${runs.length > 1 && html`<${Together} runs=${runs.map(({ run }) => run)} />`}
      ${runs.map((one) => html`<${Run} key=${one.id} one=${one} />`)}
    </main>`;
}

/** All runs side by side. */
function Together({ runs }) {
  return html`<section class="report-screen" id="/compare">
    <div class="screen-head"><h1>Compare</h1></div>
    ${data.evaluations.length > 0 && html`<div class="verdicts">${data.evaluations.map((one) => html`<${EvaluationVerdict} evaluation=${one} />`)}</div>`}
    <${Compared} runs=${runs} ids=${runs.map(({ id }) => id)} mark=${null} />
  </section>`;
}

function Run({ one }) {
  return screensOf(one).map(([name, [, Shown]]) => html`<section class="report-screen" key=${name} id=${addressOf(one.id, name).slice(1)}>
    <${Shown} id=${one.id} />
  </section>`);
}

/** A typical and the best episode of a run, step by step. */
function EpisodesScreen({ id }) {
  const { episodes, run } = data.runs.find((one) => one.id === id);
  return html`<div class="screen-head"><h1>Growth</h1></div>
    ${episodes.length === 0 && html`<div class="panel"><${Empty} title="No episode has ended yet." /></div>`}
    <div class="stack">${episodes.map(({ title, detail }) => html`<${Episode} key=${title} detail=${detail} overview=${run.overview} title=${title} />`)}</div>`;
}

answerFrom(Object.fromEntries(data.runs.flatMap(({ id, run, metrics, learned, health }) => [
  [runPath(id), run], [runPath(id, "metrics"), metrics], [runPath(id, "learned"), learned], [runPath(id, "health"), health],
])));
live.show(Object.fromEntries(data.runs.map(({ id, run }) => [id, run])));
startTheme();
render(html`<${Report} />`, document.getElementById("app"));

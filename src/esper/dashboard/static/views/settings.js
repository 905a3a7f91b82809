/** Settings: the configuration of a run, what it can grow, and the versions it was made with. */

import { classes, html, useState } from "../html.js";
import { runPath } from "../api.js";
import { Sessions } from "../components/health.js";
import { Empty, Problem, Waiting } from "../components/messages.js";
import { Notes } from "../components/notes.js";
import { TableBox } from "../components/table_box.js";
import { useQuery } from "../data.js";
import { many, moment } from "../format.js";
import { useRoundMark } from "../live.js";
import { readSettings, settingName } from "../toml.js";
import { plain } from "../words.js";

/** The settings of a run. */
export function SettingsScreen({ id }) {
  const { data: run, error } = useQuery(runPath(id), useRoundMark(id));
  const [wanted, setWanted] = useState("");
  const [onlyDiffering, setOnlyDiffering] = useState(false);
  if (!run) return error ? html`<${Problem} error=${error} />` : html`<${Waiting} height=${600} />`;
  if (!run.overview) {
    return html`<div class="panel"><${Empty} title="No records yet.">
      The settings appear with the first records.<//></div>`;
  }
  const { preset } = run.overview;
  return html`
    <div class="screen-head"><h1>Settings</h1>
      <span class="muted small">started ${moment(run.created_at)} with Esper ${run.overview.esper_version}</span>
      <div class="rest">
        ${preset && Object.keys(preset.differs).length > 0 && html`<label class="field"><input type="checkbox" checked=${onlyDiffering}
          onChange=${(event) => setOnlyDiffering(event.currentTarget.checked)} />only what differs from ${preset.name}</label>`}
        <label class="field">find <input type="search" value=${wanted} placeholder="name or text"
          onInput=${(event) => setWanted(event.currentTarget.value)} /></label></div></div>
    <${Problem} error=${error} />
    <div class="stack">
      ${preset && html`<${PresetWords} preset=${preset} />`}
      <${Notes} key=${id} run=${run} />
      <${Table} text=${run.overview.config_toml} ...${{ wanted, preset, onlyDiffering }} />
      ${preset && html`<section class="panel"><div class="panel-head"><h2>Train again</h2>
        <span class="muted small">the same versions, threads and kind of processor give the same numbers</span></div>
        <pre class="command" tabindex="0">${preset.command}</pre></section>`}
      <${Choices} overview=${run.overview} />
      <${Sessions} sessions=${run.overview.sessions} />
      <details class="panel"><summary>config.toml</summary>
        <pre class="toml" tabindex="0">${run.overview.config_toml}</pre></details>
    </div>`;
}

/** Says how the run differs from a preset. */
function PresetWords({ preset }) {
  const names = Object.keys(preset.differs);
  const words = names.length === 0
    ? html`These are the settings of the preset <strong>${preset.name}</strong>.`
    : html`The nearest preset is <strong>${preset.name}</strong>; ${many(names.length, "setting")}${" "}
      ${names.length === 1 ? "differs" : "differ"}: ${names.map((name, k) => html`${k > 0 ? ", " : ""}<code>${name}</code>`)}.`;
  return html`<p class="conclusion-line" data-test="preset">${words}</p>`;
}

function Table({ text, wanted, preset, onlyDiffering }) {
  const words = wanted.trim().toLowerCase();
  const differs = preset?.differs ?? {};
  const hasPreset = Object.keys(differs).length > 0;
  const isDiffering = (one) => settingName(one) in differs;
  const settings = readSettings(text)
    .filter((one) => `${settingName(one)} ${one.comment}`.toLowerCase().includes(words))
    .filter((one) => !onlyDiffering || isDiffering(one));
  if (settings.length === 0) return html`<div class="panel"><${Empty} title="No matching setting." /></div>`;
  return html`<${TableBox} label="Settings" className="panel"><table class="plain settings">
    <thead><tr><th scope="col">setting</th><th scope="col">value</th>
      ${hasPreset && html`<th scope="col">in ${preset.name}</th>`}<th scope="col">description</th></tr></thead>
    <tbody>${settings.map((one, k) => html`<tr key=${settingName(one)}
      class=${classes(isDiffering(one) && "differs", one.section !== settings[k - 1]?.section && "section-start")}>
      <th scope="row"><code>${one.section && html`<span class="muted">${one.section}.</span>`}${one.key}</code></th>
      <td><code>${one.value}</code></td>
      ${hasPreset && html`<td data-name=${`in ${preset.name}:`}><code class="muted">${isDiffering(one) ? (differs[settingName(one)] ?? "–") : ""}</code></td>`}
      <td class="muted small">${one.comment}</td></tr>`)}</tbody>
  </table><//>`;
}

function Choices({ overview }) {
  return html`<section class="panel">
    <div class="panel-head"><h2>Actions</h2><span class="muted small">the heads of an action and their choices</span></div>
    <dl class="choices">${overview.heads.map((head) => html`<div key=${head}><dt>${plain(head)}</dt>
      <dd>${(overview.choices?.[head] ?? []).map((name) => html`<span class="listed-choice">${plain(name)}</span>${" "}`)}</dd></div>`)}</dl>
  </section>`;
}

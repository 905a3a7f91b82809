/** The comparison at a run's end in numbers: controllers on the same held-out hosts. */

import { html } from "../html.js";
import { number, percent, withMinus } from "../format.js";
import { arm } from "../words.js";
import { TableBox } from "./table_box.js";

/** The table of controllers; nothing without a comparison. */
export function Comparison({ comparison }) {
  if (!comparison) return null;
  return html`<div class="stack">
    ${comparison.arms?.length > 0 && html`<${Final} comparison=${comparison} />`}
    ${(comparison.problems ?? []).map((line) => html`<p class="message error">${line}</p>`)}
  </div>`;
}

function Final({ comparison }) {
  // The first two are in the verdict.
  const others = [...(comparison.sentences ?? []).slice(2), ...(comparison.notes ?? [])];
  return html`<section class="panel">
    <div class="panel-head"><h2>Comparison at the end</h2>
      <span class="muted small">${comparison.n_hosts} held-out hosts, ${comparison.split} split;
        brackets: 95% confidence intervals</span></div>
    <${TableBox} label="Controllers"><table class="plain">
      <thead><tr><th scope="col">controller</th><th scope="col" class="n">return</th>
        <th scope="col" class="n">score</th>
        <th scope="col" class="n">FLOPs</th><th scope="col" class="n">epochs</th><th scope="col" class="n">added parameters</th>
        <th scope="col" class="n">hosts grown</th></tr></thead>
      <tbody>${comparison.arms.map((one) => html`<tr key=${one.name}>
        <th scope="row">${arm(one.name)}</th>
        <td class="n">${interval(one.ep_rew)}</td>
        <td class="n">${number(one.score?.mean)}</td>
        <td class="n">${number(one.flops, 2)}</td>
        <td class="n">${number(one.n_epochs, 1)}</td>
        <td class="n">${percent(one.seed_parameters / one.host_parameters)}</td>
        <td class="n">${percent(one.grown_share)}</td>
      </tr>`)}</tbody>
    </table><//>
    ${others.map((line) => html`<p class="muted small comparison-words">${withMinus(line)}</p>`)}
  </section>`;
}

function interval(value) {
  if (!value) return "";
  return html`${number(value.mean)} <span class="muted small">[${number(value.low)}, ${number(value.high)}]</span>`;
}

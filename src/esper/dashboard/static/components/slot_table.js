/** The slots after a step: what lives in them, how strongly, and what it contributes. */

import { classes, html } from "../html.js";
import { isNumber, number, signed, whole } from "../format.js";
import { plain } from "../words.js";
import { StageSwatch } from "./stages.js";
import { TableBox } from "./table_box.js";

/** A row for each slot, with its contribution as a bar in two directions from zero. */
export function SlotTable({ states, names, chosen }) {
  const reach = Math.max(0.05, ...states.map(({ contribution }) => Math.abs(contribution ?? 0)));
  return html`<${TableBox} label="Slots"><table class="plain small slot-table">
    <thead><tr><th scope="col">slot, seed</th><th scope="col">stage</th>
      <th scope="col" class="n">alpha</th><th scope="col" class="n wide-only">parameters</th>
      <th scope="col" colspan="2" title="Score with the seed minus the score without it, as last measured.">
        contribution</th></tr></thead>
    <tbody>${states.map((state, k) => html`<tr key=${names[k]} class=${classes(names[k] === chosen && "slot-chosen")}>
      <th scope="row">${names[k] === chosen ? "▸ " : ""}${names[k]}
        <div class="slot-seed">${plain(state.blueprint ?? "–")}${fossilWords(state)}</div></th>
      <td class="slot-stage"><${StageSwatch} stage=${state.stage} /> ${state.stage}</td>
      <td class="n">${state.blueprint ? number(state.alpha, 2) : ""}</td>
      <td class="n wide-only">${state.blueprint && isNumber(state.parameters) ? whole(state.parameters) : ""}</td>
      <td class="slot-bar"><${Diverging} value=${state.blueprint ? state.contribution : null} reach=${reach} /></td>
      <td class="n">${state.blueprint && isNumber(state.contribution) ? signed(state.contribution) : ""}</td>
    </tr>`)}</tbody>
  </table><//>`;
}

/** How many seeds have become part of the slot's block; nothing without any. */
export function fossilWords({ n_fossils: n }) {
  return n ? `, on ${n} ${n === 1 ? "fossil" : "fossils"}` : "";
}

function Diverging({ value, reach }) {
  const width = isNumber(value) ? (50 * Math.abs(value)) / reach : 0;
  return html`<svg class="diverging" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
    <rect x=${value < 0 ? 50 - width : 50} y="1" width=${width} height="8" fill=${value < 0 ? "#d55e00" : "#009e73"} />
    <line class="terms-zero" x1="50" x2="50" y1="0" y2="10" />
  </svg>`;
}

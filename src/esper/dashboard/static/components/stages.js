/** The stages of a seed's life as colour and pattern, so that neither is needed alone. */

import { html } from "../html.js";
import { STAGE_COLOURS } from "../colours.js";
import { STAGES } from "../words.js";

const INK = "rgb(0 0 0 / 55%)";
const MARKS = {
  dormant: null,
  germinated: html`<circle cx="4" cy="4" r="1.2" fill=${INK} />`,
  training: html`<path d="M-2 2L2 -2M0 8L8 0M6 10L10 6" stroke=${INK} stroke-width="1" />`,
  blending: html`<path d="M0 4H8" stroke=${INK} stroke-width="1" />`,
  holding: null,
  fossilized: html`<path d="M0 4H8M4 0V8" stroke=${INK} stroke-width="0.8" />`,
  pruned: html`<path d="M-2 6L2 10M0 0L8 8M6 -2L10 2" stroke=${INK} stroke-width="1.2" />`,
  embargoed: html`<path d="M2 2L6 6M6 2L2 6" stroke=${INK} stroke-width="0.8" />`,
  resetting: html`<path d="M4 0V8" stroke=${INK} stroke-width="0.8" />`,
};

/** Gives the fill of a stage: its colour with its pattern. Needs StagePatterns in the page. */
export function stageFill(stage) {
  return `url(#stage-${stage in MARKS ? stage : "dormant"})`;
}

/** The patterns that fills refer to; once in a page. */
export function StagePatterns() {
  return html`<svg class="patterns" width="0" height="0" aria-hidden="true"><defs>
    ${Object.entries(MARKS).map(([stage, mark]) => html`<pattern key=${stage} id=${`stage-${stage}`} width="8" height="8"
      patternUnits="userSpaceOnUse"><rect width="8" height="8" fill=${STAGE_COLOURS[stage]} />${mark}</pattern>`)}
    <pattern id="masked" width="6" height="6" patternUnits="userSpaceOnUse">
      <path d="M-1 1L1 -1M0 6L6 0M5 7L7 5" stroke="currentColor" stroke-width="1" opacity="0.35" /></pattern>
  </defs></svg>`;
}

/** A small square in the look of a stage. */
export function StageSwatch({ stage, size = 14 }) {
  const isEmpty = stage === "dormant";
  return html`<svg class="stage-swatch" width=${size} height=${size} aria-hidden="true">
    <rect x="1" y="1" width=${size - 2} height=${size - 2} rx="2.5" fill=${isEmpty ? "none" : stageFill(stage)}
      stroke="#85898e" stroke-dasharray=${isEmpty ? "2 2" : null} />
  </svg>`;
}

/** Says what the looks of stages mean. */
export function StageLegend({ stages = Object.keys(STAGES) }) {
  return html`<ul class="stage-legend" aria-label="Stages">
    ${Object.keys(STAGES).filter((stage) => stages.includes(stage)).map((stage) => html`<li key=${stage} title=${STAGES[stage]}>
      <${StageSwatch} stage=${stage} />${stage}</li>`)}
  </ul>`;
}

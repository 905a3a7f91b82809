/** Shapes for what a step did: each op has its own, so that colour is not needed. */

import { html } from "../html.js";

const SHAPES = {
  germinate: html`<path d="M0 -6L5.5 4H-5.5Z" fill="currentColor" />`,
  fossilize: html`<path d="M0 -6L6 0L0 6L-6 0Z" fill="currentColor" />`,
  prune: html`<path d="M-4.5 -4.5L4.5 4.5M4.5 -4.5L-4.5 4.5" stroke="currentColor" stroke-width="2.4" />`,
  advance: html`<path d="M-3.5 -5L5 0L-3.5 5Z" fill="currentColor" />`,
  set_alpha_target: html`<path d="M-5 -2.2H5M-5 2.2H5" stroke="currentColor" stroke-width="2" />`,
  finish: html`<rect x="-5" y="-5" width="10" height="10" fill="currentColor" />`,
  wait: html`<circle r="1.6" fill="currentColor" />`,
  refused: html`<circle r="4" fill="none" stroke="currentColor" stroke-width="1.6" />`,
  governor: html`<path d="M0 -6L6 5H-6Z" fill="none" stroke="currentColor" stroke-width="1.6" /><path
    d="M0 -2V2M0 3V4.4" stroke="currentColor" stroke-width="1.6" />`,
};

const OPS = new Set(Object.keys(SHAPES).filter((kind) => kind !== "refused" && kind !== "governor"));

/** Which mark a step has: its op, or that it was refused. */
export function markOf(step) {
  return step.refusal || step.is_illegal ? "refused" : step.op_done;
}

/** A mark with its middle at a place of a drawing. */
export function MarkAt({ kind, x, y, title, className = "mark", isOnColour = false }) {
  return html`<g class=${className} transform=${`translate(${x} ${y})`}>
    ${title && html`<title>${title}</title>`}${isOnColour && html`<circle class="mark-ground" r="9" />`}${SHAPES[kind] ?? SHAPES.wait}</g>`;
}

/** Says what the marks mean; by default those of all ops. */
export function MarkLegend({ kinds = OPS }) {
  return html`<ul class="stage-legend" aria-label="Marks">
    ${Object.keys(SHAPES).filter((kind) => kinds.has(kind)).map((kind) => html`<li key=${kind}>
      <svg width="16" height="16" viewBox="-8 -8 16 16" aria-hidden="true">${SHAPES[kind]}</svg>${kind.replaceAll("_", " ")}</li>`)}
  </ul>`;
}

/** Numbers with their names, in a row. */

import { html } from "../html.js";

/** A row of facts. */
export function Facts({ children, label }) {
  return html`<dl class="facts" aria-label=${label}>${children}</dl>`;
}

/** One number, its name, and what it stands beside. */
export function Fact({ name, note, title, children }) {
  return html`<div class="fact" title=${title}>
    <dt>${name}${note && html`<div class="fact-note">${note}</div>`}</dt>
    <dd>${children}</dd>
  </div>`;
}

/** How far something is, from 0 to 1. */
export function Progress({ share, label }) {
  const shown = Math.min(1, Math.max(0, share || 0));
  return html`<span class="progress" role="progressbar" aria-label=${label} aria-valuemin="0" aria-valuemax="100"
    aria-valuenow=${Math.round(100 * shown)}><span style=${{ width: `${100 * shown}%` }}></span></span>`;
}

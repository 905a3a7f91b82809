/** The state of a run, by word, shape and colour. */

import { html } from "../html.js";
import { STATES } from "../words.js";

const SHAPES = {
  running: html`<path d="M2 1L9 5L2 9Z" fill="currentColor" />`,
  done: html`<path d="M1 5.5L4 8.5L9 1.5" fill="none" stroke="currentColor" stroke-width="2" />`,
  interrupted: html`<path d="M2 1h2.2v8H2zM5.8 1H8v8H5.8z" fill="currentColor" />`,
  failed: html`<path d="M1 1L9 9M9 1L1 9" stroke="currentColor" stroke-width="2" />`,
  killed: html`<path d="M1.5 1.5h7v7h-7z" fill="currentColor" />`,
  empty: html`<circle cx="5" cy="5" r="3.5" fill="none" stroke="currentColor" stroke-width="1.5" />`,
  unreadable: html`<path d="M4 1h2v5H4zM4 7.5h2v2H4z" fill="currentColor" />`,
};

/** A state with its sign. */
export function StateBadge({ state }) {
  return html`<span class=${`badge ${state}`} title=${STATES[state] ?? ""}>
    <svg width="10" height="10" viewBox="0 0 10 10" aria-hidden="true">${SHAPES[state] ?? null}</svg>${state}
  </span>`;
}

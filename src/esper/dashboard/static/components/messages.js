/** What is said when there is nothing to show, or when something went wrong. */

import { classes, html } from "../html.js";

/** Says that there is nothing, and what to do. */
export function Empty({ title, children }) {
  return html`<div class="empty"><strong>${title}</strong>${children}</div>`;
}

/** Says what went wrong, above what was known before. */
export function Problem({ error }) {
  if (!error) return null;
  return html`<p class=${classes("message", error.status !== 404 && "error")} role="alert">${error.message}</p>`;
}

/** Holds the place of what is on its way. */
export function Waiting({ height = 320, what = "Loading" }) {
  return html`<div class="empty" style=${{ minHeight: `${height}px` }} aria-busy="true">${what} …</div>`;
}

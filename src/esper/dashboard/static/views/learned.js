/** A screen that is to come. */

import { html } from "../html.js";

/** Nothing yet. */
export function LearnedScreen() {
  return html`<p>Learned</p>`;
}

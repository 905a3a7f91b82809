/** A screen that is to come. */

import { html } from "../html.js";

/** Nothing yet. */
export function CompareScreen() {
  return html`<p>Compare</p>`;
}

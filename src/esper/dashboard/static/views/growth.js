/** A screen that is to come. */

import { html } from "../html.js";

/** Nothing yet. */
export function GrowthScreen() {
  return html`<p>Growth</p>`;
}

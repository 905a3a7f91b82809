/** A screen that is to come. */

import { html } from "../html.js";

/** Nothing yet. */
export function HealthScreen() {
  return html`<p>Health</p>`;
}

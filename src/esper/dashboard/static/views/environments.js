/** A screen that is to come. */

import { html } from "../html.js";

/** Nothing yet. */
export function EnvironmentsScreen() {
  return html`<p>Environments</p>`;
}

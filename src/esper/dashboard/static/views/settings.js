/** A screen that is to come. */

import { html } from "../html.js";

/** Nothing yet. */
export function SettingsScreen() {
  return html`<p>Settings</p>`;
}

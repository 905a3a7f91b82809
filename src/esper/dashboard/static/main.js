/** Where the page starts. */

import { html, render } from "./html.js";
import { takeToken } from "./api.js";
import { App } from "./app.js";
import { live } from "./live.js";
import { startTheme } from "./theme.js";

startTheme();
takeToken();
live.start();
const place = document.getElementById("app");
place.replaceChildren();
render(html`<${App} />`, place);

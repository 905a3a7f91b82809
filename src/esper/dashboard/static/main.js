/** Where the page starts. */

import { html, render } from "./html.js";
import { takeKey } from "./api.js";
import { App } from "./app.js";
import { live } from "./live.js";
import { startTheme } from "./theme.js";

startTheme();
takeKey();
live.start();
const place = document.getElementById("app");
place.replaceChildren();
render(html`<${App} />`, place);

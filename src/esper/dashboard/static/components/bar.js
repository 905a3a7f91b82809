/** What is in the bar at the top: the mark, the connection, light or dark. */

import { classes, html, useState } from "../html.js";
import { useConnection, useReason } from "../live.js";
import { chooseTheme, chosenTheme } from "../theme.js";

const NEXT = { auto: "light", light: "dark", dark: "auto" };

/** The mark of the project: a seedling. */
export function Mark() {
  return html`<svg width="22" height="22" viewBox="0 0 32 32" aria-hidden="true">
    <path d="M16 29V12" stroke="currentColor" stroke-width="3" stroke-linecap="round" />
    <path d="M16 17C9 17 6 12 6 6c7 0 10 5 10 11z" fill="#56b4e9" />
    <path d="M16 22c7 0 10-5 10-11-7 0-10 5-10 11z" fill="#009e73" />
  </svg>`;
}

/** Says whether the server is there: by word and by shape. */
export function ConnectionState() {
  const state = useConnection();
  return html`<span class=${classes("connection", state)} role="status">
    <svg width="10" height="10" viewBox="0 0 10 10" aria-hidden="true">
      ${state === "live"
        ? html`<circle cx="5" cy="5" r="4.5" fill="#009e73" />`
        : state === "connecting"
          ? html`<circle cx="5" cy="5" r="3.5" fill="none" stroke="currentColor" stroke-width="2" />`
          : html`<path d="M1 1L9 9M9 1L1 9" stroke="currentColor" stroke-width="2" />`}
    </svg>
    <span data-test="connection">${state === "live" ? "connected" : state}</span>
  </span>`;
}

/** Says what to do when the server is gone; what is on the page stays. */
export function ConnectionBanner() {
  const isGone = useConnection() === "disconnected";
  const reason = useReason();
  if (!isGone) return null;
  return html`<p class="banner" role="alert">${reason ?? "The server is not responding."}
    <span class="muted"> The page shows the last known state and updates when the server is back.</span>
  </p>`;
}

/** Chooses between what the system says, light and dark. */
export function ThemeButton() {
  const [theme, setTheme] = useState(chosenTheme());
  const turn = () => {
    chooseTheme(NEXT[theme]);
    setTheme(NEXT[theme]);
  };
  return html`<button type="button" class="button quiet theme" data-test="theme" onClick=${turn}
    title=${`Colours: ${theme}. Click for ${NEXT[theme]}.`}>
    <svg width="14" height="14" viewBox="0 0 14 14" aria-hidden="true">
      <circle cx="7" cy="7" r="6" fill="none" stroke="currentColor" stroke-width="1.5" />
      <path d="M7 1a6 6 0 0 1 0 12z" fill="currentColor" />
    </svg>
    <span><span class="hidden-text">colours: </span>${theme}</span>
  </button>`;
}

/** Light or dark: what the system says until the person says otherwise. */

import { useEffect, useState } from "./html.js";

const KEY = "esper-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set();
let isPaper = false;

/** Gives what the person chose: "light", "dark", or "auto" for what the system says. */
export function chosenTheme() {
  try {
    const value = window.localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : "auto";
  } catch {
    return document.documentElement.dataset.theme ?? "auto";
  }
}

/** Gives the theme that is shown: "light" or "dark". */
export function shownTheme() {
  if (isPaper) return "light";
  const chosen = chosenTheme();
  return chosen === "auto" ? (system.matches ? "dark" : "light") : chosen;
}

/** Chooses a theme and remembers it. */
export function chooseTheme(value) {
  try {
    if (value === "auto") window.localStorage.removeItem(KEY);
    else window.localStorage.setItem(KEY, value);
  } catch {
    // Storage may be forbidden; the choice then lasts as long as the page.
  }
  document.documentElement.dataset.theme = value;
  listeners.forEach((tell) => tell());
}

/** Shows the theme that was chosen, and on paper the light one; call once at the start. */
export function startTheme() {
  const print = (now) => {
    isPaper = now;
    document.documentElement.dataset.theme = now ? "light" : chosenTheme();
  };
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  document.documentElement.dataset.theme = chosenTheme();
  system.addEventListener("change", () => listeners.forEach((tell) => tell()));
}

/** Gives the theme that is shown, and renders again when it changes. */
export function useTheme() {
  const [theme, setTheme] = useState(shownTheme());
  useEffect(() => {
    const tell = () => setTheme(shownTheme());
    listeners.add(tell);
    tell();
    return () => listeners.delete(tell);
  }, []);
  return theme;
}

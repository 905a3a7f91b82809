/** The words and keys of the page, shown by a question mark. */

import { html, useState } from "../html.js";
import { GLOSSARY } from "../glossary.js";
import { useKeys } from "../keys.js";
import { Dialog } from "./dialog.js";

const KEYS = [
  ["Everywhere", [["?", "show this help"], ["/", "search, where a screen has a search box"], ["Tab", "next control; a list is one stop"],
    ["arrows, Home, End", "within a list"], ["Esc", "close a dialog"]]],
  ["Growth", [["← →", "previous or next step"], ["Space", "play or pause"], ["Home, End", "first or last step, on the timeline"],
    ["j k", "next or previous episode in the list"]]],
  ["Charts", [["drag", "zoom into rounds, in all charts of the screen"], ["double click", "show all rounds"]]],
];

/** A button in the bar, and the key that does the same. */
export function Help() {
  const [isOpen, setOpen] = useState(false);
  useKeys({
    "?": () => setOpen(true),
    "/": () => document.querySelector("main input[type=search]")?.focus(),
  });
  return html`<button type="button" class="button quiet help-button" aria-label="Help" title="Words and keys (?)"
      onClick=${() => setOpen(true)}>?</button>
    ${isOpen && html`<${Dialog} label="Help" className="narrow" onClose=${() => setOpen(false)}>
      <h2>Keyboard shortcuts</h2>
      ${KEYS.map(([title, keys]) => html`<section class="help-part" key=${title}><h3>${title}</h3>
        <dl class="keys">${keys.map(([key, words]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${words}</dd></div>`)}</dl>
      </section>`)}
      <${Words} /><//>`}`;
}

/** The glossary, with a box that filters it. */
function Words() {
  const [query, setQuery] = useState("");
  const wanted = query.trim().toLowerCase();
  const found = Object.entries(GLOSSARY).filter(([word, about]) => `${word} ${about}`.toLowerCase().includes(wanted));
  found.sort(([a], [b]) => b.toLowerCase().startsWith(wanted) - a.toLowerCase().startsWith(wanted));
  return html`<h2>Glossary</h2>
    <label class="field">find <input type="search" value=${query} placeholder="slot, price, ..."
      onInput=${(event) => setQuery(event.target.value)} /></label>
    <dl class="words" aria-live="polite">${found.map(([word, about]) => html`<div key=${word}><dt>${word}</dt><dd>${about}</dd></div>`)}</dl>
    ${found.length === 0 && html`<p>No such word.</p>`}`;
}

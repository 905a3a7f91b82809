/** The notes on a run, its file notes.md. A #word in them is a tag of the run. */

import { html, useState } from "../html.js";
import { isReport, put, runPath } from "../api.js";
import { Problem } from "./messages.js";

const MAX_LETTERS = 4000;

const TAG = "(?:^|\\s)#([\\p{L}\\p{N}][\\p{L}\\p{N}_.-]*)";

/** Gives the tags in notes, each once; the # of a heading is followed by a space. */
export function tagsIn(notes) {
  const found = (notes ?? "").matchAll(new RegExp(TAG, "gu"));
  return [...new Set([...found].map(([, tag]) => tag.replace(/\.+$/, "")))];
}

/** Gives the first line of notes without the tags at its end, which are shown by themselves. */
export function firstLine(notes) {
  const [line] = notes.split("\n", 1);
  return line.replace(/^#+\s+/, "").replace(new RegExp(`(?:${TAG})+\\s*$`, "u"), "");
}

/** The notes with a button to edit them. In a report, they can be read only. */
export function Notes({ run }) {
  const [saved, setSaved] = useState(undefined); // until the run is read again
  const [draft, setDraft] = useState(null);
  const [error, setError] = useState(null);
  const notes = saved === undefined ? run.notes : saved;
  if (isReport() && !notes) return null;
  const save = async () => {
    try {
      setSaved((await put(runPath(run.id, "notes"), draft)).notes);
      setDraft(null);
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  };
  return html`<section class="panel" data-test="notes"><div class="panel-head"><h2>Notes</h2>
      <span class="muted small">notes.md; #words are tags</span>
      ${!isReport() && draft === null && html`<button type="button" class="button" onClick=${() => setDraft(notes ?? "")}>Edit</button>`}</div>
    <${Problem} error=${error} />
    ${draft === null
      ? html`<p class=${notes ? "notes" : "muted"}>${notes || "None yet."}</p>`
      : html`<textarea class="notes-text" rows="6" maxlength=${MAX_LETTERS} aria-label="Notes" value=${draft}
          onInput=${(event) => setDraft(event.currentTarget.value)}></textarea>
        <p class="notes-buttons"><button type="button" class="button main" onClick=${save}>Save</button>${" "}
          <button type="button" class="button" onClick=${() => setDraft(null)}>Cancel</button></p>`}
  </section>`;
}

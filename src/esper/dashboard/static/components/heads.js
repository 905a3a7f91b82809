/** The heads of a decision: how likely each choice was, which were masked, which was drawn. */

import { classes, html, useState } from "../html.js";
import { probability } from "../format.js";
import { plain } from "../words.js";

/** All heads: op first, because it is drawn first and says which others are read. slots: the host's own names. */
export function Heads({ step, overview, slots = [] }) {
  const names = ["op", ...(overview?.heads ?? Object.keys(step.choices)).filter((head) => head !== "op")];
  if (!step.probabilities) return html`<${Chosen} ...${{ step, overview, names }} />`;
  const relevant = new Set(step.relevant);
  return html`<div class="heads">
    ${names.map((head) => html`<${Head} key=${head} ...${{ head, step, isRead: relevant.has(head) }}
      choices=${namesOf(head, overview, slots)} />`)}
  </div>`;
}

/** The names of a head's choices; a host may name its slots otherwise than the run, and have fewer. */
function namesOf(head, overview, slots) {
  const names = overview?.choices?.[head] ?? [];
  return head === "slot" ? names.map((name, k) => slots[k] ?? name) : names;
}

function Head({ head, step, isRead, choices }) {
  const chosen = step.choices[head];
  const values = step.probabilities[head] ?? [];
  const words = isRead ? "" : `(unused by ${plain(step.op)})`;
  const [isOpen, setOpen] = useState(false);
  const nMasked = values.filter((value) => value === null).length;
  return html`<section class=${classes("head", !isRead && "unread")} aria-label=${plain(head)}>
    <h3>${plain(head)} <span class="small">${words}</span></h3>
    <ul>${values.map((value, k) => html`<${Choice} key=${k} name=${choices[k] ?? String(k)} value=${value}
      isChosen=${k === chosen} isFolded=${value === null && k !== chosen && !isOpen} isRead=${isRead} />`)}</ul>
    ${nMasked > 0 && html`<button type="button" class="button fold" aria-expanded=${isOpen}
      onClick=${() => setOpen(!isOpen)}>${isOpen ? "hide" : "show"} ${nMasked} masked</button>`}
  </section>`;
}

function Choice({ name, value, isChosen, isFolded, isRead }) {
  const isMasked = value === null;
  return html`<li hidden=${isFolded} class=${classes("choice", isMasked && "masked", isChosen && "chosen")}>
    <span class="choice-mark" aria-hidden="true">${isChosen ? "▸" : ""}</span>
    <span class="choice-name" title=${name}>${isMasked ? html`<s>${plain(name)}</s>` : plain(name)}</span>
    <span class="choice-track"><span style=${{ width: `${100 * (value ?? 0)}%` }}></span></span>
    <span class="choice-value">${isMasked ? "masked" : probability(value)}</span>
    ${isChosen && html`<span class="hidden-text">${isRead ? "chosen" : "sampled, not read"}</span>`}
  </li>`;
}

/** What was chosen, of a run that did not record probabilities. */
function Chosen({ step, overview, names }) {
  const read = names.filter((head) => step.relevant.includes(head));
  return html`
    <p class="muted small">This run did not record probabilities.</p>
    <ul class="chosen-only">${read.map((head) => html`<li key=${head}><span class="muted">${plain(head)}</span>
      <strong>${plain(overview?.choices?.[head]?.[step.choices[head]] ?? String(step.choices[head]))}</strong></li>`)}</ul>`;
}

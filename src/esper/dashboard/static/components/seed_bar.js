/** One seed's life in a lane: stages as colour and pattern, alpha as height. */

import { html } from "../html.js";
import { number, whole } from "../format.js";
import { plain, whenWords } from "../words.js";
import { MarkAt } from "./marks.js";
import { stageFill } from "./stages.js";

const LETTER = 6.4;

/** Draws a bar of the view episode_detail, standing on a base line; its name has room until a place. */
export function SeedBar({ bar, axis, base, height, detail, until }) {
  const parts = bar.parts.filter((part) => part.to > part.from);
  const alphas = new Map(bar.alphas);
  const start = axis.x(parts[0]?.from ?? 0);
  const size = bar.parameters === null ? "" : `, ${whole(bar.parameters)} parameters`;
  const name = plain(bar.blueprint);
  return html`<g class="seed">
    <title>${name}${size}: ${bar.parts.map(({ stage }) => stage).join(", ")}</title>
    ${parts.map((part) => html`<${Part} ...${{ part, alphas, axis, base, height }} />`)}
    ${parts.length > 0 && html`<text class="seed-name" x=${start + 1} y=${base - height - 3}>${fitted(name, until - start)}</text>`}
    <${Events} ...${{ bar, axis, detail, y: base - height / 2 }} />
  </g>`;
}

function Part({ part, alphas, axis, base, height }) {
  const [left, right] = [axis.x(part.from), axis.x(part.to)];
  return html`<g>
    <rect x=${left} y=${base - height} width=${right - left} height=${height} fill=${stageFill(part.stage)}
      opacity="0.22" />
    <path d=${alphaPath(part, alphas, axis, base, height)} fill=${stageFill(part.stage)} />
    <rect class="seed-edge" x=${left + 0.5} y=${base - height} width=${Math.max(1, right - left - 1)} height=${height} />
  </g>`;
}

/** The outline of alpha: after each epoch, as high as it was. */
function alphaPath(part, alphas, axis, base, height) {
  let path = `M${axis.x(part.from)} ${base}`;
  for (let epoch = part.from + 1; epoch <= part.to; epoch += 1) {
    path += `V${base - height * (alphas.get(epoch) ?? 0)}H${axis.x(epoch)}`;
  }
  return `${path}V${base}Z`;
}

const EVENTS = { fossilized: "fossilize", pruned: "prune" };

function Events({ bar, axis, detail, y }) {
  const [from, to] = [bar.parts[0]?.from ?? 0, bar.parts.at(-1)?.to ?? 0];
  const own = detail.events.filter((event) => event.slot === bar.slot && event.epoch > from && event.epoch <= to + 1);
  const marks = own.flatMap((event) => {
    if (event.from_stage === "dormant") return [["germinate", event]];
    return event.to_stage in EVENTS ? [[EVENTS[event.to_stage], event]] : [];
  });
  return marks.map(([kind, event]) => html`<${MarkAt} kind=${kind} className="mark" isOnColour=${true}
    x=${axis.middle(axis.byStep.get(event.step) ?? event.epoch - 1)} y=${y}
    title=${`${kind} ${plain(event.blueprint)} ${whenWords(event)}, alpha ${number(event.alpha, 2)}`} />`);
}

function fitted(name, width) {
  const letters = Math.floor(width / LETTER);
  if (name.length <= letters) return name;
  return letters < 4 ? "" : `${name.slice(0, letters - 1)}…`;
}

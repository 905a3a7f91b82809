/** The host as a drawing: its parts in order, sized by parameters, with what grows at its slots. */

import { html, useMemo } from "../html.js";
import { STAGE_COLOURS } from "../colours.js";
import { count, whole } from "../format.js";
import { plain } from "../words.js";
import { layoutHost, sideOf } from "./network_layout.js";
import { fossilWords } from "./slot_table.js";
import { stageFill } from "./stages.js";

/** Draws a host after a step; moving from step to step moves the drawing. */
export function Network({ overview, detail, step }) {
  const plan = useMemo(() => layoutHost(overview, detail), [overview, detail]);
  const states = Object.fromEntries(detail.slots.map((name, k) => [name, step?.slots[k] ?? null]));
  const seeds = sumOfSeeds(step);
  return html`<section class="panel network" aria-label="Network">
    <div class="panel-head"><h2>Network</h2>
      <span class="muted small">${sizeWords(detail.host_parameters, seeds)}</span></div>
    <div class="network-box" tabindex="0" role="group" aria-label="Drawing of the network">
      <svg data-test="network" viewBox=${`0 0 ${plan.width} ${plan.height}`}
        style=${{ maxWidth: `${plan.width}px`, minWidth: `${0.7 * plan.width}px` }} role="img" aria-label=${networkWords(detail, step)}>
        <line class="flow" x1="4" x2=${plan.width - 4} y1=${plan.base} y2=${plan.base} />
        <text class="tick" x="4" y=${plan.base - 6}>in</text>
        <text class="tick" x=${plan.width - 4} y=${plan.base - 6} text-anchor="end">out</text>
        ${plan.groups.map((group) => html`<${Group} key=${group.x} ...${{ group, plan, state: states[group.slot] }} />`)}
      </svg>
    </div>
    <p class="muted small">Areas show parameters; the filled height of a seed shows its alpha.
      ${plan.isGuess && " This run did not record the parts of its hosts, so all have the same size."}</p>
  </section>`;
}

function Group({ group, plan, state }) {
  return html`<g>
    ${group.slot !== null && html`<${Slot} ...${{ group, plan, state }} />`}
    ${group.blocks.map((block) => html`<g key=${block.name}>
      <title>${block.name}: ${block.kind}, ${whole(block.parameters)} parameters</title>
      <rect class="block" x=${block.x - block.side / 2} y=${plan.base - block.side / 2} width=${block.side}
        height=${block.side} rx="3" />
      ${!block.isMinor && html`
        <text class="block-name" x=${block.x} y=${plan.labels} text-anchor="middle">${block.kind}</text>
        <text class="tick" x=${block.x} y=${plan.labels + 14} text-anchor="middle">${count(block.parameters)}</text>`}
    </g>`)}
  </g>`;
}

function Slot({ group, plan, state }) {
  const { dock } = plan;
  const isLive = Boolean(state?.blueprint) && state.stage !== "dormant";
  const alpha = isLive ? (state.alpha ?? 0) : 0;
  const side = isLive ? sideOf(state.parameters ?? plan.unknownSeed, plan.scale) : 0;
  const [left, right, middle] = [group.x + 2, group.x + group.width - 2, group.x + group.width / 2];
  const up = `M${left} ${plan.base}V${dock.y + 12}Q${left} ${dock.y} ${left + 12} ${dock.y}`;
  const wire = `${up}H${right - 12}Q${right} ${dock.y} ${right} ${dock.y + 12}V${plan.base}`;
  const stage = state?.stage ?? "dormant";
  return html`<g>
    <title>${group.slot}: ${stage}${isLive ? `, ${plain(state.blueprint)}, alpha ${alpha.toFixed(2)}` : ""}${fossilWords(state ?? {})}</title>
    <path class="wire" d=${wire} stroke-dasharray=${alpha > 0 ? null : "3 4"} stroke-width=${1 + 2 * alpha}
      style=${{ stroke: alpha > 0 ? STAGE_COLOURS[stage] : "" }} />
    <rect class="seed-square seed-ground" x=${middle - side / 2} y=${dock.y - side / 2} width=${side} height=${side} rx="3" />
    <rect class="seed-square" x=${middle - side / 2} y=${dock.y - side / 2} width=${side} height=${side} rx="3"
      fill=${stageFill(stage)} opacity="0.22" />
    <rect class="seed-square" x=${middle - side / 2} y=${dock.y + side / 2 - side * alpha} width=${side}
      height=${side * alpha} rx="2" fill=${stageFill(stage)} />
    ${!isLive && html`<circle class="empty-slot" cx=${middle} cy=${dock.y} r="5" />`}
    <text class="block-name" x=${middle} y=${dock.top - 32} text-anchor="middle">${group.slot}</text>
    <text class="tick" x=${middle} y=${dock.top - 18} text-anchor="middle">${isLive ? `${plain(state.blueprint)}, ${stage}` : stage}</text>
    <text class="tick" x=${middle} y=${dock.top - 4} text-anchor="middle">${fossilWords(state ?? {}).replace(", ", "")}</text>
  </g>`;
}

function sumOfSeeds(step) {
  const slots = step?.slots ?? [];
  const live = slots.filter(({ blueprint }) => blueprint);
  if (live.some(({ parameters }) => parameters === null)) return null;
  const fossils = slots.reduce((total, { fossil_parameters: n }) => total + (n ?? 0), 0);
  return live.reduce((total, { parameters }) => total + parameters, fossils);
}

function sizeWords(host, seeds) {
  if (host === null || host === undefined) return "";
  return seeds === null ? `host ${whole(host)} parameters` : `${whole(host)} + ${whole(seeds)} parameters`;
}

function networkWords(detail, step) {
  const words = detail.slots.map((name, k) => {
    const state = step?.slots[k];
    const words = state?.blueprint ? `holds ${plain(state.blueprint)}, ${state.stage}` : `is ${state?.stage ?? "dormant"}`;
    return `${name} ${words}${fossilWords(state ?? {})}`;
  });
  return `The host with its slots: ${words.join("; ")}.`;
}

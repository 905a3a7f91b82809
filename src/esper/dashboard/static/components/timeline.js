/** The life of a host: its accuracy above, a lane for each slot below, epochs across. */

import { classes, html, useRef } from "../html.js";
import { STAGE_COLOURS } from "../colours.js";
import { number } from "../format.js";
import { plain, refusalWords, stepWords, whenWords } from "../words.js";
import { MarkAt, MarkLegend, markOf } from "./marks.js";
import { baselineOf } from "./baseline.js";
import { SeedBar } from "./seed_bar.js";
import { useWidth } from "./size.js";
import { StageLegend } from "./stages.js";

const CURVE = { top: 8, height: 88 };
const OPS = { top: 106, height: 20 };
const LANES = { top: 128, bar: 30, seed: 16, name: 15 };
const RIGHT = 8;
/** The name of the baseline's curve: the width of a letter, and how far from the curve it may stand. */
const BASELINE = { letter: 6, places: [10, 14, 18, -10, -14, -18] };
const FINAL = { width: 76, places: [-7, 9, -14, 17] };
/** So far from all lines, a name can be read. */
const ROOM = 9;
/** From this width on, the names of slots stand beside their lanes, not above them. */
const WIDE = 640;
/** Up to so many epochs the whole budget is shown, so that an early end is seen. */
const WHOLE_BUDGET = 40;

/**
 * Draws an episode (as the view episode_detail gives it) with one step chosen.
 *
 * onStep is called with the number of a step when it is hovered, clicked, focused or reached by an arrow key.
 */
export function Timeline({ detail, step, onStep, isRunning = false }) {
  const [box, width] = useWidth();
  const axis = makeAxis(detail, width);
  // A host in progress may name its slots differently from others.
  const slots = [...new Set([...detail.slots, ...detail.bars.map(({ slot }) => slot)])];
  const height = LANES.top + slots.length * axis.lane + 26;
  return html`<div class="timeline" data-test="timeline" ref=${box} style=${{ minHeight: `${height}px` }}>
    ${width > 0 && html`
      <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${summary(detail)}>
        <${Unspent} ...${{ axis, height, isRunning: isRunning && !detail.is_over }} />
        <${Chosen} ...${{ axis, step, height }} />
        <${Curve} ...${{ detail, axis }} />
        <${Ops} ...${{ detail, axis }} />
        ${slots.map((slot, k) => html`<${Lane} key=${slot} ...${{ detail, axis, slot, k }} />`)}
        <${EpochAxis} ...${{ axis, height }} />
      </svg>
      <${StepButtons} ...${{ detail, axis, step, onStep, height }} />`}
  </div>`;
}

/** Says what the looks and marks of a timeline mean. */
export function TimelineLegend({ detail }) {
  const stages = new Set(detail.bars.flatMap(({ parts }) => parts.map(({ stage }) => stage)));
  const kinds = new Set(detail.steps.map(markOf));
  if (detail.governor.length) kinds.add("governor");
  return html`<div class="timeline-legend">
    ${stages.size > 0 && html`<${StageLegend} stages=${[...stages]} />`}<${MarkLegend} kinds=${kinds} />
  </div>`;
}

/** Where epochs lie: the step that trains epoch e fills the column from e - 1 to e. */
function makeAxis(detail, width) {
  const { steps } = detail;
  const last = steps.at(-1);
  const trained = Math.max(last?.epoch ?? 0, detail.result?.n_epochs ?? 0, ...detail.bars.flatMap(ends));
  const hasEnd = steps.length > trained;
  const budget = detail.n_epochs_max ?? 0;
  const used = trained + (hasEnd ? 1 : 0);
  const columns = Math.max(1, used, budget <= WHOLE_BUDGET ? budget + (hasEnd ? 1 : 0) : 0);
  const isWide = width >= WIDE;
  const left = isWide ? 100 : 42;
  const lane = LANES.bar + LANES.seed + 6 + (isWide ? 0 : LANES.name);
  const size = Math.max(1, width - left - RIGHT) / columns;
  const x = (epoch) => left + epoch * size;
  const byStep = new Map(steps.map((one, k) => [one.step, k]));
  const middle = (k) => x(k + 0.5);
  return { columns, size, x, middle, byStep, budget, trained, used, end: hasEnd ? trained : null, isWide, lane, left, right: x(columns) };
}

function ends({ parts }) {
  return parts.map(({ to }) => to);
}

function Chosen({ axis, step, height }) {
  if (step === null) return null;
  return html`<rect class="timeline-chosen" x=${axis.x(step)} y="0" width=${axis.size} height=${height - 20} />`;
}

/** The part of the budget that was not used, or is still to come. */
function Unspent({ axis, height, isRunning }) {
  const left = axis.x(axis.used);
  if (axis.right - left < 2) return null;
  const words = `${axis.budget - axis.trained} of ${axis.budget} epochs ${isRunning ? "remaining" : "unused"}`;
  return html`<g>
    <rect class="unspent" x=${left} y="0" width=${axis.right - left} height=${height - 20} />
    ${axis.right - left > 140 && html`<text class="tick" x=${(left + axis.right) / 2} y=${height - 6}
      text-anchor="middle">${words}</text>`}
  </g>`;
}

function Curve({ detail, axis }) {
  const points = detail.steps.map(({ score }, k) => [axis.middle(k), score]).filter(([, score]) => score !== null);
  const baseline = baselineOf(detail);
  const baselines = baselinePoints(baseline, axis);
  const final = detail.result?.final_score ?? null;
  const scores = [...points, ...baselines].map(([, score]) => score).concat(final === null ? [] : [final]);
  const [low, high] = scores.length ? rounded(Math.min(...scores), Math.max(...scores)) : [0, 1];
  const y = (score) => CURVE.top + CURVE.height * (1 - (score - low) / (high - low));
  const ticks = [low, (low + high) / 2, high];
  return html`<g class="curve">
    ${axis.isWide && html`<text class="tick" x=${axis.left - 44} y=${CURVE.top + CURVE.height / 2 + 4} text-anchor="end">score</text>`}
    ${ticks.map((value) => html`<line class="gridline" x1=${axis.left} x2=${axis.right} y1=${y(value)} y2=${y(value)} />
      <text class="tick" x=${axis.left - 8} y=${y(value) + 4} text-anchor="end">${number(value, 2)}</text>`)}
    ${final !== null && html`<${Final} ...${{ points, baselines, final, axis, y }} />`}
    ${baselines.length > 0 && html`<${Baseline} ...${{ name: baseline.name, points, baselines, final, y }} />`}
    <polyline class="score" points=${points.map(([x, score]) => `${x},${y(score)}`).join(" ")} />
    ${points.map(([x, score]) => html`<circle class="score-dot" cx=${x} cy=${y(score)} r="2.5" />`)}
    ${detail.governor.map((one) => html`<${MarkAt} kind="governor" className="mark bad-mark"
      x=${axis.middle(axis.byStep.get(one.step) ?? Math.max(0, one.epoch - 1))} y=${CURVE.top + 10} title=${one.reason} />`)}
  </g>`;
}

/** The score that the host ended with, named at the beginning of its line if there is room. */
function Final({ points, baselines, final, axis, y }) {
  const near = [...points, ...baselines].filter(([left]) => left <= axis.left + FINAL.width).map(([, one]) => y(one));
  const place = freePlace(y(final), near, FINAL.places);
  return html`<g>
    <line class="final" x1=${axis.left} x2=${axis.x(axis.used)} y1=${y(final)} y2=${y(final)}>
      <title>final score ${number(final)}</title></line>
    ${hasRoom(place, near) && html`<text class="tick line-name" x=${axis.left + 4} y=${place + 4}>final ${number(final)}</text>`}
  </g>`;
}

/** Where the baseline was after each epoch that is shown. */
function baselinePoints(baseline, axis) {
  const after = (baseline?.scores ?? []).slice(1, axis.columns + (axis.end === null ? 1 : 0));
  return after.map((score, k) => [axis.middle(k), score]).filter(([, score]) => score !== null);
}

/** The curve of the baseline, with its name at its end. */
function Baseline({ name, points, baselines, final, y }) {
  const [x, score] = baselines.at(-1);
  const near = [...points, ...baselines].filter(([left]) => left >= x - BASELINE.letter * name.length && left <= x);
  const lines = [...near.map(([, one]) => one), ...(final === null ? [] : [final])].map(y);
  return html`<g>
    <polyline class="baseline" points=${baselines.map(([left, one]) => `${left},${y(one)}`).join(" ")}>
      <title>the same host, ${name}</title></polyline>
    <text class="tick line-name" x=${x} y=${freePlace(y(score), lines, BASELINE.places) + 4} text-anchor="end">${name}</text>
  </g>`;
}

/** Gives the first height near that of a curve's end which is clear of all lines, or else the clearest. */
function freePlace(height, lines, places) {
  const inside = places.map((by) => height + by)
    .filter((one) => one >= CURVE.top && one <= CURVE.top + CURVE.height);
  const clearest = (best, one) => (roomAt(one, lines) > roomAt(best, lines) ? one : best);
  return inside.find((one) => hasRoom(one, lines)) ?? inside.reduce(clearest, inside[0] ?? height);
}

function hasRoom(height, lines) {
  return roomAt(height, lines) >= ROOM;
}

function roomAt(height, lines) {
  return Math.min(...lines.map((line) => Math.abs(line - height)));
}

function Ops({ detail, axis }) {
  const y = OPS.top + OPS.height / 2;
  return html`<g class="ops">
    <text class="tick" x=${axis.left - 8} y=${y + 4} text-anchor="end">op</text>
    ${detail.steps.map((step, k) => html`<${MarkAt} kind=${markOf(step)} x=${axis.middle(k)} y=${y}
      className=${classes("mark", `mark-${markOf(step)}`)} />`)}
  </g>`;
}

function Lane({ detail, axis, slot, k }) {
  const top = LANES.top + k * axis.lane;
  const bars = detail.bars.filter((bar) => bar.slot === slot);
  const base = top + axis.lane - 6;
  const name = axis.isWide
    ? html`<text class="lane-name" x=${axis.left - 8} y=${base - LANES.bar / 2 + 4} text-anchor="end">
        ${shortened(slot)}<title>${slot}</title></text>`
    : html`<text class="lane-name" x="0" y=${top + 11}>${slot}</text>`;
  return html`<g class="lane">
    ${name}
    <line class="gridline" x1=${axis.left} x2=${axis.right} y1=${base} y2=${base} />
    ${bars.map((bar) => html`<${Fossil} key=${bar.seed} ...${{ bar, axis, base }} />`)}
    ${bars.map((bar, i) => html`<${SeedBar} key=${bar.seed} ...${{ bar, axis, base, detail }}
      height=${LANES.bar} until=${axis.x(bars[i + 1]?.parts[0]?.from ?? axis.columns)} />`)}
  </g>`;
}

/** What a fossilized seed leaves: it stays part of the block when its slot is free again. */
function Fossil({ bar, axis, base }) {
  const last = bar.parts.at(-1);
  const [left, right] = [axis.x(last?.to ?? 0), axis.x(axis.trained)];
  if (last?.stage !== "fossilized" || right <= left) return null;
  return html`<rect class="fossil" x=${left} y=${base + 1} width=${right - left} height="4" fill=${STAGE_COLOURS.fossilized}>
    <title>${plain(bar.blueprint ?? "the seed")} is part of the block</title></rect>`;
}

/** Epochs below the drawing: the last one always, and as many before it as have room. */
function EpochAxis({ axis, height }) {
  const every = Math.max(1, Math.ceil(26 / axis.size));
  const last = axis.end ?? axis.used;
  // The step that ends an episode trains no epoch; where its column is narrow, it is named together with the last epoch.
  const isJoined = axis.end !== null && axis.size < 30;
  const room = isJoined ? 60 : 26;
  const isShown = (epoch) => (epoch === last ? !isJoined : epoch % every === 0 && (last - epoch) * axis.size >= room);
  const epochs = Array.from({ length: last }, (_, k) => k + 1).filter(isShown);
  return html`<g>
    <text class="tick" x=${axis.left - 8} y=${height - 6} text-anchor="end">epoch</text>
    ${epochs.map((epoch) => html`<text class="tick" x=${axis.middle(epoch - 1)} y=${height - 6} text-anchor="middle">${epoch}</text>`)}
    ${axis.end !== null && html`<text class="tick" x=${isJoined ? axis.x(axis.used) : axis.middle(axis.end)} y=${height - 6}
      text-anchor=${isJoined ? "end" : "middle"}>${isJoined ? `${axis.end}, end` : "end"}</text>`}
  </g>`;
}

/** The steps as buttons over the drawing; one of them can be reached by Tab, the others by arrow keys. */
function StepButtons({ detail, axis, step, onStep, height }) {
  const box = useRef(null);
  const last = detail.steps.length - 1;
  const keys = { ArrowLeft: step - 1, ArrowRight: step + 1, Home: 0, End: last };
  const press = (event) => {
    if (!(event.key in keys)) return;
    event.preventDefault();
    box.current.children[Math.min(last, Math.max(0, keys[event.key]))].focus();
  };
  return html`<div class="timeline-steps" role="listbox" aria-label="Steps of the episode" aria-orientation="horizontal"
    ref=${box} onKeyDown=${press}>
    ${detail.steps.map((one, k) => html`<button type="button" role="option" key=${one.step} data-test=${`step-${k}`}
      aria-selected=${k === step} aria-label=${stepLabel(one)} tabindex=${k === step ? 0 : -1}
      style=${{ left: `${axis.x(k)}px`, width: `${axis.size}px`, height: `${height - 20}px` }}
      onPointerEnter=${(event) => event.pointerType === "mouse" && onStep(k)}
      onClick=${() => onStep(k)} onFocus=${() => onStep(k)}></button>`)}
  </div>`;
}

function stepLabel(step) {
  const when = whenWords(step);
  return `${when[0].toUpperCase()}${when.slice(1)}: ${stepWords(step)}. ${refusalWords(step)} Then score ${number(step.score)}.`;
}

function shortened(name) {
  return name.length > 14 ? `…${name.slice(-13).replace(/^\.+/, "")}` : name;
}

function rounded(low, high) {
  const [bottom, top] = [Math.floor(low * 10) / 10, Math.ceil(high * 10) / 10];
  return top > bottom ? [bottom, top] : [bottom, bottom + 0.1];
}

function summary(detail) {
  const seeds = detail.bars.map(({ slot, blueprint, parts }) => `${plain(blueprint)} in ${slot}, ${parts.at(-1)?.stage ?? ""}`);
  const grown = seeds.length ? `Seeds: ${seeds.join("; ")}.` : "Nothing was grown.";
  return `Growth of a host over ${detail.steps.length} steps. ${grown}`;
}

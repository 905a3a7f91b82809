/** Where the parts of a host are drawn: in order from left to right, their areas by parameters. */

const LARGEST = 60;
const SMALLEST = 9;
const GAP = 18;
const LETTER = 6.3;
const SLOT_LABEL = 124;
const EDGE = 24;
/** A part with a smaller share than this of the largest's parameters has no label. */
const MINOR = 0.05;

/** Gives the side of the square that stands for so many parameters. */
export function sideOf(parameters, scale) {
  return parameters > 0 ? Math.max(SMALLEST, Math.sqrt(parameters) * scale) : SMALLEST;
}

/** Gives groups of blocks, each with its slot or none, and where they stand. */
export function layoutHost(overview, detail) {
  const groups = overview?.host?.length ? groupParts(overview.host) : guessGroups(detail);
  const seeds = detail.steps.flatMap(({ slots }) => slots.map(({ parameters }) => parameters ?? 0));
  const blocks = groups.flatMap((group) => group.parts.map(({ parameters }) => parameters));
  const scale = LARGEST / Math.sqrt(Math.max(1, ...blocks, ...seeds));
  const placed = place(groups, scale, MINOR * Math.max(...blocks));
  const last = placed.at(-1);
  const tallest = Math.max(SMALLEST, ...placed.flatMap((group) => group.blocks.map(({ side }) => side)));
  const seedSide = Math.max(28, sideOf(Math.max(0, ...seeds), scale));
  const top = 54;
  const dock = { top, y: top + seedSide / 2 };
  const base = top + seedSide + 22 + tallest / 2;
  return {
    groups: placed,
    scale,
    dock,
    base,
    labels: base + tallest / 2 + 16,
    width: (last ? last.x + last.width : 0) + EDGE,
    height: base + tallest / 2 + 36,
    unknownSeed: Math.max(1, ...blocks) / 4,
    isGuess: !overview?.host?.length,
  };
}

/** A slot is around the parts whose names begin with its own; otherwise around the part before it. */
function groupParts(host) {
  const groups = [];
  for (const part of host) {
    if (part.kind !== "slot") {
      groups.push({ slot: null, parts: [part] });
      continue;
    }
    const isInside = ({ slot, parts }) => slot === null && parts.every(({ name }) => isBelow(name, part.slot));
    const inside = [];
    while (groups.length && isInside(groups.at(-1))) inside.unshift(...groups.pop().parts);
    if (inside.length === 0 && groups.length && groups.at(-1).slot === null) inside.push(...groups.pop().parts);
    groups.push({ slot: part.slot, parts: inside });
  }
  return groups;
}

function isBelow(name, slot) {
  return name === slot || name.startsWith(`${slot}.`);
}

/** What can be drawn when only the names of slots are known: the host in equal shares. */
function guessGroups(detail) {
  const share = Math.round((detail.host_parameters ?? 1000) / Math.max(1, detail.slots.length));
  return detail.slots.map((slot) => ({ slot, parts: [{ name: slot, kind: "block", parameters: share }] }));
}

function place(groups, scale, least) {
  let x = EDGE;
  return groups.map(({ slot, parts }) => {
    const sides = parts.map(({ parameters }) => sideOf(parameters, scale));
    const isMinor = ({ parameters }) => parameters < least;
    const cells = parts.map((part, k) => Math.max(sides[k] + 8, isMinor(part) ? 0 : part.kind.length * LETTER + 8));
    const inner = cells.reduce((total, cell) => total + cell, 0);
    const width = Math.max(inner, slot === null ? 0 : SLOT_LABEL) + (slot === null ? 0 : GAP);
    let at = x + (width - inner) / 2;
    const blocks = parts.map((part, k) => {
      const block = { ...part, side: sides[k], x: at + cells[k] / 2, isMinor: isMinor(part) };
      at += cells[k];
      return block;
    });
    const group = { slot, blocks, x, width };
    x += width + 4;
    return group;
  });
}

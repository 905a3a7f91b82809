/** The names of lines at their right ends, so that no eye has to go back and forth to a legend. */

import { shownTheme } from "./theme.js";
import { seriesColour } from "./colours.js";

const FONT = "system-ui, sans-serif";
const SIZE = 12;
const LINE = 14;
const GAP = 6;
const LETTERS = 16;
/** Without names at the ends of lines, so much room is left for the last point. */
const BARE = 12;
/** A narrower drawing keeps its width for the lines; more lines than this are identified by the legend. */
const NARROWEST = 330;
const MOST = 8;

/** Gives the room to the right of a drawing, in CSS pixels. */
export function endLabelRoom(plot, settings) {
  if (!hasLabels(plot, settings)) return BARE;
  const { ctx } = plot;
  ctx.save();
  ctx.font = `${SIZE}px ${FONT}`;
  const widest = Math.max(...settings.series.map(({ label }) => ctx.measureText(shortened(label)).width));
  ctx.restore();
  return Math.ceil(widest) + 2 * GAP;
}

/** Writes the names beside the last points that are shown, moved apart where they would collide. */
export function drawEndLabels(plot, settings) {
  if (!hasLabels(plot, settings)) return;
  const { ctx, bbox } = plot;
  const ratio = bbox.width / plot.over.clientWidth || 1;
  const ends = settings.series.map((one, k) => endOf(plot, one, k)).filter(Boolean);
  ends.sort((a, b) => a.y - b.y);
  spread(ends, bbox, LINE * ratio);
  ctx.save();
  ctx.font = `${SIZE * ratio}px ${FONT}`;
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  for (const { label, y, colour } of ends) {
    ctx.fillStyle = colour;
    ctx.fillText(label, bbox.left + bbox.width + GAP * ratio, y);
  }
  ctx.restore();
}

function hasLabels(plot, { series, isStacked }) {
  return series.length > 1 && series.length <= MOST && !isStacked && plot.width >= NARROWEST;
}

function endOf(plot, one, k) {
  if (!plot.series[k + 1].show) return null;
  const { min, max } = plot.scales.x;
  const [rounds, column] = [plot.data[0], plot.data[k + 1]];
  let row = rounds.length - 1;
  while (row >= 0 && (rounds[row] > max || column[row] === null || column[row] === undefined)) row -= 1;
  if (row < 0 || rounds[row] < min) return null;
  const theme = shownTheme();
  return {
    label: shortened(one.label),
    y: plot.valToPos(column[row], one.scale ?? "y", true),
    colour: one.colour?.(theme) ?? seriesColour(k, theme),
  };
}

/** Moves labels that are sorted from top to bottom so far apart that each has a line of its own. */
function spread(ends, bbox, line) {
  const bottom = bbox.top + bbox.height;
  ends.forEach((end, k) => {
    end.y = Math.max(end.y, k === 0 ? bbox.top : ends[k - 1].y + line);
  });
  for (let k = ends.length - 1; k >= 0; k -= 1) {
    ends[k].y = Math.min(ends[k].y, k === ends.length - 1 ? bottom : ends[k + 1].y - line);
  }
}

function shortened(label) {
  return label.length > LETTERS ? `${label.slice(0, LETTERS - 1)}…` : label;
}

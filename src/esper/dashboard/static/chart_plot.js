/** One drawing of uPlot: made once, then only given data, sizes and colours. */

import uPlot from "./vendor/uplot.js";
import { isNumber, tick } from "./format.js";
import { endLabelRoom, drawEndLabels } from "./chart_labels.js";
import { seriesColour, seriesDash } from "./colours.js";
import { shownTheme } from "./theme.js";

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];
const PADDING = 0.08;
const MAX_POINTS = 150;

/** Events before and after printing, in which colours change at once. */
const PRINTING = ["beforeprint", "afterprint"];

/** Draws series over rounds into an element. */
export class Plot {
  /**
   * Settings: series [{ label, isPoints, scale, colour, dash }], group, height, xTitle, unit, secondUnit, fromZero,
   * minTop, isStacked, onCursor. Each series is drawn from a column; as many further columns are drawn faintly
   * behind them while showRaw is on.
   */
  constructor(element, settings) {
    this.element = element;
    this.settings = settings;
    this.group = settings.group;
    this.plot = new uPlot(this.options(), Array.from({ length: 2 * settings.series.length + 1 }, () => []), element);
    this.hidden = new Set();
    this.hasRaw = false;
    this.leave = this.group.add(this);
    this.waiting = null;
    this.isSeen = true;
    this.watch();
  }

  /** Draws these columns, keeping the zoom; a drawing that is out of sight waits until it is seen. */
  setData(table) {
    const isFirst = this.plot.data[0].length === 0;
    this.waiting = table;
    if (this.isSeen || isFirst) this.drawWaiting();
  }

  drawWaiting() {
    if (this.waiting === null) return;
    this.plot.setData(this.waiting, false);
    this.waiting = null;
    this.showRange();
  }

  /** Shows the range of the group. */
  showRange() {
    const rounds = this.plot.data[0];
    if (rounds.length === 0) return;
    const [min, max] = this.group.range ?? [rounds[0], rounds.at(-1)];
    this.shown = { min, max: max > min ? max : min + 1 };
    this.plot.setScale("x", this.shown);
  }

  /** Shows or hides a series. */
  show(index, isShown) {
    if (isShown) this.hidden.delete(index);
    else this.hidden.add(index);
    this.plot.setSeries(index + 1, { show: isShown });
    this.showRaw(this.hasRaw);
  }

  /** Draws the raw values faintly behind smoothed ones, or not. */
  showRaw(hasRaw) {
    this.hasRaw = hasRaw;
    const n = this.settings.series.length;
    for (let k = 0; k < n; k += 1) {
      const show = hasRaw && !this.hidden.has(k);
      if (this.plot.series[n + k + 1].show !== show) this.plot.setSeries(n + k + 1, { show });
    }
  }

  /** Gives the drawing as it is, for a file. */
  get canvas() {
    return this.plot.ctx.canvas;
  }

  /** Gives the row that the cursor is at, or null. */
  cursorRow() {
    return this.plot.cursor.idx ?? null;
  }

  /** Draws with the colours of the theme. */
  recolour() {
    this.plot.redraw(false, true);
  }

  /** Takes everything away. */
  destroy() {
    this.leave();
    this.sizes.disconnect();
    this.sight.disconnect();
    PRINTING.forEach((name) => window.removeEventListener(name, this.print));
    this.plot.destroy();
  }

  watch() {
    this.print = () => this.recolour();
    PRINTING.forEach((name) => window.addEventListener(name, this.print));
    this.sight = new IntersectionObserver(([entry]) => {
      this.isSeen = entry.isIntersecting;
      if (this.isSeen) this.drawWaiting();
    });
    this.sight.observe(this.element);
    this.sizes = new ResizeObserver(() => {
      const width = Math.floor(this.element.clientWidth);
      if (width > 0 && width !== this.plot.width) {
        this.plot.setSize({ width, height: this.settings.height });
      }
    });
    this.sizes.observe(this.element);
  }

  options() {
    const { settings, group } = this;
    const hasSecond = settings.series.some(({ scale }) => scale === "second");
    return {
      width: Math.max(120, Math.floor(this.element.clientWidth)),
      height: settings.height,
      padding: [8, (plot) => (hasSecond ? 0 : endLabelRoom(plot, settings)), 0, 0],
      legend: { show: false },
      cursor: {
        y: false,
        points: { size: 6, width: 2 },
        drag: { x: true, y: false, dist: 4 },
        sync: { key: group.key, scales: ["x", null], filters: { pub: isMove, sub: isMove } },
        bind: { dblclick: () => () => group.zoom(null) },
      },
      scales: {
        x: { time: false },
        y: { range: (plot, min, max) => padded(min, max, settings) },
        second: { range: (plot, min, max) => padded(min, max, {}) },
      },
      axes: axes(settings, hasSecond),
      series: [
        { label: settings.xTitle },
        ...settings.series.map((one, k) => seriesOptions(one, k, settings)),
        ...settings.series.map((one, k) => rawOptions(one, k)),
      ],
      hooks: {
        draw: [(plot) => !hasSecond && drawEndLabels(plot, settings)],
        setCursor: [(plot) => settings.onCursor(plot.cursor.idx, plot.cursor.left)],
        setScale: [(plot, key) => key === "x" && this.tellZoom(plot)],
      },
    };
  }

  tellZoom(plot) {
    const { min, max } = plot.scales.x;
    if (!this.shown || (min === this.shown.min && max === this.shown.max)) return;
    queueMicrotask(() => this.group.zoom([Math.max(0, Math.floor(min)), Math.ceil(max)]));
  }
}

function isMove(type) {
  return type !== "mouseup" && type !== "mousedown" && type !== "dblclick";
}

function padded(min, given, { fromZero = false, minTop = -Infinity }) {
  if (!isNumber(min) || !isNumber(given)) return [0, 1];
  const max = Math.max(given, minTop);
  const low = fromZero ? Math.min(0, min) : min;
  const span = max - low || Math.abs(max) || 1;
  return [low === 0 && fromZero ? 0 : low - PADDING * span, max + PADDING * span];
}

/** Gives the colour in which a series is drawn now. */
function colourOf(one, index) {
  return one.colour?.(shownTheme()) ?? seriesColour(index, shownTheme());
}

/** The raw values behind a smoothed line. */
function rawOptions(one, index) {
  const stroke = () => `${colourOf(one, index)}59`;
  return { label: one.label, scale: one.scale ?? "y", stroke, width: 1, show: false, spanGaps: true, points: { show: false } };
}

function seriesOptions(one, index, settings) {
  const colour = () => colourOf(one, index);
  return {
    label: one.label,
    scale: one.scale ?? "y",
    stroke: colour,
    width: 1.75,
    dash: one.dash ?? (settings.isStacked ? [] : seriesDash(index)),
    fill: settings.isStacked ? colour : undefined,
    spanGaps: true,
    points: { show: one.isPoints ? hasFew : hasOne, size: one.isPoints ? 7 : 5, fill: colour, stroke: colour },
  };
}

/** Points that touch one another would only thicken the line. */
function hasFew(plot, index) {
  let known = 0;
  for (const value of plot.data[index]) known += value === null ? 0 : 1;
  return known <= MAX_POINTS;
}

/** A line of one point would not be seen. */
function hasOne(plot, index) {
  return plot.data[index].length < 3;
}

const tokens = new Map();

/** Gives what looks up a colour of the style sheet, once for each theme. */
function token(name) {
  return () => {
    const key = `${name} ${shownTheme()}`;
    if (!tokens.has(key)) tokens.set(key, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
    return tokens.get(key);
  };
}

/** Gives the width of an axis: as wide as its longest number, and never narrower than most. */
function axisSize(plot, values) {
  const longest = Math.max(0, ...(values ?? []).map(({ length }) => length));
  return Math.max(46, 10 + 7 * longest);
}

function axes(settings, hasSecond) {
  const font = "12px system-ui, sans-serif";
  const common = {
    font, labelFont: font, labelSize: 17, labelGap: 0,
    stroke: token("--muted"), grid: { stroke: token("--line"), width: 1 }, ticks: { show: false },
  };
  const side = { ...common, size: axisSize, gap: 4, values: (plot, values) => values.map(settings.axisFormat ?? tick) };
  const all = [
    { ...common, size: 24, gap: 4, incrs: STEPS, space: 56, label: settings.xTitle },
    { ...side, scale: "y", label: settings.unit },
  ];
  if (hasSecond) all.push({ ...side, scale: "second", side: 1, size: 54, grid: { show: false }, label: settings.secondUnit });
  return all;
}

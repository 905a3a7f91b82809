/** Charts of a screen that share their cursor and their zoom. */

import { useEffect, useMemo, useState } from "./html.js";

let made = 0;

/** The charts that show the same rounds. A range of null shows everything, also what is to come. */
export class ChartGroup {
  constructor() {
    made += 1;
    this.key = `charts-${made}`;
    this.range = null;
    this.smoothing = 1;
    this.wanted = "";
    this.charts = new Set();
    this.listeners = new Set();
  }

  /** Adds a chart; gives what takes it out again. */
  add(chart) {
    this.charts.add(chart);
    return () => this.charts.delete(chart);
  }

  /** Shows these rounds in all charts. */
  zoom(range) {
    this.range = range;
    this.charts.forEach((chart) => chart.showRange());
    this.listeners.forEach((tell) => tell());
  }

  /** Shows only charts with this text in their title or lines. */
  find(wanted) {
    this.wanted = wanted;
    this.listeners.forEach((tell) => tell());
  }

  /** Draws lines as means of so many rounds; 1 draws every round as it was. */
  smooth(rounds) {
    this.smoothing = rounds;
    this.listeners.forEach((tell) => tell());
  }
}

/** Gives the charts whose title or lines contain what is searched for; without a search, all. */
export function useFound(group, charts) {
  const wanted = useGroup(group, () => group.wanted).trim().toLowerCase();
  const words = ({ title, series }) => [title, ...series.map(({ label }) => label)].join(" ").toLowerCase();
  return wanted ? charts.filter((chart) => words(chart).includes(wanted)) : charts;
}

/** Gives a group that lives as long as the component. */
export function useChartGroup() {
  return useMemo(() => new ChartGroup(), []);
}

/** Gives the range of a group, and renders again when it changes. */
export function useRange(group) {
  return useGroup(group, () => group.range);
}

/** Gives the number of rounds that lines are means of, and renders again when it changes. */
export function useSmoothing(group) {
  return useGroup(group, () => group.smoothing);
}

function useGroup(group, read) {
  const [value, setValue] = useState(read);
  useEffect(() => {
    const tell = () => setValue(read());
    group.listeners.add(tell);
    tell();
    return () => group.listeners.delete(tell);
  }, [group]);
  return value;
}

/** Charts of a screen that share their cursor and their zoom. */

import { useEffect, useMemo, useState } from "./html.js";

let made = 0;

/** The charts that show the same rounds. A range of null shows everything, also what is to come. */
export class ChartGroup {
  constructor() {
    made += 1;
    this.key = `charts-${made}`;
    this.range = null;
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
}

/** Gives a group that lives as long as the component. */
export function useChartGroup() {
  return useMemo(() => new ChartGroup(), []);
}

/** Gives the range of a group, and renders anew when it changes. */
export function useRange(group) {
  const [range, setRange] = useState(group.range);
  useEffect(() => {
    const tell = () => setRange(group.range);
    group.listeners.add(tell);
    return () => group.listeners.delete(tell);
  }, [group]);
  return range;
}

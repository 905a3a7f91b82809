/** Series with rounds of their own, put on one axis; appended to, not rebuilt. */

/** Values at the end of a series that may still have changed since they were taken. */
const OVERLAP = 4;

/** The rounds of a chart and, for each of its series, the value at each round or null. */
export class AlignedData {
  constructor(width) {
    this.width = width;
    this.clear();
  }

  /** Forgets everything. */
  clear() {
    this.rounds = [];
    this.rows = new Map();
    this.columns = Array.from({ length: this.width }, () => []);
    this.taken = new Array(this.width).fill(0);
    this.sources = new Array(this.width).fill(null);
  }

  /** Takes what the series have gained; a series is { rounds, values } or { constant }. */
  update(series) {
    const isShorter = series.some(({ rounds }, k) => rounds && rounds.length < this.taken[k]);
    // Other arrays may differ anywhere, not only at their ends.
    const isOther = series.some(({ rounds }, k) => this.taken[k] > 0 && rounds && rounds !== this.sources[k]);
    if (isShorter || isOther || !this.appendRounds(series)) {
      this.clear();
      this.appendRounds(series);
    }
    series.forEach((one, k) => this.fill(one, k));
    this.sources = series.map(({ rounds }) => rounds ?? null);
  }

  /** Gives what a chart draws: rounds first, then a column for each series. */
  table() {
    return [this.rounds, ...this.columns];
  }

  appendRounds(series) {
    const fresh = new Set();
    series.forEach(({ rounds }, k) => {
      const from = Math.max(0, this.taken[k] - OVERLAP);
      for (let i = from; i < (rounds?.length ?? 0); i += 1) {
        if (!this.rows.has(rounds[i])) fresh.add(rounds[i]);
      }
    });
    const sorted = [...fresh].sort((a, b) => a - b);
    if (this.rounds.length && sorted.length && sorted[0] < this.rounds.at(-1)) return false;
    for (const round of sorted) {
      this.rows.set(round, this.rounds.length);
      this.rounds.push(round);
      this.columns.forEach((column) => column.push(null));
    }
    return true;
  }

  fill(one, k) {
    const column = this.columns[k];
    if (!one.rounds) {
      const isOther = this.taken[k] > 0 && column[0] !== one.constant;
      column.fill(one.constant ?? null, isOther ? 0 : this.taken[k]);
      this.taken[k] = column.length;
      return;
    }
    for (let i = Math.max(0, this.taken[k] - OVERLAP); i < one.rounds.length; i += 1) {
      column[this.rows.get(one.rounds[i])] = one.values[i];
    }
    this.taken[k] = one.rounds.length;
  }
}

/**
 * Gives columns in which each value has those of all later columns added, for a stacked chart.
 *
 * Drawn in order and filled, each covers the lower part of the one before it. Hidden ones count as nothing.
 */
export function stacked(columns, hidden) {
  const sums = new Array(columns.length);
  for (let k = columns.length - 1; k >= 0; k -= 1) {
    const after = sums[k + 1];
    sums[k] = columns[k].map((value, i) => (hidden.has(k) ? 0 : (value ?? 0)) + (after ? after[i] : 0));
  }
  return sums;
}

/**
 * Gives the mean of each known value and those of the rounds before it, as many as are in a span of rounds.
 *
 * Unknown values stay so. Long runs have gaps between their rounds, which a span goes across.
 */
export function trailingMean(rounds, values, span) {
  let [first, sum, known] = [0, 0, 0];
  const isKnown = (value) => value !== null && value !== undefined;
  return values.map((value, i) => {
    if (!isKnown(value)) return null;
    sum += value;
    known += 1;
    for (; rounds[first] <= rounds[i] - span; first += 1) {
      if (!isKnown(values[first])) continue;
      sum -= values[first];
      known -= 1;
    }
    return sum / known;
  });
}

/** Says in a sentence what a series does, for those who do not see the chart. */
export function seriesSummary(label, one, format) {
  if (!one.rounds) return one.constant === null ? `${label}: not known yet` : `${label}: ${format(one.constant)}`;
  const isKnown = (value) => value !== null && value !== undefined;
  const first = one.values.findIndex(isKnown);
  if (first < 0) return `${label}: nothing yet`;
  const last = one.values.findLastIndex(isKnown);
  const at = (row) => `${format(one.values[row])} in round ${one.rounds[row]}`;
  return first === last ? `${label}: ${at(last)}` : `${label}: from ${at(first)} to ${at(last)}`;
}

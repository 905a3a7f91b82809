/** The metrics of a run, round after round, appended as they come. */

/** Rounds that are asked for again: a trial of a round may be told after the round itself. */
const OVERLAP = 3;

/** Every metric of a run as rounds and values; arrays grow in place. */
export class MetricTable {
  constructor(id) {
    this.id = id;
    this.version = 0;
    this.clear();
  }

  /** Forgets everything. */
  clear() {
    this.roundsDone = null;
    this.series = {};
    this.version += 1;
  }

  /** Gives the round after which to ask: -1 for everything. */
  after() {
    return this.roundsDone === null ? -1 : Math.max(-1, this.roundsDone - OVERLAP);
  }

  /** Tells whether the run took rounds back, as it does when it goes on from a checkpoint. */
  wentBack(answer) {
    return this.roundsDone !== null && answer.rounds_done < this.roundsDone;
  }

  /** Adds what is not known yet, and corrects what is. */
  take(answer) {
    for (const [name, { rounds, values }] of Object.entries(answer.series)) {
      const kept = (this.series[name] ??= { rounds: [], values: [] });
      mergeInto(kept, rounds, values);
    }
    this.roundsDone = answer.rounds_done;
    this.version += 1;
  }

  /** Gives a metric, empty if there is none of that name. */
  get(name) {
    return this.series[name] ?? { rounds: [], values: [] };
  }

  /** Gives the last part of the names that begin so: heads, ops. */
  namesBelow(prefix) {
    return Object.keys(this.series)
      .filter((name) => name.startsWith(prefix))
      .map((name) => name.slice(prefix.length));
  }
}

/** Makes a table of an answer that holds everything, as a report does. */
export function metricTable(answer, id = "") {
  const table = new MetricTable(id);
  table.take(answer);
  return table;
}

function mergeInto(kept, rounds, values) {
  const first = rounds[0];
  let end = kept.rounds.length;
  while (end > 0 && kept.rounds[end - 1] >= first) end -= 1;
  kept.rounds.length = end;
  kept.values.length = end;
  for (let i = 0; i < rounds.length; i += 1) {
    kept.rounds.push(rounds[i]);
    kept.values.push(values[i]);
  }
}

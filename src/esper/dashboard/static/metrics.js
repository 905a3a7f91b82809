/** The metrics of a run, round after round, appended as they come. */

/** Rounds that are asked for again: a trial of a round may be told after the round itself. */
const OVERLAP = 3;

const NOTHING = Object.freeze({ rounds: Object.freeze([]), values: Object.freeze([]) });

/** Every metric of a run as rounds and values; arrays grow in place. The server thins those of long runs. */
export class MetricTable {
  constructor(id) {
    this.id = id;
    this.version = 0;
    this.clear();
  }

  /** Forgets everything. */
  clear() {
    this.roundsDone = null;
    this.isThinned = false;
    this.series = {};
    this.detail = null;
    this.joined = {};
    this.version += 1;
  }

  /** Gives the round after which to ask: -1 for everything. */
  after() {
    return this.roundsDone === null ? -1 : Math.max(-1, this.roundsDone - OVERLAP);
  }

  /** Tells whether the run took rounds back, as it does when it resumes from a checkpoint. */
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
    this.isThinned ||= answer.is_thinned;
    this.joined = {};
    this.version += 1;
  }

  /** Shows all points from first to last that an answer has; null takes them away again. Tells whether that changed it. */
  showDetail(first, last, answer) {
    if (this.detail === null && answer === null) return false;
    this.detail = answer && { first, last, series: answer.series };
    this.joined = {};
    this.version += 1;
    return true;
  }

  /** Gives a metric by name; empty if unknown. */
  get(name) {
    const known = this.series[name] ?? NOTHING;
    const more = this.detail?.series[name];
    if (!more) return known;
    return (this.joined[name] ??= withDetail(known, more, this.detail));
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

/** Joins known points outside a range with all points inside it, in new arrays. */
function withDetail(known, more, { first, last }) {
  const start = known.rounds.findIndex((round) => round >= first);
  const before = start < 0 ? known.rounds.length : start;
  const end = known.rounds.findIndex((round) => round > last);
  const after = end < 0 ? known.rounds.length : end;
  const join = (all, part) => [...all.slice(0, before), ...part, ...all.slice(after)];
  return { rounds: join(known.rounds, more.rounds), values: join(known.values, more.values) };
}

/** Gives the health of a run with all points of a range of rounds, in new arrays. */
export function healthWithDetail(health, more, [first, last]) {
  const range = { first, last };
  const join = (name) => withDetail(health[name], more[name], range);
  const names = [...new Set([...health.seconds_by_part.names, ...more.seconds_by_part.names])];
  const parts = names.map((name) => withDetail(partOf(health, name), partOf(more, name), range));
  return {
    ...health,
    throughput: join("throughput"),
    memory: join("memory"),
    governor: { ...health.governor, by_round: withDetail(health.governor.by_round, more.governor.by_round, range) },
    seconds_by_part: { names, rounds: parts[0]?.rounds ?? [], values: parts.map(({ values }) => values) },
  };
}

/** The seconds of one part in each round; 0 where no round has it. */
function partOf({ seconds_by_part: { names, rounds, values } }, name) {
  return { rounds, values: values[names.indexOf(name)] ?? rounds.map(() => 0) };
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

/** What the server said, kept in components: asked again when something changed. */

import { useEffect, useMemo, useRef, useState } from "./html.js";
import { get, runPath, withQuery } from "./api.js";
import { useSession } from "./live.js";
import { healthWithDetail, MetricTable, metricTable } from "./metrics.js";

/**
 * Gives { data, error } of a path, asked again when mark changes or the connection comes back.
 *
 * What was shown stays until the next answer, so that nothing flickers. A null path asks nothing.
 */
export function useQuery(path, mark = null) {
  return useAsked(path, mark, (signal) => get(path, signal));
}

/** Gives { table, version, error }: all metrics of a run, growing as rounds are done. */
export function useMetrics(id, mark) {
  const table = useMemo(() => new MetricTable(id), [id]);
  const { data, error } = useAsked(id, mark, (signal) => fetchMetrics(table, signal));
  return { table, version: data ?? 0, error };
}

/** Asks for all points of the rounds that charts are zoomed to, for tables of long runs that lack some; gives their version. */
export function useDetail(tables, range) {
  const lacking = tables.filter(({ isThinned }) => isThinned);
  const key = range && lacking.length ? [...range, ...lacking.map(({ id }) => id)].join("\n") : null;
  const [version, setVersion] = useState(0);
  useEffect(() => {
    const control = new AbortController();
    const show = (table, answer) => {
      if (table.showDetail(range?.[0], range?.[1], answer)) setVersion(versionOf(tables));
    };
    if (key === null) {
      tables.forEach((table) => show(table, null));
      return undefined;
    }
    const [first, last] = range;
    for (const table of lacking) {
      get(metricsPath(table, { after: first - 1, until: last }), control.signal)
        .then((answer) => show(table, answer))
        .catch(() => {}); // what is drawn stays; a lost connection is said elsewhere
    }
    return () => control.abort();
  }, [tables, key]);
  return version;
}

/** Gives a table with all points of a run, asked for if the table of a long run lacks some. */
export async function completeTable(table) {
  return table.isThinned ? metricTable(await get(metricsPath(table, { after: -1, points: "all" })), table.id) : table;
}

/** Gives { data, shown, error }: the health of a run, and the same with all points of the rounds that charts are zoomed to. */
export function useHealth(id, mark, range) {
  const { data, error } = useQuery(runPath(id, "health"), mark);
  const isLacking = Boolean(range && data?.is_thinned);
  const path = isLacking ? withQuery(runPath(id, "health"), { after: Math.max(0, range[0] - 1), until: range[1] }) : null;
  const { data: detail } = useQuery(path);
  const shown = useMemo(() => (detail ? healthWithDetail(data, detail, range) : data), [data, detail]);
  return { data, shown, error };
}

/** Gives { data, error } of several runs, in the order they are named. */
export function useManyRuns(ids, mark) {
  return useAsked(ids.join("\n"), mark, (signal) => Promise.all(ids.map((id) => get(runPath(id), signal))));
}

/** Gives { tables, version, error }: the metrics of several runs. */
export function useManyMetrics(ids, mark) {
  const key = ids.join("\n");
  const tables = useMemo(() => ids.map((id) => new MetricTable(id)), [key]);
  const { data, error } = useAsked(key, mark, async (signal) => {
    await Promise.all(tables.map((table) => fetchMetrics(table, signal)));
    return versionOf(tables);
  });
  return { tables, version: data ?? 0, error };
}

function versionOf(tables) {
  return tables.reduce((sum, { version }) => sum + version, 0);
}

function metricsPath(table, query) {
  return withQuery(runPath(table.id, "metrics"), { ...query, which: "drawn" });
}

async function fetchMetrics(table, signal) {
  const ask = () => get(metricsPath(table, { after: table.after() }), signal);
  const answer = await ask();
  if (table.wentBack(answer)) {
    table.clear();
    table.take(await ask());
  } else {
    table.take(answer);
  }
  return table.version;
}

function useAsked(key, mark, ask) {
  const [answer, setAnswer] = useState({ key: null, data: null, error: null });
  const asker = useRef(null);
  useEffect(() => {
    if (key === null) return undefined;
    const one = new Asker(
      ask,
      (data) => setAnswer({ key, data, error: null }),
      (error) => setAnswer((last) => afterError(last, key, error)),
    );
    asker.current = one;
    return () => one.stop();
  }, [key]);
  const session = useSession();
  useEffect(() => {
    if (key !== null) asker.current.ask();
  }, [key, mark, session]);
  return answer.key === key ? answer : { data: null, error: null };
}

/** Keeps what was known. That nobody answers is said once for the whole page, and moves nothing on it. */
function afterError(last, key, error) {
  const data = last.key === key ? last.data : null;
  return { key, data, error: data !== null && error.status === 0 ? null : error };
}

/** Asks one question at a time; when asked to ask during an answer, it asks once more after it. */
class Asker {
  constructor(question, onData, onError) {
    this.question = question;
    this.onData = onData;
    this.onError = onError;
    this.control = new AbortController();
    this.isBusy = false;
    this.isDue = false;
  }

  async ask() {
    this.isDue = this.isBusy;
    if (this.isBusy) return;
    this.isBusy = true;
    try {
      const data = await this.question(this.control.signal);
      if (!this.control.signal.aborted) this.onData(data);
    } catch (error) {
      if (!this.control.signal.aborted) this.onError(error);
    }
    this.isBusy = false;
    if (this.isDue && !this.control.signal.aborted) this.ask();
  }

  stop() {
    this.control.abort();
  }
}

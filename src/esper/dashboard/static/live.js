/** The stream of what changes: which runs there are, their states, how far they are. */

import { useEffect, useState } from "./html.js";
import { follow, get } from "./api.js";

const RETRY_MILLISECONDS = 2000;

/** Follows the server's events; connects again by itself, as often as it takes. */
class LiveStream {
  constructor() {
    this.connection = "connecting";
    this.reason = null;
    this.runs = {};
    this.session = 0;
    this.listeners = new Set();
    this.control = null;
    this.timer = null;
  }

  /** Connects, and stays connected while the page is seen: a browser has few connections to give. */
  start() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.connect()));
    this.connect();
  }

  /** Shows runs that no longer change, without a connection. */
  show(runs) {
    this.runs = runs;
    this.change("live");
  }

  connect() {
    this.close();
    const { signal } = (this.control = new AbortController());
    follow("events", (line) => this.take(JSON.parse(line)), signal)
      .catch((error) => {
        if (error.status) this.reason = error.message; // otherwise the server is gone
      })
      .then(() => signal.aborted || this.lose());
  }

  /** Takes what changed. The first event of a connection has all runs. */
  take({ runs }) {
    const isFirst = this.connection !== "live";
    if (isFirst) this.session += 1;
    const known = isFirst ? runs : { ...this.runs, ...runs };
    this.runs = Object.fromEntries(Object.entries(known).filter(([, run]) => run !== null));
    this.reason = null;
    this.change("live");
  }

  /** Says that the server is gone, and asks again after a while. */
  lose() {
    this.close();
    this.timer = setTimeout(() => this.probe(), RETRY_MILLISECONDS);
    this.change("disconnected");
  }

  /** Connects again if the server answers; otherwise says why not. */
  async probe() {
    try {
      await get("runs");
      if (!document.hidden) this.connect();
    } catch (error) {
      this.reason = error.message;
      if (!document.hidden) this.lose();
    }
  }

  pause() {
    this.close();
    this.change("paused");
  }

  close() {
    clearTimeout(this.timer);
    this.control?.abort();
  }

  /** Tells everybody who listens. */
  change(connection) {
    this.connection = connection;
    this.listeners.forEach((tell) => tell());
  }
}

/** The one stream of the page. */
export const live = new LiveStream();

/** Gives the state of the connection: "connecting", "live", "paused" or "disconnected". */
export function useConnection() {
  return useLive((stream) => stream.connection);
}

/** Gives why there is no connection, or null. */
export function useReason() {
  return useLive((stream) => stream.reason);
}

/** Gives how often the connection was made; the first time does not change it. */
export function useSession() {
  return useLive((stream) => Math.max(1, stream.session));
}

/** Gives what is known of a run: its state, its rounds, and how far its rows go. */
export function useLiveRun(id) {
  return useLive((stream) => stream.runs[id] ?? null, [id]);
}

/** Gives whether a run can be asked about: "waiting" to hear of it, "unknown", "empty", "unreadable" or "ready". */
export function useReadiness(id) {
  return useLive((stream) => {
    const run = stream.runs[id];
    if (!run) return { connecting: "waiting", live: "unknown" }[stream.connection] ?? "ready";
    if (run.state === "unreadable") return "unreadable";
    return run.position > 0 ? "ready" : "empty";
  }, [id]);
}

/** Gives a mark that changes with every row of a run, and when the connection comes back. */
export function useRowMark(id) {
  return useLive((stream) => mark(stream, id, "position"), [id]);
}

/** Gives a mark that changes with every round of a run, and when the connection comes back. */
export function useRoundMark(id) {
  return useLive((stream) => mark(stream, id, "rounds_done"), [id]);
}

/** Gives a mark that changes when any run changes. */
export function useAnyMark() {
  return useLive((stream) => stream.runs);
}

function mark(stream, id, field) {
  const run = stream.runs[id];
  return run ? `${stream.session} ${run.state} ${run[field]}` : null;
}

function useLive(select, inputs = []) {
  const [value, setValue] = useState(() => select(live));
  useEffect(() => {
    const tell = () => setValue(() => select(live));
    live.listeners.add(tell);
    tell();
    return () => live.listeners.delete(tell);
  }, inputs);
  return value;
}

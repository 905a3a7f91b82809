/** The stream of what changes: which runs there are, their states, how far they are. */

import { useEffect, useState } from "./html.js";

const RETRY_MILLISECONDS = 2000;

/** Follows the server's events; connects again by itself, as often as it takes. */
class LiveStream {
  constructor(path) {
    this.path = path;
    this.connection = "connecting";
    this.runs = {};
    this.listeners = new Set();
    this.source = null;
    this.timer = null;
  }

  /** Connects, and stays connected until the page goes. */
  start() {
    this.source?.close();
    clearTimeout(this.timer);
    this.source = new EventSource(this.path);
    this.source.addEventListener("open", () => this.change("live"));
    this.source.addEventListener("state", (event) => this.take(event));
    this.source.addEventListener("error", () => this.lose());
  }

  /** Takes what changed; runs that are not named stay as they were. */
  take(event) {
    const { runs } = JSON.parse(event.data);
    this.runs = { ...this.runs, ...runs };
    this.change("live");
  }

  /** Says that the server is gone. A browser gives up after an error page, so it is asked anew. */
  lose() {
    this.source.close();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.start(), RETRY_MILLISECONDS);
    this.change("disconnected");
  }

  /** Tells everybody who listens. */
  change(connection) {
    this.connection = connection;
    this.listeners.forEach((tell) => tell());
  }
}

/** The one stream of the page. */
export const live = new LiveStream("api/events");

/** Gives the state of the connection: "connecting", "live" or "disconnected". */
export function useConnection() {
  return useLive((stream) => stream.connection);
}

/** Gives what is known of a run: its state, its rounds, and how far its rows go. */
export function useLiveRun(id) {
  return useLive((stream) => stream.runs[id] ?? null, [id]);
}

/** Gives a mark that changes when any run changes, or when the connection comes back. */
export function useLiveMark() {
  return useLive((stream) => (stream.connection === "live" ? stream.runs : null));
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

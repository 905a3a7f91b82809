/** Asks the server. Every answer is plain data; an error has one line that says what is wrong. */

/** What the server answered instead of what was asked for. */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.name = "ApiError";
    this.status = status;
  }
}

const STORED = "esper-key";
let ownKey = "";

/** Takes the key that signing in left in the address, and the run to open. Only pages of this origin can read it again. */
export function takeKey() {
  const found = /^#key=([\w-]+)(?:&run=([^&]+))?$/.exec(window.location.hash);
  if (!found) return;
  ownKey = found[1];
  try {
    window.localStorage.setItem(STORED, ownKey);
  } catch {
    // Without storage the key lasts until the page is closed.
  }
  window.history.replaceState(null, "", window.location.pathname + (found[2] ? `#/run/${found[2]}` : ""));
}

/** Gives the key of the latest sign-in, of this page or another. */
function currentKey() {
  try {
    return window.localStorage.getItem(STORED) ?? ownKey;
  } catch {
    return ownKey;
  }
}

/** Gives the address of the event stream; a browser sends no headers with it. */
export function eventsPath() {
  return withQuery("api/events", { key: currentKey() });
}

/** Gets the JSON at a path below api/. */
export async function get(path, signal) {
  let response;
  try {
    const headers = { accept: "application/json", "x-esper-key": currentKey() };
    response = await fetch(`api/${path}`, { signal, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server is not responding; is esper dashboard still running?", 0);
  }
  if (response.ok) return response.json();
  throw new ApiError(await errorLine(response), response.status);
}

/** Gives the path of a run's own data. */
export function runPath(id, ...parts) {
  return ["runs", id, ...parts].map(encodeURIComponent).join("/");
}

/** Adds the values that are set to a path. */
export function withQuery(path, values) {
  const set = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return set.length ? `${path}?${new URLSearchParams(set)}` : path;
}

async function errorLine(response) {
  if (response.status === 401) {
    return "This browser is not signed in; open the link that esper dashboard printed.";
  }
  try {
    return (await response.json()).error ?? `the server answered ${response.status}`;
  } catch {
    return `the server answered ${response.status}`;
  }
}

/** Requests to the server. Every answer is plain data; an error has one line. */

/** What the server answered instead of what was asked for. */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.name = "ApiError";
    this.status = status;
  }
}

const STORED = "esper-token";
let ownToken = "";

/** Takes the token that logging in left in the address, and the run to open. Only pages of this origin can read it again. */
export function takeToken() {
  const found = /^#token=([\w-]+)(?:&run=([^&]+))?$/.exec(window.location.hash);
  if (!found) return;
  ownToken = found[1];
  try {
    window.localStorage.setItem(STORED, ownToken);
  } catch {
    // Without storage the token lasts until the page is closed.
  }
  window.history.replaceState(null, "", window.location.pathname + (found[2] ? `#/run/${found[2]}` : ""));
}

/** Gives the token of the latest login, of this page or another. */
function currentToken() {
  try {
    return window.localStorage.getItem(STORED) ?? ownToken;
  } catch {
    return ownToken;
  }
}

let ownAnswers = null;

/** Answers by path from now on, without a server. */
export function answerFrom(answers) {
  ownAnswers = answers;
}

/** Tells whether there is no server: all that can be asked for is in the page. */
export function isReport() {
  return ownAnswers !== null;
}

/** Gets the JSON at a path below api/. */
export async function get(path, signal) {
  if (ownAnswers) return ownAnswers[path.split("?", 1)[0]];
  return (await request(path, signal)).json();
}

/** Gives the lines at a path below api/ to a function, each as it arrives; returns when the server ends them. */
export async function follow(path, onLine, signal) {
  const { body } = await request(path, signal);
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    lines.filter(Boolean).forEach((line) => onLine(line));
  }
}

/** Replaces what is at a path below api/ by a text, and gives the JSON that the server answers. */
export async function put(path, body) {
  return (await request(path, undefined, { method: "PUT", body })).json();
}

async function request(path, signal, how = {}) {
  let response;
  try {
    response = await fetch(`api/${path}`, { ...how, signal, headers: { authorization: `Bearer ${currentToken()}` } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server is not responding; is esper dashboard still running?", 0);
  }
  if (response.ok) return response;
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
    return "This browser is not logged in; open the link that esper dashboard printed.";
  }
  try {
    return (await response.json()).error ?? `the server answered ${response.status}`;
  } catch {
    return `the server answered ${response.status}`;
  }
}

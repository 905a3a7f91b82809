/** Which screen is shown, from the part of the address after the hash. */

import { useEffect, useState } from "./html.js";

/** Reads an address such as #/run/ID/growth/3/17?step=4 into parts and options. */
export function parseAddress(hash) {
  const [path, query = ""] = hash.replace(/^#/, "").split("?", 2);
  const parts = path.split("/").filter(Boolean).map(decode);
  return { parts, options: Object.fromEntries(new URLSearchParams(query)) };
}

/** Makes an address from parts and the options that are set. */
export function address(parts, options = {}) {
  const set = Object.entries(options).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = set.length ? `?${new URLSearchParams(set)}` : "";
  return `#/${parts.map(encodeURIComponent).join("/")}${query}`;
}

/** Goes to an address; with replace, the one before it is not kept in the history. */
export function go(to, { replace = false } = {}) {
  if (!replace) {
    window.location.hash = to;
    return;
  }
  window.history.replaceState(null, "", to);
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

/** Gives the address that is shown, and renders again when it changes. */
export function useAddress() {
  const [hash, setHash] = useState(window.location.hash);
  useEffect(() => {
    const tell = () => setHash(window.location.hash);
    window.addEventListener("hashchange", tell);
    return () => window.removeEventListener("hashchange", tell);
  }, []);
  return parseAddress(hash);
}

const OF_GROWTH = ["growth", "environments", "learned"];
const OF_LEARNING = ["environments", "learned"];

/** Tells whether a run has a screen: PPO has no hosts, and in the user's own training nothing learns. */
export function hasScreen(name, { learns, grows }) {
  return (grows !== false || !OF_GROWTH.includes(name)) && (learns !== false || !OF_LEARNING.includes(name));
}

/** Takes percent signs out of a part of an address; what is malformed stays as it is. */
export function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

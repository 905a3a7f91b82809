/** What the keyboard does: shortcuts of a screen, and lists that are one stop of the Tab key. */

import { useEffect, useRef, useState } from "./html.js";

const TYPING = "input, select, textarea, [contenteditable]";
const PRESSED_BY_SPACE = "button:not([role=option]), summary";

/**
 * Calls what belongs to a key that is pressed anywhere on the page.
 *
 * keys: functions by the name of their key. Nothing is called while somebody types, with a modifier, in a dialog, or
 * when an element has already used the key.
 */
export function useKeys(keys) {
  const current = useRef(keys);
  current.current = keys;
  useEffect(() => {
    const press = (event) => {
      const call = current.current[event.key];
      if (!call || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      const { target } = event;
      if (target.closest?.(TYPING) || document.querySelector("dialog[open]")) return;
      if (event.key === " " && target.closest?.(PRESSED_BY_SPACE)) return;
      event.preventDefault();
      call();
    };
    window.addEventListener("keydown", press);
    return () => window.removeEventListener("keydown", press);
  }, []);
}

/**
 * Makes a list one stop of the Tab key; arrow keys, Home and End go through it.
 *
 * Put box, press and focus on the element around the items (as ref, onKeyDown and onFocusIn), and tab(k) on the k-th
 * item as tabindex. Items are what the selector finds; start is the item that Tab reaches first.
 */
export function useOneTabStop(selector, count, start = 0) {
  const box = useRef(null);
  const [chosen, setChosen] = useState(null);
  const items = () => [...box.current.querySelectorAll(selector)];
  const press = (event) => {
    const all = items();
    const at = all.indexOf(document.activeElement);
    const next = at < 0 ? null : nextItem(all, at, event.key);
    if (next === null) return;
    event.preventDefault();
    setChosen(next);
    all[next].focus();
  };
  const focus = (event) => {
    const at = items().indexOf(event.target);
    if (at >= 0) setChosen(at);
  };
  const current = Math.min(Math.max(0, chosen ?? start), Math.max(0, count - 1));
  return { box, press, focus, tab: (k) => (k === current ? 0 : -1) };
}

/** Gives the item that a key leads to: beside it, or above and below it where items stand in rows; null for none. */
function nextItem(all, at, key) {
  const tops = all.map((item) => item.getBoundingClientRect().top);
  const below = tops.findIndex((top) => top > tops[0] + 1);
  const columns = below < 0 ? all.length : below;
  const steps = {
    ...(columns > 1 && { ArrowRight: 1, ArrowLeft: -1 }),
    ...(below > 0 && { ArrowDown: columns, ArrowUp: -columns }),
    Home: -at,
    End: all.length - 1 - at,
  };
  return key in steps ? Math.min(all.length - 1, Math.max(0, at + steps[key])) : null;
}

/** What components are written with: templates and hooks. */

import { h, render, Fragment } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { h, render, Fragment };
export {
  useCallback,
  useEffect,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
} from "./vendor/hooks.js";

/** Turns a template into elements; what is put into it is text, never markup. */
export const html = htm.bind(h);

/** Joins the names of classes that are set. */
export function classes(...names) {
  return names.filter(Boolean).join(" ");
}

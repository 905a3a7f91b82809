/** A table that scrolls sideways where it is too wide; the keyboard reaches it only then. */

import { classes, html, useLayoutEffect, useRef, useState } from "../html.js";

/** Holds a table. */
export function TableBox({ label, className, children }) {
  const box = useRef(null);
  const [isWide, setWide] = useState(false);
  useLayoutEffect(() => {
    const measure = () => setWide(box.current.scrollWidth > box.current.clientWidth + 1);
    const watcher = new ResizeObserver(measure);
    watcher.observe(box.current);
    measure();
    return () => watcher.disconnect();
  }, []);
  const reach = isWide ? { tabindex: 0, role: "region", "aria-label": label } : {};
  return html`<div class=${classes("table-box", className)} ref=${box} ...${reach}>${children}</div>`;
}

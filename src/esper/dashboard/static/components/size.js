/** How wide an element is, as it changes. */

import { useLayoutEffect, useRef, useState } from "../html.js";

/** Gives [ref, width]: put the ref on an element; the width is 0 until it is known. */
export function useWidth() {
  const element = useRef(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const measure = () => setWidth(Math.floor(element.current.clientWidth));
    const watcher = new ResizeObserver(measure);
    watcher.observe(element.current);
    measure();
    return () => watcher.disconnect();
  }, []);
  return [element, width];
}

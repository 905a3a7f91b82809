/** Something above the page: Escape, a button or a click beside it closes it. */

import { classes, html, useEffect, useRef } from "../html.js";

/** Shows its children above the page until it is closed; the focus goes back to where it was. */
export function Dialog({ label, onClose, className, children }) {
  const element = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    element.current.showModal();
    return () => before?.focus?.({ preventScroll: true });
  }, []);
  const click = (event) => event.target === element.current && element.current.close();
  return html`<dialog class=${classes("dialog", className)} ref=${element} aria-label=${label} onClose=${onClose} onClick=${click}>
    <button type="button" class="button quiet dialog-close" aria-label="Close" onClick=${() => element.current.close()}>✕</button>
    ${children}
  </dialog>`;
}

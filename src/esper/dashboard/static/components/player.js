/** Goes through an episode: a slider, steps back and forth, and playing. */

import { html, useEffect, useState } from "../html.js";
import { useKeys } from "../keys.js";
import { stepWords } from "../words.js";

const MILLISECONDS = 650;

/** Controls over the steps of an episode; with isKeyed, arrows and space do the same anywhere on the page. */
export function Player({ steps, step, onStep, isKeyed = false }) {
  const [isPlaying, setPlaying] = useState(false);
  const last = steps.length - 1;
  useEffect(() => {
    if (!isPlaying) return undefined;
    if (step >= last) {
      setPlaying(false);
      return undefined;
    }
    const timer = setTimeout(() => onStep(step + 1), MILLISECONDS);
    return () => clearTimeout(timer);
  }, [isPlaying, step, last]);
  const play = () => {
    if (!isPlaying && step >= last) onStep(0);
    setPlaying(!isPlaying);
  };
  const move = (by) => onStep(Math.min(last, Math.max(0, step + by)));
  useKeys(isKeyed ? { ArrowLeft: () => move(-1), ArrowRight: () => move(1), " ": play } : {});
  const words = `step ${step + 1} of ${last + 1}: ${stepWords(steps[step])}`;
  return html`<div class="player">
    <button type="button" class="button" onClick=${play} aria-pressed=${isPlaying}>
      <${Sign} isPlaying=${isPlaying} />${isPlaying ? "Pause" : "Play"}</button>
    <button type="button" class="button" aria-label="Step back" disabled=${step <= 0}
      onClick=${() => onStep(step - 1)}>‹</button>
    <button type="button" class="button" aria-label="Step forward" disabled=${step >= last}
      onClick=${() => onStep(step + 1)}>›</button>
    <input type="range" min="0" max=${last} value=${step} aria-label="Step" aria-valuetext=${words}
      onInput=${(event) => onStep(Number(event.currentTarget.value))} />
    <span class="player-words small">${words}</span>
  </div>`;
}

function Sign({ isPlaying }) {
  return html`<svg width="10" height="10" viewBox="0 0 10 10" aria-hidden="true">
    <path d=${isPlaying ? "M1 1h3v8H1zM6 1h3v8H6z" : "M1 0L10 5L1 10Z"} fill="currentColor" /></svg>`;
}

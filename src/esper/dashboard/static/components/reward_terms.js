/** What a reward is made of, as a bar in two directions from zero and as numbers. */

import { html } from "../html.js";
import { TERM_COLOURS } from "../colours.js";
import { signed } from "../format.js";
import { plain, TERMS } from "../words.js";

/** The terms of a reward; those below zero go to the left. */
export function RewardTerms({ terms, reward }) {
  const known = Object.keys(TERMS).map((name) => [name, terms[name] ?? 0]);
  const sum = (sign) => known.reduce((total, [, value]) => total + Math.max(0, sign * value), 0);
  const reach = Math.max(sum(1), sum(-1), 1e-9);
  const sides = [-1, 1].map((sign) => pieces(known, sign, reach));
  return html`<div class="terms">
    <svg class="terms-bar" viewBox="0 0 200 14" preserveAspectRatio="none" role="img"
      aria-label=${`Reward ${signed(reward)}: ${known.map(([name, value]) => `${plain(name)} ${signed(value)}`).join(", ")}`}>
      <rect class="terms-ground" width="200" height="14" />
      ${sides.flat().map(({ name, x, width }) => html`<rect key=${name} x=${x} y="1" width=${width} height="12"
        fill=${TERM_COLOURS[name]}><title>${plain(name)} ${signed(terms[name])}</title></rect>`)}
      <line class="terms-zero" x1="100" x2="100" y1="0" y2="14" />
    </svg>
    <ul class="terms-numbers">
      ${known.map(([name, value]) => html`<li key=${name} title=${TERMS[name]}>
        <svg width="10" height="10" aria-hidden="true"><rect width="10" height="10" rx="2" fill=${TERM_COLOURS[name]} /></svg>
        <span>${plain(name)}</span><span class="n">${signed(value)}</span></li>`)}
    </ul>
  </div>`;
}

function pieces(known, sign, reach) {
  let at = 0;
  return known.filter(([, value]) => sign * value > 0).map(([name, value]) => {
    const width = (100 * Math.abs(value)) / reach;
    const x = sign > 0 ? 100 + at : 100 - at - width;
    at += width;
    return { name, x, width };
  });
}

/** How often something happened at each epoch, one small chart for each part of a run. */

import { html } from "../html.js";
import { number, percent, whole } from "../format.js";

const HEIGHT = 40;

/** Draws the share of what happened at each epoch, all parts on the same axes. */
export function Histograms({ title, note, parts, field, empty }) {
  const last = Math.max(0, ...parts.flatMap((part) => Object.keys(part[field]).map(Number)));
  const epochs = Array.from({ length: last + 1 }, (_, epoch) => epoch);
  const maximum = Math.max(1e-9, ...parts.map((part) => Math.max(0, ...Object.values(part[field])) / Math.max(1, total(part[field]))));
  const isEmpty = parts.every((part) => total(part[field]) === 0);
  return html`<section class="panel">
    <div class="panel-head"><h2>${title}</h2><span class="muted small">${note}</span></div>
    ${isEmpty ? html`<p class="muted">${empty}</p>` : html`<table class="histograms small"><tbody>
      ${parts.map((part) => html`<tr key=${part.first_round}>
        <th scope="row">${part.first_round === part.last_round ? "round" : "rounds"} ${roundsOf(part)}</th>
        <td><${Histogram} counts=${part[field]} epochs=${epochs} maximum=${maximum} /></td>
        <td class="n muted">${words(part[field])}</td></tr>`)}
      <tr><th scope="row" class="muted">epoch</th><td><${Axis} last=${last} /></td><td></td></tr>
    </tbody></table>`}
  </section>`;
}

function Histogram({ counts, epochs, maximum }) {
  const all = Math.max(1, total(counts));
  const width = 100 / epochs.length;
  return html`<svg class="histogram" viewBox=${`0 0 100 ${HEIGHT}`} preserveAspectRatio="none" role="img"
    aria-label=${`${words(counts)}; most at epoch ${mode(counts)}`}>
    <line class="gridline" x1="0" x2="100" y1=${HEIGHT - 0.5} y2=${HEIGHT - 0.5} />
    ${epochs.map((epoch) => {
      const share = (counts[epoch] ?? 0) / all;
      const height = (HEIGHT * share) / maximum;
      return html`<rect key=${epoch} x=${epoch * width + 0.1 * width} y=${HEIGHT - height} width=${0.8 * width} height=${height}>
        <title>epoch ${epoch}: ${percent(share, 1)}, ${whole(counts[epoch] ?? 0)}</title></rect>`;
    })}
  </svg>`;
}

function Axis({ last }) {
  const every = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((step) => last / step <= 8) ?? 1000;
  const isShown = (epoch) => epoch === last || (epoch % every === 0 && last - epoch >= 0.6 * every);
  const epochs = Array.from({ length: last + 1 }, (_, epoch) => epoch).filter(isShown);
  return html`<span class="histogram-axis" aria-hidden="true">${epochs.map((epoch) => html`<span key=${epoch}
    style=${{ left: `${(100 * (epoch + 0.5)) / (last + 1)}%` }}>${epoch}</span>`)}</span>`;
}

function total(counts) {
  return Object.values(counts).reduce((sum, value) => sum + value, 0);
}

function mode(counts) {
  return Object.keys(counts).reduce((best, epoch) => (counts[epoch] > (counts[best] ?? -1) ? epoch : best), 0);
}

function words(counts) {
  const all = total(counts);
  if (all === 0) return "none";
  const mean = Object.entries(counts).reduce((sum, [epoch, value]) => sum + Number(epoch) * value, 0) / all;
  return `mean ${number(mean, 1)}`;
}

/** Gives the rounds of a part, as they are written. */
export function roundsOf(part) {
  return part.first_round === part.last_round ? String(part.first_round) : `${part.first_round}–${part.last_round}`;
}

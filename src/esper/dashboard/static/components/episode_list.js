/** The episodes of a run, in an order and with a filter, to choose one from. */

import { classes, html } from "../html.js";
import { isNumber, many, number, signed, whole } from "../format.js";
import { useOneTabStop } from "../keys.js";
import { address } from "../router.js";

const ORDERS = {
  recent: "latest first",
  best: "kept a seed and gained most over no growth, or else returned most",
  typical: "nearest to the median return first",
  worst: "lowest return first",
};

/** A list with its filter; what is chosen is a link to its timeline. */
export function EpisodeList({ id, list, filter, setFilter, setOpens, chosen, page, nEnvs }) {
  const episodes = list?.episodes ?? [];
  const at = episodes.findIndex(({ env, episode }) => chosen?.env === env && chosen?.episode === episode);
  const { box, press, focus, tab } = useOneTabStop(".episode-item", episodes.length, at);
  const sort = (order) => {
    setFilter({ ...filter, order, limit: page });
    setOpens(order);
  };
  const set = (name) => (event) => setFilter({ ...filter, [name]: event.currentTarget.value, limit: page });
  return html`<section class="panel episode-list" aria-label="Episodes">
    <div class="panel-head"><h2>Episodes</h2>
      <span class="muted small">${list ? `${whole(list.total)} finished` : ""}</span></div>
    <div class="choice-row episode-orders" role="group" aria-label="Order">
      ${Object.entries(ORDERS).map(([order, words]) => html`<button type="button" key=${order} title=${words}
        aria-pressed=${filter.order === order} onClick=${() => sort(order)}>${order}</button>`)}
    </div>
    <div class="episode-filter">
      <label class="field">environment <input type="number" min="0" max=${nEnvs ? nEnvs - 1 : null} placeholder="any"
        value=${filter.env} onInput=${set("env")} /></label>
      <label class="field">rounds <input type="number" min="1" placeholder="first" aria-label="first round"
        value=${filter.first_round} onInput=${set("first_round")} /></label>
      <label class="field">to <input type="number" min="1" placeholder="last" aria-label="last round"
        value=${filter.last_round} onInput=${set("last_round")} /></label>
    </div>
    <ol class="episodes" ref=${box} onKeyDown=${press} onFocusIn=${focus}>
      ${episodes.map((one, k) => html`<${Item} key=${`${one.env}/${one.episode}`} id=${id} one=${one}
        isChosen=${k === at} tabindex=${tab(k)} />`)}
      ${list && list.episodes.length < list.total && html`<li><button type="button" class="button more"
        onClick=${() => setFilter({ ...filter, limit: filter.limit + page })}>More</button></li>`}
    </ol>
  </section>`;
}

function Item({ id, one, isChosen, tabindex }) {
  const words = `round ${one.round}, ${many(one.ep_len, "step")}, ${one.n_grown} kept`;
  return html`<li><a class=${classes("episode-item", isChosen && "chosen")} aria-current=${isChosen ? "true" : null}
    tabindex=${tabindex} href=${address(["run", id, "growth", one.env, one.episode])}>
    <span>env ${one.env} · ep ${one.episode}</span><strong title="return">${number(one.ep_rew)}</strong>
    <span class="small muted">${words}</span>
    ${isNumber(one.gain) && html`<span class="small muted" title="gain over the same host with no growth">gain ${signed(one.gain)}</span>`}
  </a></li>`;
}

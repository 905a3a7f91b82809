/** Growth: choose an episode, and see how a host grew, step by step. */

import { html, useCallback, useEffect, useRef, useState } from "../html.js";
import { runPath, withQuery } from "../api.js";
import { Episode } from "../components/episode.js";
import { EpisodeList } from "../components/episode_list.js";
import { Empty, Problem, Waiting } from "../components/messages.js";
import { useQuery } from "../data.js";
import { useKeys } from "../keys.js";
import { useLiveRun, useRoundMark, useRowMark } from "../live.js";
import { address, go } from "../router.js";

const PAGE = 50;
const STEP_DELAY = 250;

/** The list of episodes beside the chosen one. */
export function GrowthScreen({ id, rest, options }) {
  const [filter, setFilter] = useState({ order: "best", env: "", first_round: "", last_round: "", limit: PAGE });
  const [opens, setOpens] = useState(null);
  const mark = useRoundMark(id);
  const { data: run, error: runError } = useQuery(runPath(id), mark);
  const list = useQuery(withQuery(runPath(id, "episodes"), filter), mark);
  const chosen = rest.length === 2
    ? { env: Number(rest[0]), episode: Number(rest[1]) }
    : firstOf(list.data) ?? onlyOne(run, list.data);
  const isListed = rest.length === 2;
  useEffect(() => {
    // The list moves on while a run is live; what is looked at stays.
    if (!isListed && chosen) go(address(["run", id, "growth", chosen.env, chosen.episode]), { replace: true });
  }, [isListed, chosen?.env, chosen?.episode]);
  useEffect(() => {
    // Another order opens its first episode, once the list is in that order.
    const first = firstOf(list.data);
    if (opens === null || list.data?.order !== opens) return;
    setOpens(null);
    if (first) go(address(["run", id, "growth", first.env, first.episode]));
  }, [opens, list.data]);
  const choose = (by) => {
    const all = list.data?.episodes ?? [];
    const at = all.findIndex(({ env, episode }) => chosen?.env === env && chosen?.episode === episode);
    const next = all[at + by];
    if (next) go(address(["run", id, "growth", next.env, next.episode]));
  };
  useKeys({ j: () => choose(1), k: () => choose(-1) });
  return html`
    <h1 class="hidden-text">Growth</h1>
    <${Problem} error=${runError ?? list.error} />
    <div class="growth">
      <${EpisodeList} ...${{ id, list: list.data, filter, setFilter, setOpens, chosen, page: PAGE }} nEnvs=${run?.overview?.n_envs} />
      <div class="growth-main">
        ${chosen
          ? html`<${ChosenEpisode} key=${`${chosen.env}/${chosen.episode}`} ...${{ id, chosen, options }}
              overview=${run?.overview} />`
          : list.data
            ? html`<div class="panel"><${Empty} title="No matching episode.">
                Widen the filter, or wait for the first episode to end.<//></div>`
            : html`<${Waiting} height=${560} />`}
      </div>
    </div>`;
}

function ChosenEpisode({ id, chosen, options, overview }) {
  const [isOver, setOver] = useState(false);
  const isRunning = useLiveRun(id)?.state === "running";
  const mark = useRowMark(id);
  const path = runPath(id, "episodes", chosen.env, chosen.episode);
  const { data, error } = useQuery(path, isOver ? "over" : mark);
  const timer = useRef(null);
  useEffect(() => setOver(Boolean(data?.is_over)), [data]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const keepStep = useCallback((step) => {
    clearTimeout(timer.current);
    const to = address(["run", id, "growth", chosen.env, chosen.episode], { step: step + 1 });
    timer.current = setTimeout(() => go(to, { replace: true }), STEP_DELAY);
  }, [id, chosen.env, chosen.episode]);
  if (!data && error) return html`<${Problem} error=${error} /><${Neighbours} ...${{ id, chosen }} hasNext=${false} />`;
  if (!data) return html`<${Waiting} height=${560} />`;
  const first = /^[1-9]\d*$/.test(options.step ?? "") ? Number(options.step) - 1 : null;
  return html`<${Episode} ...${{ detail: data, overview, isRunning }} isKeyed=${true} firstStep=${first} onStep=${keepStep}
    head=${html`<${Neighbours} ...${{ id, chosen }} hasNext=${data.is_over && (overview?.learns ?? true)} />`} />`;
}

function Neighbours({ id, chosen, hasNext }) {
  const to = (episode) => address(["run", id, "growth", chosen.env, episode]);
  return html`<span class="neighbours small">
    ${chosen.episode > 0 && html`<a href=${to(chosen.episode - 1)}>previous episode</a>`}
    ${hasNext && html`<a href=${to(chosen.episode + 1)}>next episode</a>`}</span>`;
}

/** Gives the episode of a run with a single host while it is in progress, such as a training of the user's own. */
function onlyOne(run, list) {
  const isWaiting = list?.total === 0 && run?.overview?.n_envs === 1 && run.rounds_done > 0;
  return isWaiting ? { env: 0, episode: 0 } : null;
}

function firstOf(list) {
  const first = list?.episodes[0];
  return first ? { env: first.env, episode: first.episode } : null;
}

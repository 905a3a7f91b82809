"""The last host of each environment, as of the last recorded step."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args

from esper.config.checks import require_choice
from esper.dashboard.views.episode import named
from esper.dashboard.views.episodes import IN_PAIRS, Episode, last_episodes
from esper.dashboard.views.run import Names, names_of, run_of, settings_of
from esper.dashboard.views.values import Row, finite
from esper.lifecycle.slot_state import read_slots
from esper.telemetry import RunTelemetry
from esper.telemetry.records import StepRecord

Environment = Row
"""The host of one environment, in its last episode.

``ep_rew`` is the sum of rewards so far, ``seed_parameters`` are those of the present seeds,
``n_kept`` are seeds that have become part of the host, and ``gain`` is the final score minus that
of the same host with no growth. Stages and alphas are empty, and op is None, if steps were not
recorded; the final score is None while the episode is not over.
"""


Which = Literal["last", "finished"]
WHICH: tuple[Which, ...] = get_args(Which)


def environments(telemetry: RunTelemetry, which: Which = "last") -> Row:
    """Return a host of each environment, and whether steps were recorded.

    Args:
        telemetry: The run's telemetry.
        which: The last host, which may be in the middle of its episode, or the last one whose
            episode has finished. In a run that does not record steps, only finished ones are known.

    Raises:
        ConfigError: If it is neither.
    """
    require_choice("which", which, WHICH)
    with telemetry.snapshot():
        run, last = run_of(telemetry), telemetry.last(StepRecord)
        n_epochs = None if run is None else settings_of(run).budget.n_epochs
        ended = {one["env"]: one for one in last_episodes(telemetry)}
        rows: dict[int, list[tuple[Any, ...]]] = {}
        if last is not None and which == "last":
            # The step that finishes a host trains no epoch, and the last step may be incomplete.
            since = last.step - (n_epochs or 0) - 1
            rows = _by_env(telemetry, "step >= :since", since=since)
        elif last is not None and ended:
            pairs = json.dumps([(env, one["episode"]) for env, one in ended.items()])
            rows = _by_env(telemetry, IN_PAIRS, pairs=pairs)
    names = names_of(run)
    hosts = [_environment(env, rows[env], names, ended.get(env)) for env in sorted(rows)]
    return {
        "slots": names.slots,
        "n_epochs_max": n_epochs,
        "has_steps": last is not None,
        "envs": hosts if rows else [_from_result(ended[env]) for env in sorted(ended)],
    }


def _by_env(
    telemetry: RunTelemetry, where: str, **values: object
) -> dict[int, list[tuple[Any, ...]]]:
    """Return the steps that meet a condition, by environment."""
    rows: dict[int, list[tuple[Any, ...]]] = {}
    for env, *facts in telemetry.select(
        "SELECT env, episode, epoch, score, reward, op_done, slots FROM steps "
        f"WHERE {where} ORDER BY step, seq",
        **values,
    ):
        rows.setdefault(env, []).append(tuple(facts))
    return rows


def _environment(
    env: int, rows: list[tuple[Any, ...]], names: Names, ended: Episode | None
) -> Environment:
    """Return a host from its steps and the last episode of its environment that has ended."""
    episode, epoch, score, _, op_done, text = rows[-1]
    result = ended if ended is not None and ended["episode"] == episode else None
    own = [row for row in rows if row[0] == episode]
    slots = read_slots(text, names.blueprints)
    # A slot counts its own seed as a fossil once it is free again.
    n_kept = sum(slot.n_fossils + (slot.stage == "fossilized") for slot in slots)
    return {
        "env": env,
        "episode": episode,
        "epoch": epoch,
        "score": finite(score),
        "scores": [finite(row[2]) for row in own],
        "stages": [slot.stage for slot in slots],
        "alphas": [slot.alpha for slot in slots],
        "op": named(names.ops, op_done),
        "ep_rew": _total([row[3] for row in own]),
        "seed_parameters": sum(slot.grown_parameters for slot in slots),
        "n_kept": n_kept if result is None else result["n_grown"],
        **_outcome(episode, result),
    }


def _outcome(episode: int, ended: Episode | None) -> Row:
    """Return whether and how an episode has ended, and the environment's finished episodes."""
    return {
        "is_over": ended is not None,
        "final_score": ended and ended["final_score"],
        "gain": ended and ended["gain"],
        "n_episodes": episode + (ended is not None),
    }


def _from_result(ended: Episode) -> Environment:
    """Return a host of which only the result is recorded."""
    names = ("env", "episode", "ep_rew", "seed_parameters")
    return {
        **{name: ended[name] for name in names},
        "epoch": ended["n_epochs"],
        "score": ended["final_score"],
        "scores": [],
        "stages": [],
        "alphas": [],
        "op": None,
        "n_kept": ended["n_grown"],
        **_outcome(ended["episode"], ended),
    }


def _total(rewards: list[float | None]) -> float | None:
    """Return the sum of rewards, or None if one of them is not finite."""
    known = [finite(reward) for reward in rewards]
    return None if None in known else sum(one for one in known if one is not None)

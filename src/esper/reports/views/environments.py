"""The last host of each environment, as of the last recorded step."""

from __future__ import annotations

from typing import Any, Literal, TypedDict, get_args

from esper.config.checks import require_choice
from esper.lifecycle.stages import Stage
from esper.reports.views.episode import SlotState, named, read_slots
from esper.reports.views.episodes import Episode, last_episodes
from esper.reports.views.run import Names, names_of, run_of, settings_of
from esper.reports.views.values import finite
from esper.telemetry import RunTelemetry
from esper.telemetry.records import StepRecord

_FOSSILIZED = Stage.FOSSILIZED.name.lower()


class Environment(TypedDict):
    """The host of one environment, in its last episode."""

    env: int
    episode: int
    is_over: bool
    """Whether the episode ended with the last step."""
    epoch: int
    score: float | None
    scores: list[float | None]
    """After each step of the episode so far."""
    stages: list[str]
    """Empty if steps were not recorded."""
    alphas: list[float | None]
    op: str | None
    """The last op; None if steps were not recorded."""
    ep_rew: float | None
    """The sum of rewards so far."""
    seed_parameters: int | None
    """Parameters of the present seeds; None if not recorded."""
    n_kept: int
    """Seeds that have become part of the host."""
    final_score: float | None
    """None while the episode is not over."""
    gain: float | None
    """The final score minus that of the same host left alone, if recorded."""
    n_episodes: int
    """Finished episodes of the environment."""


class Environments(TypedDict):
    """All environments."""

    slots: list[str]
    n_epochs_max: int | None
    has_steps: bool
    """Whether steps were recorded (``telemetry.record_steps``)."""
    envs: list[Environment]


Which = Literal["last", "finished"]
WHICH: tuple[Which, ...] = get_args(Which)


def environments(telemetry: RunTelemetry, which: Which = "last") -> Environments:
    """Return a host of each environment.

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
            rows = _by_env(telemetry, f"step >= {since}")
        elif last is not None and ended:
            pairs = ", ".join(f"({env}, {one['episode']})" for env, one in ended.items())
            # SQLite does not use the index for a plain list of VALUES.
            rows = _by_env(telemetry, f"(env, episode) IN (SELECT * FROM (VALUES {pairs}))")
    names = names_of(run)
    hosts = [_environment(env, rows[env], names, ended.get(env)) for env in sorted(rows)]
    return {
        "slots": names.slots,
        "n_epochs_max": n_epochs,
        "has_steps": last is not None,
        "envs": hosts if rows else [_from_result(ended[env]) for env in sorted(ended)],
    }


def _by_env(telemetry: RunTelemetry, where: str) -> dict[int, list[tuple[Any, ...]]]:
    """Return the steps that meet a condition, by environment."""
    rows: dict[int, list[tuple[Any, ...]]] = {}
    for env, *values in telemetry.select(
        "SELECT env, episode, epoch, score, reward, op_done, slots FROM steps "
        f"WHERE {where} ORDER BY step, seq"
    ):
        rows.setdefault(env, []).append(tuple(values))
    return rows


def _environment(
    env: int, rows: list[tuple[Any, ...]], names: Names, ended: Episode | None
) -> Environment:
    """Return a host from its steps and the last episode of its environment that has ended."""
    episode, epoch, score, _, op_done, text = rows[-1]
    result = ended if ended is not None and ended["episode"] == episode else None
    own = [row for row in rows if row[0] == episode]
    slots = read_slots(text, names.blueprints)
    parameters = [slot["parameters"] for slot in slots]
    known = [number for number in parameters if number is not None]
    fossils = sum(slot["fossil_parameters"] for slot in slots)
    return {
        "env": env,
        "episode": episode,
        "is_over": result is not None,
        "epoch": epoch,
        "score": finite(score),
        "scores": [finite(row[2]) for row in own],
        "stages": [slot["stage"] for slot in slots],
        "alphas": [slot["alpha"] for slot in slots],
        "op": named(names.ops, op_done),
        "ep_rew": _total([row[3] for row in own]),
        "seed_parameters": sum(known) + fossils if len(known) == len(parameters) else None,
        "n_kept": _n_kept(slots) if result is None else result["n_grown"],
        "final_score": None if result is None else result["final_score"],
        "gain": None if result is None else result["gain"],
        "n_episodes": episode + (result is not None),
    }


def _n_kept(slots: list[SlotState]) -> int:
    """Return the number of fossilized seeds; a slot counts its own once it is free again."""
    return sum(slot["n_fossils"] + (slot["stage"] == _FOSSILIZED) for slot in slots)


def _from_result(ended: Episode) -> Environment:
    """Return a host of which only the result is recorded."""
    return {
        "env": ended["env"],
        "episode": ended["episode"],
        "is_over": True,
        "epoch": ended["n_epochs"],
        "score": ended["final_score"],
        "scores": [],
        "stages": [],
        "alphas": [],
        "op": None,
        "ep_rew": ended["ep_rew"],
        "seed_parameters": ended["seed_parameters"],
        "n_kept": ended["n_grown"],
        "final_score": ended["final_score"],
        "gain": ended["gain"],
        "n_episodes": ended["episode"] + 1,
    }


def _total(rewards: list[float | None]) -> float | None:
    """Return the sum of rewards, or None if one of them is not finite."""
    known = [finite(reward) for reward in rewards]
    return None if None in known else sum(one for one in known if one is not None)

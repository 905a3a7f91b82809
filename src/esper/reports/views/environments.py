"""All hosts that are being grown, as of the last step that is recorded."""

from __future__ import annotations

from typing import Any, TypedDict

from esper.reports.views.episode import named, read_slots
from esper.reports.views.finding import first_number
from esper.reports.views.run import Names, names_of, run_of, settings_of
from esper.reports.views.values import finite
from esper.telemetry import RunTelemetry
from esper.telemetry.records import EpisodeRecord, StepRecord


class Environment(TypedDict):
    """The host of one environment, in its current episode."""

    env: int
    episode: int
    is_over: bool
    """Whether the episode ended with the last step, so that another host is next."""
    epoch: int
    score: float | None
    scores: list[float | None]
    """After each step of the episode so far."""
    stages: list[str]
    alphas: list[float | None]
    op: str
    ep_rew: float | None
    """The sum of rewards so far."""
    seed_parameters: int | None
    """Parameters of the seeds that are there; None if they were not recorded."""
    n_episodes: int
    """Episodes of the environment that ended."""


class Environments(TypedDict):
    """All environments."""

    slots: list[str]
    n_epochs_max: int | None
    has_steps: bool
    """Whether there are steps; a run can be told not to record them."""
    envs: list[Environment]


def environments(telemetry: RunTelemetry) -> Environments:
    """Return how the host of each environment is, as of its last recorded step."""
    with telemetry.snapshot():
        run, last = run_of(telemetry), telemetry.last(StepRecord)
        n_epochs = None if run is None else settings_of(run).budget.n_epochs
        rows: dict[int, list[tuple[Any, ...]]] = {}
        ended = set[tuple[int, int]]()
        if last is not None:
            # The step that finishes a host trains no epoch, and the last step may be in part there.
            first = last.step - (n_epochs or 0) - 1
            rows, ended = _rows_since(telemetry, first), _ended_since(telemetry, first)
    names = names_of(run)
    return {
        "slots": names.slots,
        "n_epochs_max": n_epochs,
        "has_steps": last is not None,
        "envs": [_environment(env, rows[env], ended, names) for env in sorted(rows)],
    }


def _rows_since(telemetry: RunTelemetry, step: int) -> dict[int, list[tuple[Any, ...]]]:
    """Return what is needed of the steps since one, by environment."""
    start = first_number(telemetry, StepRecord, "step", step)
    sql = "SELECT env, episode, epoch, score, reward, op_done, slots FROM steps WHERE seq >= :start"
    rows: dict[int, list[tuple[Any, ...]]] = {}
    for env, *values in telemetry.select(f"{sql} ORDER BY seq", start=start):
        rows.setdefault(env, []).append(tuple(values))
    return rows


def _ended_since(telemetry: RunTelemetry, step: int) -> set[tuple[int, int]]:
    """Return the environments and numbers of the episodes that ended since a step."""
    start = first_number(telemetry, EpisodeRecord, "step", step)
    sql = "SELECT env, episode FROM episodes WHERE seq >= :start"
    return {(env, episode) for env, episode in telemetry.select(sql, start=start)}


def _environment(
    env: int, rows: list[tuple[Any, ...]], ended: set[tuple[int, int]], names: Names
) -> Environment:
    episode, epoch, score, _, op_done, text = rows[-1]
    own = [row for row in rows if row[0] == episode]
    slots = read_slots(text, names.blueprints)
    parameters = [slot["parameters"] for slot in slots]
    known = [number for number in parameters if number is not None]
    is_over = (env, episode) in ended
    return {
        "env": env,
        "episode": episode,
        "is_over": is_over,
        "epoch": epoch,
        "score": finite(score),
        "scores": [finite(row[2]) for row in own],
        "stages": [slot["stage"] for slot in slots],
        "alphas": [slot["alpha"] for slot in slots],
        "op": named(names.ops, op_done),
        "ep_rew": _total([row[3] for row in own]),
        "seed_parameters": sum(known) if len(known) == len(parameters) else None,
        "n_episodes": episode + is_over,
    }


def _total(rewards: list[float | None]) -> float | None:
    """Return the sum of rewards, or None if one of them is not finite."""
    known = [finite(reward) for reward in rewards]
    return None if None in known else sum(one for one in known if one is not None)

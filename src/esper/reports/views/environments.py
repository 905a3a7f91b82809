"""The hosts that are being grown, as of the last recorded step."""

from __future__ import annotations

from typing import Any, TypedDict

from esper.reports.views.episode import named, read_slots
from esper.reports.views.run import Names, names_of, run_of, settings_of
from esper.reports.views.values import finite
from esper.telemetry import RunTelemetry
from esper.telemetry.records import StepRecord


class Environment(TypedDict):
    """The host of one environment, in its current episode."""

    env: int
    episode: int
    is_over: bool
    """Whether the episode ended with the last step."""
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
    """Parameters of the present seeds; None if not recorded."""
    n_episodes: int
    """Finished episodes of the environment."""


class Environments(TypedDict):
    """All environments."""

    slots: list[str]
    n_epochs_max: int | None
    has_steps: bool
    """Whether steps were recorded (``telemetry.record_steps``)."""
    envs: list[Environment]


def environments(telemetry: RunTelemetry) -> Environments:
    """Return the state of each environment's host after its last recorded step."""
    with telemetry.snapshot():
        run, last = run_of(telemetry), telemetry.last(StepRecord)
        n_epochs = None if run is None else settings_of(run).budget.n_epochs
        rows: dict[int, list[tuple[Any, ...]]] = {}
        if last is not None:
            # The step that finishes a host trains no epoch, and the last step may be incomplete.
            rows = _rows_since(telemetry, last.step - (n_epochs or 0) - 1)
        over = {env: _ended(telemetry, env, own[-1][0]) for env, own in rows.items()}
    names = names_of(run)
    return {
        "slots": names.slots,
        "n_epochs_max": n_epochs,
        "has_steps": last is not None,
        "envs": [_environment(env, rows[env], names, is_over=over[env]) for env in sorted(rows)],
    }


def _rows_since(telemetry: RunTelemetry, step: int) -> dict[int, list[tuple[Any, ...]]]:
    """Return the steps from one on, by environment."""
    rows: dict[int, list[tuple[Any, ...]]] = {}
    for env, *values in telemetry.select(
        "SELECT env, episode, epoch, score, reward, op_done, slots FROM steps "
        "WHERE step >= :step ORDER BY step, seq",
        step=step,
    ):
        rows.setdefault(env, []).append(tuple(values))
    return rows


def _ended(telemetry: RunTelemetry, env: int, episode: int) -> bool:
    sql = "SELECT 1 FROM episodes WHERE env = :env AND episode = :episode"
    return bool(telemetry.select(sql, env=env, episode=episode))


def _environment(
    env: int, rows: list[tuple[Any, ...]], names: Names, *, is_over: bool
) -> Environment:
    episode, epoch, score, _, op_done, text = rows[-1]
    own = [row for row in rows if row[0] == episode]
    slots = read_slots(text, names.blueprints)
    parameters = [slot["parameters"] for slot in slots]
    known = [number for number in parameters if number is not None]
    fossils = sum(slot["fossil_parameters"] for slot in slots)
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
        "seed_parameters": sum(known) + fossils if len(known) == len(parameters) else None,
        "n_episodes": episode + is_over,
    }


def _total(rewards: list[float | None]) -> float | None:
    """Return the sum of rewards, or None if one of them is not finite."""
    known = [finite(reward) for reward in rewards]
    return None if None in known else sum(one for one in known if one is not None)

"""What the controller does early and late in training: ops, blueprints, timing."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import fields
from typing import TypedDict

from esper.config.checks import PositiveInt, check
from esper.config.growth import RewardForm
from esper.dashboard.views.run import run_of, settings_of
from esper.dashboard.views.values import finite
from esper.formatting import span
from esper.lifecycle.stages import Stage
from esper.telemetry import RunTelemetry
from esper.telemetry.records import RoundRecord

_OP = "op_"
_OPS = [one.name.removeprefix(_OP) for one in fields(RoundRecord) if one.name.startswith(_OP)]


class LearnedPart(TypedDict):
    """A range of rounds, and the episodes that ended in them."""

    first_round: int
    last_round: int
    n_episodes: int
    ops: dict[str, float]
    """How often each op was done per episode."""
    blueprints: dict[str, float]
    """Each blueprint's share of the germinated seeds."""
    germination_epochs: dict[int, int]
    """Seeds germinated in each epoch, counted from 1."""
    finish_epochs: dict[int, int]
    """Hosts that the controller finished after each number of epochs."""
    mean_return: float | None
    mean_score: float | None


class Learned(TypedDict):
    """Consecutive ranges of about the same number of rounds."""

    summary: str | None
    """What changed from the first to the last part, in words; None with fewer than two parts in
    which an episode ended."""
    parts: list[LearnedPart]
    reward: RewardForm | None
    """What mean returns are relative to, as in :func:`overview`."""


def learned(telemetry: RunTelemetry, n_parts: int = 6) -> Learned:
    """Return what the controller did in each part of training so far.

    Args:
        telemetry: The run's telemetry.
        n_parts: The number of parts; a run of fewer rounds has one part per round.

    Raises:
        ConfigError: If the number of parts is below 1.
    """
    check("n_parts", n_parts, PositiveInt)
    with telemetry.snapshot():
        last = telemetry.last(RoundRecord)
        done = 0 if last is None else last.round
        n = min(n_parts, done)
        bounds = [(part * done // n + 1, (part + 1) * done // n) for part in range(n)]
        parts = [_part(telemetry, first, last) for first, last in bounds]
        run = run_of(telemetry)
    return {
        "summary": _summarize(parts),
        "parts": parts,
        "reward": None if run is None else settings_of(run).rewards.reward,
    }


N_CHANGES = 4
"""Ops named in the summary, those that changed most."""
N_ERRORS = 2.0
"""Standard errors by which the rate of an op must change to be named."""


def _summarize(parts: list[LearnedPart]) -> str | None:
    known = [part for part in parts if part["n_episodes"]]
    if len(known) < 2:
        return None
    first, last = known[0], known[-1]
    changes = sorted(
        ((_change(first, last, op), op) for op in last["ops"]), key=lambda one: -abs(one[0])
    )
    words = [
        f"{op.replace('_', ' ')} {first['ops'].get(op, 0.0):.2f} to {last['ops'][op]:.2f}"
        for size, op in changes[:N_CHANGES]
        if abs(size) > N_ERRORS
    ]
    rounds = span(first["first_round"], first["last_round"])
    since = f"Since {rounds}, the controller's ops per episode"
    text = (
        f"{since} changed: {', '.join(words)}." if words else f"{since} are the same within noise."
    )
    if last["blueprints"]:
        name, share = next(iter(last["blueprints"].items()))
        text += f" It germinates {name.replace('_', ' ')} most, {share:.0%} of the seeds."
    return text


def _change(first: LearnedPart, last: LearnedPart, op: str) -> float:
    """Return the change of an op's rate in standard errors, as if its counts were Poisson."""
    before, after = first["ops"].get(op, 0.0), last["ops"][op]
    error = math.sqrt(before / first["n_episodes"] + after / last["n_episodes"])
    return 0.0 if error == 0.0 else (after - before) / error


def _part(telemetry: RunTelemetry, first: int, last: int) -> LearnedPart:
    rounds = {"first": first, "last": last}
    ((n_episodes, mean_return, mean_score),) = telemetry.select(
        # A NaN score is stored as text, which avg() would count as zero.
        "SELECT count(*), avg(ep_rew), avg(iif(typeof(final_score) = 'real', final_score, NULL)) "
        "FROM episodes WHERE round BETWEEN :first AND :last",
        **rounds,
    )
    finished = telemetry.select(
        # The step that finishes a host is the only one that trains no epoch.
        "SELECT n_epochs, count(*) FROM episodes WHERE round BETWEEN :first AND :last "
        "AND ep_len > n_epochs GROUP BY n_epochs ORDER BY n_epochs",
        **rounds,
    )
    germinated, epochs = _count_seeds(telemetry, rounds)
    return {
        "first_round": first,
        "last_round": last,
        "n_episodes": n_episodes,
        "ops": _ops(telemetry, rounds),
        "blueprints": _shares(germinated),
        "germination_epochs": dict(sorted(epochs.items())),
        "finish_epochs": dict(finished),
        "mean_return": finite(mean_return),
        "mean_score": finite(mean_score),
    }


def _count_seeds(
    telemetry: RunTelemetry, rounds: dict[str, int]
) -> tuple[Counter[str], Counter[int]]:
    """Return the germinated seeds by blueprint and by epoch."""
    blueprints, epochs = Counter[str](), Counter[int]()
    for blueprint, epoch, n in telemetry.select(
        "SELECT blueprint, epoch, count(*) FROM seed_events "
        "WHERE round BETWEEN :first AND :last AND from_stage = :dormant GROUP BY 1, 2",
        dormant=Stage.DORMANT.name.lower(),
        **rounds,
    ):
        blueprints[blueprint] += n
        epochs[epoch] += n
    return blueprints, epochs


def _shares(counts: Counter[str]) -> dict[str, float]:
    """Return shares by name, largest first; a seed that is gone after one step has no name."""
    named = {name: n for name, n in counts.most_common() if name and n}
    return {name: n / sum(named.values()) for name, n in named.items()}


def _ops(telemetry: RunTelemetry, rounds: dict[str, int]) -> dict[str, float]:
    """Return how often each op was done per episode; empty if no episode ended."""
    means = ", ".join(f"sum({_OP}{op} * n_episodes) / sum(n_episodes)" for op in _OPS)
    sql = f"SELECT {means} FROM rounds WHERE round BETWEEN :first AND :last"
    (values,) = telemetry.select(sql, **rounds)
    return {op: n for op, n in zip(_OPS, values, strict=True) if n is not None}

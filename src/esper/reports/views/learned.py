"""What the controller does, early in training and late: its ops, its blueprints, its timing."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import Any, TypedDict

from esper.config.checks import require_int
from esper.lifecycle.stages import Stage
from esper.reports.views.finding import first_number
from esper.reports.views.values import finite
from esper.telemetry import RunTelemetry
from esper.telemetry.records import EpisodeRecord, Record, RoundRecord, SeedEventRecord

_OP = "op_"
_OPS = [one.name.removeprefix(_OP) for one in fields(RoundRecord) if one.name.startswith(_OP)]


class LearnedPart(TypedDict):
    """What was done in some rounds, over the episodes that ended in them."""

    first_round: int
    last_round: int
    n_episodes: int
    ops: dict[str, float]
    """How often each op was done per episode."""
    blueprints: dict[str, float]
    """Shares of the seeds that were germinated."""
    committed: dict[str, float]
    """Shares of the seeds that were fossilized."""
    germination_epochs: dict[int, int]
    """How many seeds were germinated in each epoch, counted from 1."""
    finish_epochs: dict[int, int]
    """How many hosts the controller finished after so many epochs."""
    mean_return: float | None
    mean_score: float | None


class Learned(TypedDict):
    """Parts of a run of about as many rounds each, in order."""

    parts: list[LearnedPart]


def learned(telemetry: RunTelemetry, n_parts: int = 6) -> Learned:
    """Return what the controller did in each part of the rounds that are done.

    Args:
        telemetry: Of the run.
        n_parts: How many parts, at most one for each round.

    Raises:
        ConfigError: If the number of parts is below 1.
    """
    require_int("n_parts", n_parts, least=1)
    with telemetry.snapshot():
        last = telemetry.last(RoundRecord)
        done = 0 if last is None else last.round
        n = min(n_parts, done)
        bounds = [(part * done // n + 1, (part + 1) * done // n) for part in range(n)]
        return {"parts": [_part(telemetry, first, last) for first, last in bounds]}


def _part(telemetry: RunTelemetry, first: int, last: int) -> LearnedPart:
    n_episodes, mean_return, mean_score = _select(
        telemetry,
        EpisodeRecord,
        # A score that is not a number is kept as text, which an average would count as zero.
        "count(*), avg(ep_rew), avg(iif(typeof(final_score) = 'real', final_score, NULL))",
        (first, last),
    )[0]
    finished = _select(
        telemetry,
        EpisodeRecord,
        "n_epochs, count(*)",
        (first, last),
        # The step that finishes a host is the only one that trains no epoch.
        more="AND ep_len > n_epochs GROUP BY n_epochs ORDER BY n_epochs",
    )
    germinated, committed, epochs = _count_seeds(telemetry, (first, last))
    return {
        "first_round": first,
        "last_round": last,
        "n_episodes": n_episodes,
        "ops": _ops(telemetry, (first, last)),
        "blueprints": _shares(germinated),
        "committed": _shares(committed),
        "germination_epochs": dict(sorted(epochs.items())),
        "finish_epochs": dict(finished),
        "mean_return": finite(mean_return),
        "mean_score": finite(mean_score),
    }


def _count_seeds(
    telemetry: RunTelemetry, rounds: tuple[int, int]
) -> tuple[Counter[str], Counter[str], Counter[int]]:
    """Return seeds germinated and committed by blueprint, and germinated by epoch."""
    begun, kept = (
        f"{column} = '{stage.name.lower()}'"
        for column, stage in (("from_stage", Stage.DORMANT), ("to_stage", Stage.FOSSILIZED))
    )
    germinated, committed, epochs = Counter[str](), Counter[str](), Counter[int]()
    for blueprint, epoch, is_begun, is_kept, n in _select(
        telemetry,
        SeedEventRecord,
        f"blueprint, epoch, {begun}, {kept}, count(*)",
        rounds,
        more=f"AND ({begun} OR {kept}) GROUP BY 1, 2, 3, 4",
    ):
        germinated[blueprint] += n * is_begun
        committed[blueprint] += n * is_kept
        epochs[epoch] += n * is_begun
    return germinated, committed, +epochs


def _shares(counts: Counter[str]) -> dict[str, float]:
    """Return shares by name, the largest first; a seed gone in its first step has no name."""
    named = {name: n for name, n in counts.most_common() if name and n}
    return {name: n / sum(named.values()) for name, n in named.items()}


def _ops(telemetry: RunTelemetry, rounds: tuple[int, int]) -> dict[str, float]:
    """Return how often each op was done per episode; nothing if no episode ended."""
    sums = ", ".join(f"sum({_OP}{op} * n_episodes) / sum(n_episodes)" for op in _OPS)
    values = _select(telemetry, RoundRecord, sums, rounds)[0]
    return {op: n for op, n in zip(_OPS, values, strict=True) if n is not None}


def _select(
    telemetry: RunTelemetry,
    kind: type[Record],
    columns: str,
    rounds: tuple[int, int],
    *,
    more: str = "",
) -> list[tuple[Any, ...]]:
    """Return a query's answer over the rows of some rounds."""
    start = first_number(telemetry, kind, "round", rounds[0])
    end = first_number(telemetry, kind, "round", rounds[1] + 1)
    sql = f'SELECT {columns} FROM "{kind.table}" WHERE seq >= :start AND seq < :end {more}'
    return telemetry.select(sql, start=start, end=end)

"""Metrics of a run, under the names that users of Stable-Baselines3 know.

A metric is a column of the tables of rounds, updates and evaluations and belongs to a round. Its
name and description stand at the column. ``<head>`` and ``<arm>`` in a name stand for an action
head and a controller.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import compress
from typing import Any, TypeGuard

from esper.telemetry.records import EvaluationRecord, Record, RoundRecord, UpdateRecord

Measured = RoundRecord | UpdateRecord | EvaluationRecord
"""Records that metrics come from."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One metric over a run."""

    rounds: list[int]
    """The rounds that have a value."""
    values: list[float]
    """The value of each of these rounds."""

    def __repr__(self) -> str:
        if not self.values:
            return "Series(no values)"
        ends = f"{self.values[0]:.4g} in round {self.rounds[0]}"
        if len(self.values) > 1:
            ends += f" to {self.values[-1]:.4g} in round {self.rounds[-1]}"
        return f"Series({len(self.values):,} values: {ends})"


Metrics = dict[str, Series]
"""Series by metric name."""


_SOURCES = {
    kind: [one for one in fields(kind) if one.metadata["metric"] is not None]
    for kind in (RoundRecord, UpdateRecord, EvaluationRecord)
}
"""The columns that metrics come from."""
_EVAL, _FINAL = "eval/", "final/<arm>/"
_TUNING_ONLY = "eval/fixed_reward"

_ABOUT: dict[str, str] = {
    one.metadata["metric"]: one.metadata["about"] for found in _SOURCES.values() for one in found
}
METRICS = _ABOUT | {
    name.replace(_EVAL, _FINAL): about
    for name, about in _ABOUT.items()
    if name.startswith(_EVAL) and name != _TUNING_ONLY
}
"""Every metric's name and description."""


def is_measured(record: Record) -> TypeGuard[Measured]:
    """Return whether metrics come from a record."""
    return isinstance(record, Measured)


Read = Callable[[type[Measured], Sequence[str]], Sequence[Sequence[Any]]]
"""Returns some columns of all records of a type: the values of each, in the order of records."""


def collect_metrics(read: Read, without: Collection[str] = ()) -> Metrics:
    """Return the metrics of a run; column by column, because a run can have many rounds.

    Args:
        read: Reads the columns.
        without: Metrics to leave out, by their names in :data:`METRICS`.
    """
    series: Metrics = {}
    for kind, all_sources in _SOURCES.items():
        sources = [one for one in all_sources if one.metadata["metric"] not in without]
        metrics = [(one.metadata["metric"], one.metadata["sign"]) for one in sources]
        names = [one.name for one in sources]
        if kind is not EvaluationRecord:
            rounds, *columns = read(kind, ("round", *names))
            for (metric, sign), values in zip(metrics, columns, strict=True):
                for name, found in _split_heads(metric, values):
                    _extend(series, name, sign, rounds, found)
            continue
        rounds, arms, purposes, *columns = read(kind, ("round", "arm", "purpose", *names))
        groups = list(zip(arms, purposes, strict=True))
        for group in dict.fromkeys(groups):
            chosen = [other == group for other in groups]
            numbers = list(compress(rounds, chosen))
            for (metric, sign), values in zip(metrics, columns, strict=True):
                name = _name_in_evaluation(metric, *group)
                if name is not None:
                    _extend(series, name, sign, numbers, list(compress(values, chosen)))
    return series


def metrics_of(record: Record) -> dict[str, float]:
    """Return the metrics that a record holds, by name, without those that are None."""

    def read(kind: type[Measured], names: Sequence[str]) -> Sequence[Sequence[Any]]:
        return [[getattr(record, name)] if isinstance(record, kind) else [] for name in names]

    return {name: one.values[0] for name, one in collect_metrics(read).items()}


def _split_heads(name: str, values: Sequence[Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield a metric and its values; those of each head if the values are JSON objects by head."""
    if "<head>" not in name:
        yield name, values
        return
    # Parsing one long text is several times as fast as many short ones.
    texts = ["null" if text is None else text for text in values]
    rows: list[dict[str, Any]] = [row or {} for row in json.loads(f"[{','.join(texts)}]")]
    if len(rows) != len(values):
        raise ValueError("a row holds several objects")
    for head in dict.fromkeys(head for row in rows for head in row):
        yield name.replace("<head>", head), [row.get(head) for row in rows]


def _extend(
    series: Metrics, name: str, sign: int, rounds: Sequence[int], values: Sequence[Any]
) -> None:
    """Add points to a metric, except None."""
    if None in values:
        is_known = [value is not None for value in values]
        rounds, values = list(compress(rounds, is_known)), list(compress(values, is_known))
    if values:
        one = series.setdefault(name, Series(rounds=[], values=[]))
        one.rounds.extend(rounds)
        one.values.extend(map(float, values) if sign == 1 else (sign * float(v) for v in values))


def _name_in_evaluation(metric: str, arm: str, purpose: str) -> str | None:
    """Return a metric's name in an evaluation of a controller; None for other controllers' trials.

    Baselines are evaluated before the first round, which is not a metric of the run.
    """
    if purpose == "final":
        final = metric.replace(_EVAL, _FINAL).replace("<arm>", arm)
        return None if metric == _TUNING_ONLY else final
    return metric if arm == "learned" and purpose == "tuning" else None

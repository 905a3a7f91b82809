"""Metrics of a run, under the names that users of Stable-Baselines3 know.

A metric is a column of the tables of rounds, updates and evaluations and belongs to a round. Its
name and description stand at the column. ``<head>`` and ``<arm>`` in a name stand for an action
head and a controller.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
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


@dataclass(frozen=True, kw_only=True)
class _Source:
    """The column that a metric comes from."""

    column: str
    metric: str
    sign: int
    about: str


def _sources(kind: type[Measured]) -> list[_Source]:
    return [
        _Source(
            column=one.name,
            metric=one.metadata["metric"],
            sign=one.metadata["sign"],
            about=one.metadata["about"],
        )
        for one in fields(kind)
        if one.metadata["metric"] is not None
    ]


_SOURCES = {kind: _sources(kind) for kind in (RoundRecord, UpdateRecord, EvaluationRecord)}
_EVAL, _FINAL = "eval/", "final/<arm>/"
_TUNING_ONLY = "eval/fixed_reward"

METRICS: dict[str, str] = {
    one.metric: one.about for sources in _SOURCES.values() for one in sources
} | {
    one.metric.replace(_EVAL, _FINAL): one.about
    for one in _SOURCES[EvaluationRecord]
    if one.metric != _TUNING_ONLY
}
"""Every metric's name and description."""


def is_measured(record: Record) -> TypeGuard[Measured]:
    """Return whether metrics come from a record."""
    return isinstance(record, Measured)


def metrics_of(record: Record) -> dict[str, float]:
    """Return the metrics that a record holds, by name, without those that are None."""
    if not is_measured(record):
        return {}
    found: dict[str, float] = {}
    for one in _SOURCES[type(record)]:
        value = getattr(record, one.column)
        name = _evaluation_name(one.metric, record)
        if value is None or name is None:
            continue
        if isinstance(value, str):
            by_head: dict[str, float] = json.loads(value)
            found |= {name.replace("<head>", head): float(v) for head, v in by_head.items()}
        else:
            found[name] = one.sign * float(value)
    return found


def collect_metrics(stream: Callable[[type[Any]], Iterator[Any]]) -> Metrics:
    """Return all metrics of a run, given a function that yields the records of a type in order."""
    series: Metrics = {}
    for kind in _SOURCES:
        for record in stream(kind):
            for name, value in metrics_of(record).items():
                one = series.setdefault(name, Series(rounds=[], values=[]))
                one.rounds.append(record.round)
                one.values.append(value)
    return series


def _evaluation_name(metric: str, record: Measured) -> str | None:
    """Return a metric's name in the evaluation it comes from; None for other controllers' trials.

    Baselines are evaluated before the first round, which is not a metric of the run.
    """
    if not isinstance(record, EvaluationRecord):
        return metric
    if record.purpose == "final":
        final = metric.replace(_EVAL, _FINAL).replace("<arm>", record.arm)
        return None if metric == _TUNING_ONLY else final
    return metric if record.arm == "learned" and record.purpose == "tuning" else None

"""Metrics over rounds, all of them or those of the rounds since the last look."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypedDict

from esper.reports.views.finding import first_number, last_position, records_among
from esper.reports.views.plain import finite
from esper.telemetry import RunTelemetry
from esper.telemetry.metrics import collect_metrics
from esper.telemetry.records import RoundRecord


class Points(TypedDict):
    """One metric: the rounds that have it, and its value in each; None for what is not finite."""

    rounds: list[int]
    values: list[float | None]


class MetricSeries(TypedDict):
    """Metrics by name, and how many rounds the run has done."""

    rounds_done: int
    series: dict[str, Points]


def metric_series(telemetry: RunTelemetry, after: int = 0) -> MetricSeries:
    """Return every metric by the names that docs/reference/metrics.md lists.

    A round's trial is recorded after the round: whoever follows a run asks again for the last
    round that was there.

    Args:
        telemetry: Of the run.
        after: Only rounds after this one; -1 for trials before the first round as well.
    """

    def stream(kind: type[Any]) -> Iterator[Any]:
        first = first_number(telemetry, kind, "round", after + 1)
        return records_among(telemetry, kind, range(first, end))

    with telemetry.snapshot():
        end = last_position(telemetry) + 1
        last = telemetry.last(RoundRecord)
        metrics = collect_metrics(stream)
    return {
        "rounds_done": 0 if last is None else last.round,
        "series": {
            name: {"rounds": one.rounds, "values": [finite(value) for value in one.values]}
            for name, one in metrics.items()
        },
    }

"""The comparison of committing at once with a ramp: fair pairs, and means worked by hand."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
MODULES = ("commit_at_once", "arms", "download", "problems", "rda", "sets")


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give the benchmark's module, and forget it and what it imports afterwards."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("commit_at_once")
    for name in MODULES:
        sys.modules.pop(name, None)


def grow(benchmark: Any, schedule: str, way: str) -> dict[str, Any]:
    training = benchmark.Training(
        part="prior",
        name="drawn",
        number=benchmark.FIRST_HOST,
        size=2,
        schedule=schedule,
        way=way,
        tempo=3,
    )
    return training.run(benchmark.Library(Path()))


def test_both_ways_grow_the_same_hosts_and_differ_only_once_something_grows(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "SCHEDULES", {"nothing": (), "one": ((("widen_large",), 0.0),)})
    waited = [grow(benchmark, "nothing", way) for way in benchmark.WAYS]
    at_once, ramp = (grow(benchmark, "one", way) for way in benchmark.WAYS)
    assert waited[0]["score"] == waited[1]["score"]
    assert waited[0]["host"] == waited[1]["host"] == at_once["host"] == ramp["host"]
    firsts = [[epochs[0] for epochs in row["germinated"]] for row in (at_once, ramp)]
    assert firsts == [[1, 1], [1, 1]]
    assert at_once["score"] != ramp["score"]


def test_a_host_counts_once_however_many_schedules_it_followed(benchmark: Any) -> None:
    def trained(way: str, schedule: str, scores: list[float], epoch: int) -> tuple[Any, Any]:
        training = benchmark.Training(
            part="prior", name="drawn", number=0, size=2, schedule=schedule, way=way, tempo=3
        )
        return training, {
            "seconds": 4.0,
            "host": [7, 8],
            "kind": ["tree", "rings"],
            "score": scores,
            "flops": [2.0, 4.0],
            "growth": [1.0, 3.0],
            "germinated": [[1], [epoch]],
        }

    pairs = benchmark.pair_hosts(
        [
            trained("at once", "deeper", [0.50, 0.70], 2),
            trained("ramp", "deeper", [0.48, 0.70], 2),
            trained("ramp", "wider", [0.30, 0.20], 5),
            trained("at once", "wider", [0.30, 0.24], 3),
        ]
    )
    found = benchmark.Summary("all", pairs)
    # Host 7 gains 2 and 0 points, host 8 gains 0 and 4.
    assert (found.n_hosts, found.difference.mean) == (2, pytest.approx(1.5))
    assert found.cells()[-1] == "75%"
    assert found.cells()[4:6] == ["3.00, 3.00 (1.00x)", "8 s, 8 s (1.00x)"]
    rings = benchmark.Summary("rings", [pair for pair in pairs if pair.kind == "rings"])
    assert rings.difference.mean == pytest.approx(2.0)

"""Metric series agree with the metrics of telemetry, from any round on."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from esper.dashboard.views import metric_series
from esper.telemetry import Metrics
from esper.telemetry.records import RoundRecord
from tests.dashboard.views.samples import stored, trial
from tests.dashboard.views.simulation import simulate
from tests.telemetry.samples import example

RECORDS = simulate(n_rounds=9, seed=2)


def later(metrics: Metrics, after: int) -> dict[str, dict[str, list[float]]]:
    """Return the points after a round, without empty metrics."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, series in metrics.items():
        points = zip(series.rounds, series.values, strict=True)
        kept = [(number, value) for number, value in points if number > after]
        if kept:
            rounds, values = map(list, zip(*kept, strict=True))
            found[name] = {"rounds": rounds, "values": values}
    return found


def test_series_agree_with_telemetry_from_any_round_on(tmp_path: Path) -> None:
    with stored(tmp_path, RECORDS) as telemetry:
        metrics = telemetry.metrics()
        for after in (-1, 0, 1, 4, 8, 9, 50):
            found = metric_series(telemetry, after)
            assert found["rounds_done"] == 9
            assert found["series"] == later(metrics, after)
    assert len(metrics) > 20


def test_evaluations_before_the_first_round_belong_to_round_0(tmp_path: Path) -> None:
    records = [*RECORDS[:1], trial(0, "learned"), *RECORDS[1:]]
    with stored(tmp_path, records) as telemetry:
        assert metric_series(telemetry, -1)["series"]["eval/score"]["rounds"][0] == 0
        assert metric_series(telemetry)["series"]["eval/score"]["rounds"][0] == 2


def test_asking_again_for_the_last_round_misses_nothing(tmp_path: Path) -> None:
    # The trial of a round is recorded after the round, and may come after a reader's look.
    (end,) = [k for k, one in enumerate(RECORDS) if isinstance(one, RoundRecord) and one.round == 8]
    with stored(tmp_path / "then", RECORDS[: end + 1]) as telemetry:
        seen = metric_series(telemetry, -1)
    assert 8 not in seen["series"]["eval/score"]["rounds"]
    with stored(tmp_path / "now", RECORDS) as telemetry:
        more = metric_series(telemetry, seen["rounds_done"] - 1)["series"]
        whole = metric_series(telemetry, -1)["series"]
    for name, points in whole.items():
        old = seen["series"].get(name, {"rounds": [], "values": []})
        added = more.get(name, {"rounds": [], "values": []})
        known = dict(zip(old["rounds"], old["values"], strict=True))
        known |= dict(zip(added["rounds"], added["values"], strict=True))
        assert known == dict(zip(points["rounds"], points["values"], strict=True))


def test_non_finite_values_are_none(tmp_path: Path) -> None:
    (first, *_) = [one for one in RECORDS if isinstance(one, RoundRecord)]
    broken = replace(first, ep_rew_mean=float("nan"), steps_per_second=float("inf"))
    with stored(tmp_path, [broken]) as telemetry:
        series = metric_series(telemetry)["series"]
    json.dumps(series, allow_nan=False)
    assert series["rollout/ep_rew_mean"] == {"rounds": [1], "values": [None]}
    assert series["time/fps"] == {"rounds": [1], "values": [None]}


def test_a_run_without_rounds_has_no_series(tmp_path: Path) -> None:
    with stored(tmp_path, []) as telemetry:
        found = metric_series(telemetry, -1)
    assert found == {"rounds_done": 0, "is_thinned": False, "series": {}}


def test_series_end_with_a_round(tmp_path: Path) -> None:
    with stored(tmp_path, RECORDS) as telemetry:
        found = metric_series(telemetry, 2, until=5)["series"]
    assert found["time/iterations"]["rounds"] == [3, 4, 5]


def test_a_long_series_is_thinned_and_keeps_its_peaks(tmp_path: Path) -> None:
    plain = example(RoundRecord)
    rounds = [
        replace(plain, round=n, ep_rew_mean=math.sin(n / 50), score_mean=None)
        for n in range(1, 1001)
    ]
    rounds[333] = replace(rounds[333], ep_rew_mean=7.0)
    rounds[777] = replace(rounds[777], ep_rew_mean=-7.0)
    rounds[500] = replace(rounds[500], ep_rew_mean=float("nan"))
    with stored(tmp_path, rounds) as telemetry:
        found = metric_series(telemetry, max_points=100)
        part = metric_series(telemetry, 300, until=340, max_points=100)
        whole = metric_series(telemetry)
    assert (found["is_thinned"], part["is_thinned"], whole["is_thinned"]) == (True, False, False)
    thin = found["series"]["rollout/ep_rew_mean"]
    assert 50 <= len(thin["rounds"]) == len(thin["values"]) <= 102
    assert (thin["rounds"][0], thin["rounds"][-1]) == (1, 1000)
    assert thin["rounds"] == sorted(set(thin["rounds"]))
    points = dict(zip(thin["rounds"], thin["values"], strict=True))
    assert (points[334], points[778]) == (7.0, -7.0)
    every = whole["series"]["rollout/ep_rew_mean"]
    known = dict(zip(every["rounds"], every["values"], strict=True))
    assert points == pytest.approx({number: known[number] for number in points})
    assert part["series"]["rollout/ep_rew_mean"]["rounds"] == list(range(301, 341))

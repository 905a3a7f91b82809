"""The health view agrees with the raw records."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from esper.dashboard.views import health
from esper.errors import ConfigError
from esper.telemetry.records import GovernorRecord, NoticeRecord, RoundRecord, UpdateRecord
from tests.dashboard.views.samples import stored
from tests.dashboard.views.simulation import simulate

RECORDS = simulate(n_rounds=12, seed=6, n_envs=5)
ROUNDS = [one for one in RECORDS if isinstance(one, RoundRecord)]
UPDATES = [one for one in RECORDS if isinstance(one, UpdateRecord)]
RESCUES = [one for one in RECORDS if isinstance(one, GovernorRecord)]
NOTICES = [one for one in RECORDS if isinstance(one, NoticeRecord)]
NUMBERS = [one.round for one in ROUNDS]


def test_health_sums_the_records(tmp_path: Path) -> None:
    with stored(tmp_path, RECORDS) as telemetry:
        found = health(telemetry)
    json.dumps(found, allow_nan=False)
    refused = [one for one in UPDATES if one.was_refused]
    stopped = [one.round for one in UPDATES if one.stopped_early]
    assert len(RESCUES) > 3
    assert refused
    assert stopped
    assert found["governor"]["total"] == len(RESCUES)
    assert found["governor"]["by_round"] == {
        "rounds": NUMBERS,
        "values": [one.n_restored for one in ROUNDS],
    }
    assert found["governor"]["last"] == [
        {name: getattr(one, name) for name in ("round", "env", "episode", "epoch", "reason")}
        for one in reversed(RESCUES)
    ]
    assert found["refused_updates"] == [
        {"round": one.round, "reason": one.refusal} for one in reversed(refused)
    ]
    assert found["early_stops"] == {"total": len(stopped), "rounds": stopped}
    assert found["illegal"] == sum(one.n_illegal for one in ROUNDS)
    assert found["refused_by_gates"] == sum(one.n_refused for one in ROUNDS)
    assert found["notices"] == [asdict(one) for one in reversed(NOTICES)]
    assert found["throughput"]["values"] == [one.steps_per_second for one in ROUNDS]
    assert found["memory"] == {"rounds": NUMBERS, "values": [one.rss_bytes for one in ROUNDS]}


def test_seconds_are_listed_by_part_and_zero_if_missing(
    tmp_path: Path,
) -> None:
    with stored(tmp_path, RECORDS) as telemetry:
        parts = health(telemetry)["seconds_by_part"]
    assert parts["names"] == ["training", "part 1", "part 2", "part 0"]
    assert parts["rounds"] == NUMBERS
    for name, values in zip(parts["names"], parts["values"], strict=True):
        assert values == [json.loads(one.seconds_by_part).get(name, 0.0) for one in ROUNDS]


def test_a_limit_keeps_the_newest_events(tmp_path: Path) -> None:
    with stored(tmp_path, RECORDS) as telemetry:
        found, whole = health(telemetry, limit=2), health(telemetry)
        with pytest.raises(ConfigError, match="limit is 0"):
            health(telemetry, limit=0)
    assert found["governor"]["last"] == whole["governor"]["last"][:2]
    assert found["notices"] == whole["notices"][:2]
    assert found["governor"]["total"] == len(RESCUES)


def test_series_can_be_asked_for_by_round(tmp_path: Path) -> None:
    with stored(tmp_path, RECORDS) as telemetry:
        whole, found = health(telemetry), health(telemetry, after=3, until=7, max_points=5)
        thinned = health(telemetry, max_points=5)
    wanted = range(4, 8)
    assert found["throughput"] == {
        "rounds": list(wanted),
        "values": [one.steps_per_second for one in ROUNDS if one.round in wanted],
    }
    for points in (found["memory"], found["governor"]["by_round"], found["seconds_by_part"]):
        assert points["rounds"] == list(wanted)
    assert {len(values) for values in found["seconds_by_part"]["values"]} == {len(wanted)}
    assert (whole["is_thinned"], found["is_thinned"], thinned["is_thinned"]) == (False, False, True)
    for name in ("conclusion", "illegal", "notices", "early_stops"):
        assert found[name] == whole[name]


def test_non_finite_values_are_none(tmp_path: Path) -> None:
    parts = '{"training": NaN}'
    broken = replace(ROUNDS[0], steps_per_second=float("inf"), seconds_by_part=parts)
    with stored(tmp_path, [broken]) as telemetry:
        found = health(telemetry)
    assert found["throughput"]["values"] == [None]
    assert found["seconds_by_part"]["values"] == [[None]]


def test_a_new_run_is_healthy(tmp_path: Path) -> None:
    with stored(tmp_path, []) as telemetry:
        found = health(telemetry)
    nothing = {"rounds": [], "values": []}
    assert found["governor"] == {"total": 0, "by_round": nothing, "last": []}
    assert (found["illegal"], found["refused_by_gates"], found["notices"]) == (0, 0, [])
    assert (found["throughput"], found["memory"]) == (nothing, nothing)
    assert found["seconds_by_part"] == {"names": [], "rounds": [], "values": []}

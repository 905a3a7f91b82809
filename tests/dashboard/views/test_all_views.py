"""All views work at any moment of a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from esper.dashboard import views
from esper.errors import ConfigError
from esper.telemetry import RunTelemetry, TelemetryWriter, open_run
from esper.telemetry.records import EpisodeRecord, Record, StepRecord
from tests.dashboard.views.samples import run_record, stored
from tests.dashboard.views.simulation import simulate
from tests.telemetry.samples import FILE

RECORDS = simulate(n_rounds=6, seed=9)


def everything(telemetry: RunTelemetry) -> dict[str, Any]:
    """Return all views of a run as JSON values, without its sessions."""
    lists = {order: views.episode_list(telemetry, order=order) for order in views.ORDERS}
    found: dict[str, Any] = {
        "overview": views.overview(telemetry) | {"sessions": []},
        "headline": views.headline(telemetry),
        "metrics": views.metric_series(telemetry, -1),
        "lists": lists,
        "environments": views.environments(telemetry),
        "health": views.health(telemetry),
        "learned": views.learned(telemetry),
        "details": [
            views.episode_detail(telemetry, env, episode)
            for env in range(3)
            for episode in range(9)
        ],
    }
    json.dumps(found, allow_nan=False)
    return found


def test_views_work_at_any_moment_and_a_rewound_run_equals_its_past(
    tmp_path: Path,
) -> None:
    ends = [*range(len(RECORDS) - 1, 8, -23), 5, 4, 3, 2, 1, 0]
    with TelemetryWriter(tmp_path / FILE) as writer:
        writer.write_many(RECORDS)
        for number, end in enumerate(ends):
            writer.rewind(end)
            with open_run(tmp_path) as telemetry:
                found = everything(telemetry)
            assert found["headline"]["position"] == end
            if number % 4 == 0:
                with stored(tmp_path / str(end), RECORDS[:end]) as telemetry:
                    assert everything(telemetry) == found


def test_a_resumed_run_shows_its_second_attempt(tmp_path: Path) -> None:
    # Taken back to the middle of a step, and gone on with from there, with other results.
    again, other = simulate(n_rounds=8, seed=9), simulate(n_rounds=9, seed=10)
    end = [k for k, one in enumerate(again) if isinstance(one, EpisodeRecord)][4]
    with TelemetryWriter(tmp_path / FILE) as writer:
        writer.write_many([*again[:end], *other[end:]])
        writer.rewind(end)
        writer.write_many(again[end:])
    with open_run(tmp_path) as telemetry, stored(tmp_path / "whole", again) as whole:
        assert everything(telemetry) == everything(whole)


def test_other_views_do_not_depend_on_recorded_steps(tmp_path: Path) -> None:
    without: list[Record] = [
        run_record(record_steps=False),
        *(one for one in RECORDS[1:] if not isinstance(one, StepRecord)),
    ]
    with stored(tmp_path / "off", without) as off, stored(tmp_path / "on", RECORDS) as on:
        found, expected = everything(off), everything(on)
    for name in ("metrics", "lists", "learned", "health"):
        assert found[name] == expected[name]
    for less, more in zip(found["details"], expected["details"], strict=True):
        if less is not None:
            assert not less["has_steps"]
            assert less["events"] == more["events"]
            parts = [bar["parts"] for bar in less["bars"]]
            assert not more["is_over"] or parts == [bar["parts"] for bar in more["bars"]]


def test_views_in_a_snapshot_see_one_moment(tmp_path: Path) -> None:
    with TelemetryWriter(tmp_path / FILE) as writer:
        writer.write_many(RECORDS[:100])
        writer.flush()
        with open_run(tmp_path) as telemetry:
            with telemetry.snapshot():
                before = everything(telemetry)
                writer.write_many(RECORDS[100:])
                writer.flush()
                assert everything(telemetry) == before
            assert everything(telemetry) != before


def test_unknown_settings_are_named(tmp_path: Path) -> None:
    run = run_record(config="colour = 3\n")
    with stored(tmp_path, [run]) as telemetry, pytest.raises(ConfigError, match="colour"):
        views.overview(telemetry)


def test_changing_a_view_does_not_affect_the_next(tmp_path: Path) -> None:
    with stored(tmp_path, RECORDS) as telemetry:
        expected = everything(telemetry)
        for view in (views.overview(telemetry), views.headline(telemetry)):
            for value in view.values():
                if isinstance(value, (list, dict)):
                    value.clear()
        assert everything(telemetry) == expected


def test_importing_views_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, esper.dashboard.views; "
        "print({'torch', 'numpy', 'gymnasium', 'matplotlib'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "set()", result.stderr

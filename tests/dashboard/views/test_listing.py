"""A list of runs has their curves, their gaps with intervals, their notes and their dates."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from esper.dashboard.views import (
    final_gaps,
    held_out_returns,
    read_activity,
    read_notes,
    started_at,
)
from esper.dashboard.views.listing import MAX_CHARACTERS, MAX_POINTS
from tests.dashboard.report_samples import add_summary
from tests.dashboard.views.samples import run_record, stored, trial


def test_the_curve_has_the_evaluations_of_the_learned_controller(tmp_path: Path) -> None:
    records = [
        run_record(),
        trial(0, "no-growth", ep_rew_mean=0.1),
        trial(0, "fixed", ep_rew_mean=0.5),
        trial(2, "learned", ep_rew_mean=0.4),
        trial(4, "learned", ep_rew_mean=float("nan")),
        trial(6, "learned", ep_rew_mean=0.6),
        trial(6, "learned", ep_rew_mean=0.9, purpose="final"),
        trial(6, "fixed", ep_rew_mean=0.8, purpose="final"),
    ]
    with stored(tmp_path, records) as telemetry:
        assert held_out_returns(telemetry) == {
            "rounds": [2, 4, 6],
            "values": [0.4, None, 0.6],
            "fixed": 0.5,  # on the hosts of the curve, not those of the final comparison
        }


def test_a_long_curve_keeps_its_ends(tmp_path: Path) -> None:
    n = 10 * MAX_POINTS
    trials = [trial(number, "learned", ep_rew_mean=number / n) for number in range(1, n + 1)]
    with stored(tmp_path, [run_record(), *trials]) as telemetry:
        found = held_out_returns(telemetry)
    assert len(found["rounds"]) == MAX_POINTS
    assert (found["rounds"][0], found["rounds"][-1]) == (1, n)
    assert found["values"] == [pytest.approx(number / n) for number in found["rounds"]]


@pytest.mark.parametrize(("gain", "is_sure"), [(0.1, True), (0.0, False)])
def test_gaps_are_sure_only_outside_noise(tmp_path: Path, gain: float, is_sure: bool) -> None:
    add_summary(tmp_path, gain=gain)
    found = final_gaps(tmp_path)
    for gap in (found["fixed_gap"], found["score_gap"]):
        assert gap is not None
        assert gap["mean"] == pytest.approx(gain, abs=1e-9)
        assert (gap["is_sure"], gap["n"]) == (is_sure, 30)
    json.dumps(found, allow_nan=False)


def test_a_gap_that_the_verdict_does_not_show_is_not_sure(tmp_path: Path) -> None:
    add_summary(tmp_path, gain=0.1)
    file = tmp_path / "summary.json"
    values = json.loads(file.read_text())
    for finding in values["verdicts"][0]["findings"]:
        finding["verdict"] = "not shown"  # after correction; the interval excludes zero
    file.write_text(json.dumps(values))
    gaps = final_gaps(tmp_path)
    assert [gaps[name]["is_sure"] for name in ("fixed_gap", "score_gap")] == [False, False]


def test_a_run_without_a_readable_comparison_has_no_gaps(tmp_path: Path) -> None:
    assert final_gaps(tmp_path) == {"fixed_gap": None, "score_gap": None}
    (tmp_path / "summary.json").write_text("{")
    assert final_gaps(tmp_path) == {"fixed_gap": None, "score_gap": None}


def test_notes_are_read_up_to_a_length(tmp_path: Path) -> None:
    assert read_notes(tmp_path) is None
    file = tmp_path / "notes.md"
    file.write_bytes(b"  first\n\xff second\n")
    assert read_notes(tmp_path) == "first\n\N{REPLACEMENT CHARACTER} second"
    file.write_text("x" * (2 * MAX_CHARACTERS))
    assert read_notes(tmp_path) == "x" * MAX_CHARACTERS
    file.write_text(" \n")
    assert read_notes(tmp_path) is None


def test_notes_that_are_no_file_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "notes.md")
    assert read_notes(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"arm": "wait"}', '{"share": {}}'])
def test_a_damaged_activity_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "activity.json").write_text(text)
    assert read_activity(tmp_path) is None


def test_a_run_started_with_its_first_session(tmp_path: Path) -> None:
    with stored(tmp_path, [run_record()]) as telemetry:
        assert started_at(telemetry) == telemetry.sessions()[0].started_at

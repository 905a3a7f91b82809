"""Chosen actions are counted against those carried out."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from esper.dashboard.views import headline
from esper.dashboard.views.learned import carried_out
from esper.telemetry.records import RoundRecord, StepRecord
from tests.dashboard.views.samples import FOSSILIZE, GERMINATE, WAIT, run_record, stored
from tests.telemetry.samples import example


def steps(*outcomes: tuple[int, int, bool, str | None]) -> list[StepRecord]:
    """Return a step for each op, what was done, whether it was illegal, and why it was refused."""
    plain = example(StepRecord)
    return [
        replace(
            plain,
            round=1 + number // 4,
            step=number,
            op=op,
            op_done=done,
            is_illegal=is_illegal,
            refusal=refusal,
        )
        for number, (op, done, is_illegal, refusal) in enumerate(outcomes)
    ]


DONE = [replace(example(RoundRecord), round=number) for number in (1, 2)]
OUTCOMES = (
    (WAIT, WAIT, False, None),
    (GERMINATE, GERMINATE, False, None),
    (GERMINATE, WAIT, True, None),
    (FOSSILIZE, WAIT, False, "too young"),
    (FOSSILIZE, WAIT, False, "not finite"),
    (FOSSILIZE, WAIT, False, "too young"),
)


def test_each_op_is_counted_as_chosen_and_as_done(tmp_path: Path) -> None:
    with stored(tmp_path, [run_record(), *steps(*OUTCOMES), *DONE]) as telemetry:
        found = carried_out(telemetry)
    json.dumps(found, allow_nan=False)
    assert {one["op"]: list(one.values())[1:] for one in found["ops"]} == {
        "wait": [1, 5, 0, 0],
        "germinate": [2, 1, 0, 1],
        "fossilize": [3, 0, 3, 0],
    }
    assert (found["n_steps"], found["first_round"], found["last_round"]) == (6, 1, 2)
    assert found["reasons"] == [
        {"reason": "too young", "count": 2},
        {"reason": "not finite", "count": 1},
    ]


def test_only_the_latest_steps_of_a_long_run_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stored(tmp_path, [run_record(), *steps(*OUTCOMES), *DONE]) as telemetry:
        monkeypatch.setitem(carried_out.__globals__, "MAX_STEPS", 0)
        found = carried_out(telemetry)
    assert (found["n_steps"], found["first_round"]) == (1, 2)


def test_without_recorded_steps_there_is_nothing_to_count(tmp_path: Path) -> None:
    with stored(tmp_path, [run_record()]) as telemetry:
        found = carried_out(telemetry)
    assert (found["n_steps"], found["ops"], found["last_round"]) == (0, [], None)


def test_the_headline_has_shares_of_all_steps(tmp_path: Path) -> None:
    plain = example(RoundRecord)
    rounds = [
        replace(plain, round=1, env_steps=100, n_refused=3, n_illegal=1),
        replace(plain, round=2, env_steps=200, n_refused=0, n_illegal=1),
    ]
    with stored(tmp_path, [run_record(), *rounds]) as telemetry:
        found = headline(telemetry)
    assert (found["refused_share"], found["illegal_share"]) == (0.015, 0.01)

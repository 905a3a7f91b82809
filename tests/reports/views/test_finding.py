"""Finding rows by halving numbers, against looking at all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from esper.reports.views.finding import (
    first_number,
    last_position,
    numbers_of_steps,
    records_among,
)
from esper.telemetry.records import EpisodeRecord, NoticeRecord, Record, StepRecord
from tests.reports.views.simulation import simulate
from tests.telemetry.samples import example, notice, step, written

WHOLE = range(10**9)


@settings(max_examples=20, deadline=None)
@given(rises=st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=40), data=st.data())
def test_the_first_row_of_a_step_is_found_among_rows_of_other_tables(
    rises: list[tuple[bool, int]], data: Any
) -> None:
    records, number = list[Record](), 0
    for is_step, rise in rises:
        number += rise
        records.append(step(number) if is_step else notice(number))
    least = data.draw(st.integers(-1, number + 2))
    with TemporaryDirectory() as folder, written(Path(folder), records) as telemetry:
        start = first_number(telemetry, StepRecord, "step", least)
        rows = list(records_among(telemetry, StepRecord, range(start, 10**9)))
        before = list(records_among(telemetry, StepRecord, range(start)))
        steps = [one for one in records if isinstance(one, StepRecord)]
        assert rows == [one for one in steps if one.step >= least]
        assert before == [one for one in steps if one.step < least]
        assert last_position(telemetry) == len(records)


def test_rows_of_some_steps_of_one_environment(tmp_path: Path) -> None:
    records = simulate(n_rounds=5, seed=8)
    with written(tmp_path, records) as telemetry:
        for first, last in ((1, 1), (3, 9), (15, None), (20, None), (21, None), (-5, 0), (9, 3)):
            numbers = numbers_of_steps(telemetry, StepRecord, first, last)
            found = list(records_among(telemetry, StepRecord, numbers, env=1))
            end = 10**9 if last is None else last
            assert found == [
                one
                for one in records
                if isinstance(one, StepRecord) and one.env == 1 and first <= one.step <= end
            ]


def test_records_are_those_that_were_written_with_nan_and_truth_values(tmp_path: Path) -> None:
    kept = example(EpisodeRecord, final_score=None, was_truncated=False)
    broken = replace(kept, ep_rew=float("nan"), final_score=float("nan"))
    with written(tmp_path, [kept, broken]) as telemetry:
        found, other = records_among(telemetry, EpisodeRecord, WHOLE)
        assert found == kept
        assert repr(other) == repr(broken)
        assert list(records_among(telemetry, NoticeRecord, WHOLE)) == []


def test_without_rows_there_is_no_position(tmp_path: Path) -> None:
    with written(tmp_path, []) as telemetry:
        assert last_position(telemetry) == 0
        numbers = numbers_of_steps(telemetry, StepRecord, 1)
        assert list(records_among(telemetry, StepRecord, numbers)) == []

"""Tables of a report show what the views hold, and long runs in few rows."""

from __future__ import annotations

import pytest

from esper.formatting import number
from esper.reports.run_report.tables import (
    N_TRIALS,
    blueprints_table,
    decision_words,
    episode_table,
    learning_table,
    ops_table,
    slots_words,
    spread,
    trials_table,
)
from esper.reports.run_report.values import RunValues
from tests.reports.run_report.samples import make_run, values_of
from tests.reports.run_report.test_run_words import trial


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunValues:
    return values_of(make_run(tmp_path_factory.mktemp("runs") / "run", n_rounds=30))


def test_values_are_spread_from_the_first_to_the_last() -> None:
    assert spread(range(10), 4) == [0, 3, 6, 9]
    assert spread([1, 2], 8) == [1, 2]
    assert spread([], 8) == []


def test_the_rounds_of_a_run_are_shown_with_their_metrics(run: RunValues) -> None:
    table = learning_table(run)
    rounds = [int(row[0]) for row in table.rows]
    assert (rounds[0], rounds[-1], len(rounds)) == (1, 30, 8)
    series = run["metrics"]["series"]["rollout/ep_rew_mean"]
    known = dict(zip(series["rounds"], series["values"], strict=True))
    place = table.headers.index("return")
    assert [row[place] for row in table.rows] == [number(known.get(one)) for one in rounds]


def test_of_many_trials_some_are_shown_and_always_the_best(run: RunValues) -> None:
    trials = [trial(number, 0.5, is_best=number == 77) for number in range(1, 200)]
    table = trials_table(run | {"evaluations": [trial(0, 0.4, arm="wait"), *trials]})
    rounds = [int(row[0]) for row in table.rows]
    assert rounds == sorted(rounds)
    assert {0, 1, 77, 199} <= set(rounds)
    assert len(rounds) == N_TRIALS + 2
    assert [row[-1] for row in table.rows].count("best so far") == 1


def test_parts_and_blueprints_are_those_of_the_view(run: RunValues) -> None:
    parts = run["learned"]["parts"]
    table = ops_table(run["learned"])
    place = table.headers.index("germinate")
    assert [row[place] for row in table.rows] == [
        f"{part['ops']['germinate']:.2f}" for part in parts
    ]
    shares = blueprints_table(run["learned"])
    last = parts[-1]["blueprints"]
    assert shares.rows[0][0] == max(sorted(last), key=lambda name: last[name])
    assert blueprints_table({"parts": []}).rows == ()


def test_an_episode_is_told_step_by_step(run: RunValues) -> None:
    detail = run["episodes"][0]["detail"]
    table = episode_table(detail)
    assert len(table.rows) == len(detail["steps"])
    for row, step in zip(table.rows, detail["steps"], strict=True):
        assert row[1] == decision_words(step)
        assert row[3] == number(step["score"])
        for slot, state in zip(detail["slots"], step["slots"], strict=True):
            told = f"{slot}: {state['blueprint'] or 'a seed'} {state['stage']}"
            assert (told in row[2]) == (state["stage"] != "dormant")


def test_a_decision_says_what_was_refused(run: RunValues) -> None:
    step = run["episodes"][0]["detail"]["steps"][0]
    plain = {"op": "set_alpha_target", "slot": "a", "blueprint": None, "is_illegal": False}
    step = step | plain | {"refusal": None}  # type: ignore[assignment]
    assert decision_words(step) == "set alpha target in a"
    assert decision_words(step | {"refusal": "too young"}) == (
        "set alpha target in a (refused: too young)"
    )
    assert decision_words(step | {"is_illegal": True}).endswith("(not legal, so it waited)")
    grown = step | {"op": "germinate", "blueprint": "norm"}
    assert decision_words(grown) == "germinate norm in a"
    assert slots_words(step | {"slots": []}, ["a"]) == "-"

"""The tables of a report agree with the views, and shorten long runs."""

from __future__ import annotations

import pytest

from esper.formatting import number
from esper.reports.run_report.tables import (
    N_EVALUATIONS,
    blueprints_table,
    decision_text,
    episode_table,
    epoch_by,
    evaluations_table,
    learning_table,
    ops_table,
    slots_text,
    spread,
    timing_table,
)
from esper.reports.run_report.values import RunValues
from tests.reports.run_report.samples import make_run, trial, values_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunValues:
    return values_of(make_run(tmp_path_factory.mktemp("runs") / "run", n_rounds=30))


def test_spread_keeps_the_first_and_the_last() -> None:
    assert spread(range(10), 4) == [0, 3, 6, 9]
    assert spread([1, 2], 8) == [1, 2]
    assert spread([], 8) == []


def test_the_learning_table_has_the_metrics_of_its_rounds(run: RunValues) -> None:
    table = learning_table(run)
    rounds = [int(row[0]) for row in table.rows]
    assert (rounds[0], rounds[-1], len(rounds)) == (1, 30, 8)
    series = run["metrics"]["series"]["rollout/ep_rew_mean"]
    known = dict(zip(series["rounds"], series["values"], strict=True))
    place = table.headers.index("return")
    assert [row[place] for row in table.rows] == [number(known.get(one)) for one in rounds]


def test_many_evaluations_are_thinned_out_except_the_best(run: RunValues) -> None:
    trials = [trial(number, 0.5, is_best=number == 77) for number in range(1, 200)]
    table = evaluations_table(run | {"evaluations": [trial(0, 0.4, arm="wait"), *trials]})
    rounds = [int(row[0]) for row in table.rows]
    assert rounds == sorted(rounds)
    assert {0, 1, 77, 199} <= set(rounds)
    assert len(rounds) == N_EVALUATIONS + 2
    assert [row[-1] for row in table.rows].count("best so far") == 1


def test_ops_and_blueprints_agree_with_the_view(run: RunValues) -> None:
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


def test_an_episode_has_one_row_per_step(run: RunValues) -> None:
    detail = run["episodes"][0]["detail"]
    table = episode_table(detail)
    assert len(table.rows) == len(detail["steps"])
    for row, step in zip(table.rows, detail["steps"], strict=True):
        assert row[1] == decision_text(step)
        assert row[3] == number(step["score"])
        for slot, state in zip(detail["slots"], step["slots"], strict=True):
            text = f"{slot}: {state['blueprint'] or 'a seed'} {state['stage']}"
            assert (text in row[2]) == (state["stage"] != "dormant")


def test_a_decision_shows_why_it_was_rejected(run: RunValues) -> None:
    step = run["episodes"][0]["detail"]["steps"][0]
    plain = {"op": "set_alpha_target", "slot": "a", "blueprint": None, "is_illegal": False}
    step = step | plain | {"refusal": None}  # type: ignore[assignment]
    assert decision_text(step) == "set alpha target in a"
    assert decision_text(step | {"refusal": "too young"}) == (
        "set alpha target in a (rejected: too young)"
    )
    assert decision_text(step | {"is_illegal": True}).endswith("(illegal, waited instead)")
    grown = step | {"op": "germinate", "blueprint": "norm"}
    assert decision_text(grown) == "germinate norm in a"
    assert slots_text(step | {"slots": []}, ["a"]) == "-"


def test_timing_follows_from_counts_worked_by_hand(run: RunValues) -> None:
    part = run["learned"]["parts"][0] | {"first_round": 1, "last_round": 10, "n_episodes": 200}
    early = part | {
        "germination_epochs": {1: 50, 2: 40, 5: 10},
        "finish_epochs": {3: 60, 4: 40},
    }
    late = part | {
        "first_round": 11,
        "last_round": 20,
        "germination_epochs": {},
        "finish_epochs": {},
    }
    nothing = part | {"n_episodes": 0}
    table = timing_table({"parts": [early, late, nothing]})  # type: ignore[list-item]
    assert table.rows == (
        ("rounds 1 to 10", "1", "2", "50%", "3"),
        ("rounds 11 to 20", "-", "-", "0%", "-"),
    )


@pytest.mark.parametrize("wanted", [0.1, 0.5, 0.9, 1.0])
def test_epoch_by_agrees_with_sorted_events(wanted: float) -> None:
    counts = {7: 3, 1: 4, 2: 1, 9: 2}
    events = sorted(epoch for epoch, n in counts.items() for _ in range(n))
    expected = next(
        epoch for place, epoch in enumerate(events, start=1) if place >= wanted * len(events)
    )
    assert epoch_by(counts, wanted) == str(expected)

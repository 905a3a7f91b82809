"""Sentences about a run say what its numbers say, worked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from esper.formatting import duration, memory, share, signed_points
from esper.reports.run_report.run_words import (
    health_sentences,
    learning_sentences,
    state_sentence,
)
from esper.reports.run_report.values import RunValues
from esper.reports.views import Evaluation
from tests.reports.run_report.samples import make_run, values_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def run(folder: Path) -> RunValues:
    return values_of(folder)


def trial(round_: int, ep_rew: float, **changes: Any) -> Evaluation:
    values: dict[str, Any] = {
        "round": round_,
        "arm": "learned",
        "purpose": "tuning",
        "split": "validation",
        "n_episodes": 64,
        "ep_rew_mean": ep_rew,
        "score_mean": 0.8,
        "flops_mean": 0.5,
        "host_parameters_mean": 100.0,
        "seed_parameters_mean": 1234.0,
        "is_best": False,
    }
    return Evaluation(**(values | changes))  # type: ignore[typeddict-item]


def test_learning_is_told_by_the_trials_and_held_against_schedule_and_static_hosts(
    run: RunValues,
) -> None:
    run["evaluations"] = [
        trial(2, 0.51, is_best=True),
        trial(4, 0.71, is_best=True),
        trial(6, 0.65),
        trial(6, 0.9, arm="wait", purpose="final"),
    ]
    run["headline"] |= {
        "fixed_return": 0.6,
        "accuracy_gain": 0.0249,
        "best_score": 0.8,
        "flops": 0.512,
        "seed_parameters": 1234.0,
    }
    assert learning_sentences(run) == (
        "On 64 held-out hosts, the same each time, the controller's return was 0.510 after round 2 "
        "and 0.650 after round 6; the best was 0.710 after round 4, which is kept.",
        "The fixed schedule's return on them is 0.600; the controller passed it first after round "
        "4.",
        "Its hosts scored 0.800 there after round 4, +2.5 points against the same hosts left "
        "alone, with 0.51 of the reference run's FLOPs and 1,234 parameters grown. The trials "
        "chose which controller is kept, so this flatters it a little.",
    )
    run["headline"] |= {"fixed_return": 0.72, "accuracy_gain": None}
    assert learning_sentences(run)[1:] == (
        "The fixed schedule's return on them is 0.720; the controller has not passed it.",
    )
    run["evaluations"] = []
    assert learning_sentences(run) == ("The controller has not been tried on held-out hosts yet.",)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("done", "The run is done: 8 rounds of 9, 96 epochs of hosts, in 2 min 5 s of training."),
        ("running", "The run is still going on; this is what it had recorded when the report was"),
        ("interrupted", "The run was interrupted and can be gone on with: 8 rounds of 9"),
        ("killed", "The run was ended from outside and can be gone on with: 8 rounds of 9"),
        ("failed", "The run failed: 8 rounds of 9, 96 epochs of hosts, in 2 min 5 s of training ("),
    ],
)
def test_a_run_in_any_state_says_so(run: RunValues, state: str, told: str) -> None:
    run["headline"]["seconds"] = 125.0
    run["state"] = state
    run["overview"]["sessions"][-1]["message"] = "the disk is full."
    assert state_sentence(run).startswith(told)
    assert ("(the disk is full)." in state_sentence(run)) == (state == "failed")


def test_health_counts_what_went_wrong(run: RunValues) -> None:
    health = run["health"]
    health["refused_updates"] = [{"round": 7, "reason": "nan"}, {"round": 3, "reason": "nan"}]
    health["early_stops"] = {"total": 4, "rounds": [1, 2, 3, 4]}
    health["governor"]["total"] = 1
    health["governor"]["last"] = [
        {"round": 5, "env": 0, "episode": 0, "epoch": 1, "reason": "the loss is nan."}
    ]
    health["illegal"], health["refused_by_gates"] = 1, 20
    health["throughput"]["values"] = [1000.0, None, 3000.0, 2000.0]
    health["memory"]["values"] = [5e8, 6.12e8]
    assert health_sentences(run) == (
        "Of 8 updates 2 were refused because a number was not finite (rounds: 3 and 7); 4 ended "
        "early because the policy had moved far enough.",
        "The governor put a host back 1 time, the last time in round 5 because the loss is nan.",
        "1 action was illegal in the state of its host; gates refused 20 of 96.",
        "It did 2,000 epochs of hosts a second, the middle one of all rounds.",
        "The process took at most 612 MB of memory.",
    )
    health["refused_updates"], health["early_stops"] = [], {"total": 0, "rounds": []}
    health["governor"]["total"] = health["illegal"] = health["refused_by_gates"] = 0
    assert health_sentences(run)[:3] == (
        "Of 8 updates none was refused; none ended early because the policy had moved far enough.",
        "The governor never had to put a host back.",
        "No action was illegal in the state of its host; gates refused none.",
    )


def test_numbers_are_written_as_people_read_them() -> None:
    assert [duration(s) for s in (9.4, 412, 7511)] == ["9 s", "6 min 52 s", "2 h 5 min"]
    assert [memory(n) for n in (612e6, 1.24e9)] == ["612 MB", "1.2 GB"]
    assert [share(x) for x in (0, 0.004, 0.5, 0.996, 1.0)] == [
        "0%",
        "less than 1%",
        "50%",
        "more than 99%",
        "100%",
    ]
    assert [signed_points(x) for x in (0.056, -0.0001)] == ["+5.6 points", "+0.0 points"]

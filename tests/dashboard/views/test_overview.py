"""The overview and headline agree with the records."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from esper.config.toml import read_toml
from esper.dashboard.views import headline, overview
from esper.telemetry import TelemetryWriter, open_run
from esper.telemetry.records import EvaluationRecord, RoundRecord
from tests.dashboard.views.samples import (
    BLUEPRINTS,
    CHOICES,
    HEADS,
    HOST,
    N_EPOCHS,
    OPS,
    READS,
    SLOTS,
    config_text,
    run_record,
    stored,
    trial,
)
from tests.dashboard.views.simulation import simulate
from tests.telemetry.samples import FILE

RECORDS = simulate(n_rounds=10, seed=2)


def test_the_overview_has_names_settings_and_sessions(tmp_path: Path) -> None:
    run = run_record()
    with stored(tmp_path, RECORDS) as telemetry:
        found, sessions = overview(telemetry), telemetry.sessions()
    json.dumps(found, allow_nan=False)
    assert (found["slots"], found["blueprints"]) == (SLOTS, BLUEPRINTS)
    assert (found["heads"], found["ops"]) == (HEADS, OPS)
    assert (found["choices"], found["reads"], found["host"]) == (CHOICES, READS, HOST)
    assert (found["task"], found["config_toml"]) == ("spirals", run.config)
    assert (found["created_at"], found["esper_version"]) == (run.created_at, run.esper_version)
    assert (found["n_envs"], found["n_epochs"]) == (3, N_EPOCHS)
    assert found["kl_limit"] == pytest.approx(0.03)
    assert found["sessions"] == [asdict(one) for one in sessions]
    assert [one["outcome"] for one in found["sessions"]] == ["done"]


def test_a_run_without_target_kl_has_no_kl_limit(tmp_path: Path) -> None:
    run = run_record(config=config_text(target_kl=None))
    with stored(tmp_path, [run]) as telemetry:
        assert overview(telemetry)["kl_limit"] is None


def test_a_running_session_has_no_end(tmp_path: Path) -> None:
    with TelemetryWriter(tmp_path / FILE) as writer:
        writer.start_session(first_round=1, threads=1, torch_version="2")
        with open_run(tmp_path) as telemetry:
            (session,) = overview(telemetry)["sessions"]
    assert (session["ended_at"], session["outcome"]) == (None, None)


def test_the_headline_has_the_last_round_and_the_best_evaluation(tmp_path: Path) -> None:
    rounds = [one for one in RECORDS if isinstance(one, RoundRecord)]
    trials = [one for one in RECORDS if isinstance(one, EvaluationRecord)]
    best = [one for one in trials if one.arm == "learned" and one.is_best][-1]
    settings = read_toml(config_text(), source="test")
    with stored(tmp_path, RECORDS) as telemetry:
        found = headline(telemetry)
    json.dumps(found, allow_nan=False)
    assert (best.round, trials[-1].round) == (8, 10)
    assert found == {
        "task": "spirals",
        "task_options": {"n_classes": 3},
        "rounds_done": 10,
        "rounds": settings.rounds,
        "env_steps": rounds[-1].env_steps,
        "steps_per_second": rounds[-1].steps_per_second,
        "seconds": pytest.approx(sum(one.seconds for one in rounds)),
        "refused_share": sum(one.n_refused for one in rounds) / rounds[-1].env_steps,
        "illegal_share": sum(one.n_illegal for one in rounds) / rounds[-1].env_steps,
        "is_final": False,
        "last_return": [one.ep_rew_mean for one in rounds if one.ep_rew_mean is not None][-1],
        "best_return": best.ep_rew_mean,
        "fixed_return": 0.6,
        "score_gain": best.score_mean - 0.5,
        "no_growth_score": 0.5,
        "host_parameters": best.host_parameters_mean,
        "seed_parameters": best.seed_parameters_mean,
        "flops": best.flops_mean,
        "position": len(RECORDS),
    }


def test_the_headline_of_a_done_run_is_its_final_comparison(tmp_path: Path) -> None:
    later = [
        trial(9, "learned", purpose="final", score_mean=0.9, ep_rew_mean=0.8),
        trial(9, "no-growth", purpose="final", score_mean=0.7),
        trial(9, "fixed", purpose="final", ep_rew_mean=0.75),
    ]
    with stored(tmp_path / "a", RECORDS) as telemetry:
        before = headline(telemetry)
    with stored(tmp_path / "b", [*RECORDS, *later[:2]]) as telemetry:
        assert headline(telemetry) == before | {"position": before["position"] + 2}
    with stored(tmp_path / "c", [*RECORDS, *later]) as telemetry:
        found = headline(telemetry)
    assert found["is_final"]
    assert (found["best_return"], found["fixed_return"]) == (0.8, 0.75)
    assert found["no_growth_score"] == 0.7
    assert found["score_gain"] == pytest.approx(0.2)


def test_unknown_values_are_none(tmp_path: Path) -> None:
    of_trials = ("best_return", "fixed_return", "score_gain", "no_growth_score")
    of_best = (
        "last_return",
        "refused_share",
        "illegal_share",
        "host_parameters",
        "seed_parameters",
        "flops",
    )
    unknown: dict[str, object] = dict.fromkeys((*of_trials, *of_best, "steps_per_second"))
    none_yet = unknown | {"is_final": False, "rounds_done": 0, "env_steps": 0, "seconds": 0.0}
    with stored(tmp_path / "empty", []) as telemetry:
        found = headline(telemetry)
        assert found == none_yet | {"task": None, "task_options": {}, "rounds": None, "position": 0}
        about = overview(telemetry)
        assert (about["task"], about["n_envs"], about["kl_limit"]) == (None, None, None)
        assert (about["slots"], about["choices"], about["host"]) == ([], {}, None)
    with stored(tmp_path / "begun", RECORDS[:2]) as telemetry:
        found = headline(telemetry)
        assert (found["no_growth_score"], found["fixed_return"], found["position"]) == (
            0.5,
            None,
            2,
        )
        assert (found["rounds"], found["rounds_done"]) == (9, 0)


def test_a_nan_score_has_no_gain(tmp_path: Path) -> None:
    broken = trial(2, "learned", is_best=True, score_mean=float("nan"), ep_rew_mean=float("inf"))
    with stored(tmp_path, [*RECORDS[:3], broken]) as telemetry:
        found = headline(telemetry)
    assert (found["score_gain"], found["best_return"]) == (None, None)

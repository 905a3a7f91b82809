"""Runs that fail at their end can be finished, and settings stay those that a run began with."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from esper.config.growth import Budget
from esper.config.toml import override, write_toml
from esper.errors import CheckpointError, ConfigError, NonFiniteError, TrainingError
from esper.simic.agent import PPOAgent
from esper.tasks import make_task
from esper.telemetry import open_run
from esper.telemetry.records import EvaluationRecord, RoundRecord, UpdateRecord
from esper.training.runs import RunInterrupted, resume, train
from esper.training.setup import with_task_budget
from esper.training.stopping import StopRequest
from tests.training.tiny import tiny_config


def refuse(*_: object) -> None:
    raise NonFiniteError("a loss that is not finite")


def test_a_run_that_fails_in_its_last_round_is_evaluated_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = override(tiny_config(), {"rounds": 3, "evaluation.eval_freq": 3})
    with monkeypatch.context() as broken:
        broken.setattr(PPOAgent, "update", refuse)
        with pytest.raises(TrainingError):
            train(config, run_dir=tmp_path / "run")
    run = resume(tmp_path / "run")
    assert run.state == "done"
    with open_run(run.path) as telemetry:
        assert [row.round for row in telemetry.rows(RoundRecord)] == [1, 2, 3]
        rows = telemetry.rows(EvaluationRecord, arm="learned", purpose="tuning")
        assert [row.round for row in rows] == [3]


def test_weights_that_overflow_what_they_compute_are_refused(tmp_path: Path) -> None:
    config = override(tiny_config(), {"rounds": 1, "ppo.learning_rate": 1e37, "ppo.n_epochs": 1})
    run = train(config, run_dir=tmp_path / "run")
    with open_run(run.path) as telemetry:
        (update,) = telemetry.rows(UpdateRecord)
    assert update.was_refused
    assert "learning_rate is too high" in str(update.refusal)


def test_a_run_goes_on_with_the_settings_that_it_began_with(tmp_path: Path) -> None:
    stop = StopRequest()
    stop.ask("at once")
    with pytest.raises(RunInterrupted):
        train(tiny_config(), run_dir=tmp_path / "run", stop=stop)
    file = tmp_path / "run" / "config.toml"
    file.write_text(write_toml(override(tiny_config(), {"ppo.learning_rate": 0.5})))
    with pytest.raises(CheckpointError, match=r"ppo.learning_rate was .* and is 0\.5"):
        resume(tmp_path / "run")
    file.write_text(write_toml(override(tiny_config(), {"checkpoints.keep_last": 1})))
    assert resume(tmp_path / "run").state == "done"  # what does not change the run may change


def test_more_minibatches_than_sequences_are_refused_before_anything_is_done() -> None:
    with pytest.raises(ConfigError, match=r"n_minibatches is 9.*has 4 sequences"):
        override(tiny_config(), {"ppo.n_minibatches": 9})


def test_a_callers_random_numbers_and_modes_stay_as_they_are(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with torch.no_grad():
        train(override(tiny_config(), {"rounds": 1}), run_dir=tmp_path / "run")
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.rand(3), expected)


def test_a_tasks_own_budget_counts_unless_another_is_set() -> None:
    config = override(tiny_config(), {"budget": Budget(), "task": "digits", "task_options": {}})
    task = replace(make_task("digits"), budget=Budget(n_epochs=5))
    register = pytest.MonkeyPatch()
    register.setattr("esper.training.setup.make_task", lambda *_, **__: task)
    try:
        assert with_task_budget(config).budget == Budget(n_epochs=5)
        set_otherwise = override(config, {"budget": Budget(n_epochs=7)})
        assert with_task_budget(set_otherwise).budget == Budget(n_epochs=7)
    finally:
        register.undo()

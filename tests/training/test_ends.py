"""Failed runs can be finished, and a run keeps the settings it started with."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from esper.config.growth import Budget
from esper.config.run import TASKS_BUDGET
from esper.config.toml import override, source_config, write_toml
from esper.errors import CheckpointError, ConfigError, NonFiniteError, TaskError, TrainingError
from esper.evidence.compare import compare
from esper.simic.agent import PPOAgent
from esper.tasks import Task, make_task
from esper.telemetry import open_run
from esper.telemetry.records import EvaluationRecord, RoundRecord, UpdateRecord
from esper.training.runs import RunInterrupted, resume, train
from esper.training.setup import resolve_task
from esper.training.signals import StopRequest
from tests.training.tiny import Seen, tiny_config

SHORT = {"n_steps": 2, "budget.n_epochs": 2}


def refuse(*_: object) -> None:
    raise NonFiniteError("a loss that is not finite")


def test_a_run_that_fails_in_its_last_round_is_evaluated_when_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = override(tiny_config(), {**SHORT, "rounds": 3, "evaluation.eval_freq": 3})
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


def test_an_update_whose_outputs_overflow_is_rejected(tmp_path: Path) -> None:
    changes = {**SHORT, "rounds": 1, "ppo.learning_rate": 1e37, "ppo.n_epochs": 1}
    config = override(tiny_config(), changes)
    run = train(config, run_dir=tmp_path / "run")
    with open_run(run.path) as telemetry:
        (update,) = telemetry.rows(UpdateRecord)
    assert update.was_refused
    assert "learning_rate" in str(update.refusal)


def test_a_run_cannot_be_resumed_with_other_settings(tmp_path: Path) -> None:
    stop, config = StopRequest(), override(tiny_config(), {**SHORT, "rounds": 1})
    stop.ask("at once")
    with pytest.raises(RunInterrupted):
        train(config, run_dir=tmp_path / "run", stop=stop)
    file = tmp_path / "run" / "config.toml"
    file.write_text(write_toml(override(config, {"ppo.learning_rate": 0.5})))
    with pytest.raises(CheckpointError, match=r"ppo.learning_rate is 0\.5 .* was 0\.003"):
        resume(tmp_path / "run")
    file.write_text(write_toml(override(config, {"checkpoints.keep_last": 1})))
    assert resume(tmp_path / "run").state == "done"  # does not affect the results


def test_more_minibatches_than_sequences_are_rejected() -> None:
    with pytest.raises(ConfigError, match="n_minibatches is 9"):
        override(tiny_config(), {"ppo.n_minibatches": 9})


def test_training_leaves_the_callers_random_state_and_modes_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with torch.no_grad():
        train(override(tiny_config(), {**SHORT, "rounds": 1}), run_dir=tmp_path / "run")
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.rand(3), expected)


def test_a_tasks_own_budget_applies_unless_another_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {"budget": TASKS_BUDGET, "task": "digits", "task_options": {}}
    config = override(tiny_config(), changed)
    task = replace(make_task("digits"), budget=Budget(n_epochs=5))
    monkeypatch.setattr("esper.training.setup.create_task", lambda *_, **__: task)
    for changes, n_epochs in (({}, 5), ({"budget.n_epochs": 7}, 7), ({"budget": Budget()}, 16)):
        given = source_config(config).change(changes, "arguments")
        resolved, made = resolve_task(given)
        assert resolved.config.budget == made.budget == Budget(n_epochs=n_epochs)
        assert resolve_task(source_config(override(config, changes)))[1].budget == made.budget


def test_a_task_may_be_an_object(tmp_path: Path) -> None:
    task = replace(make_task("spirals"), name="mine", budget=Budget(n_epochs=3))
    config = override(tiny_config(), {"n_steps": 2, "rounds": 2, "budget": TASKS_BUDGET})
    stop = StopRequest()
    watcher = Seen(lambda record: stop.ask("enough") if record.table == "steps" else None)
    with pytest.raises(RunInterrupted):
        train(config, task=task, run_dir=tmp_path / "run", watchers=[watcher], stop=stop)
    with pytest.raises(TaskError, match="'mine' was given as an object"):
        resume(tmp_path / "run")
    run = resume(tmp_path / "run", task=task)
    assert (run.state, run.config.budget.n_epochs) == ("done", 3)
    assert "n_epochs = 3  # task task object mine" in run.folder.config_file.read_text()
    with pytest.raises(ConfigError, match="is an object, which workers cannot make"):
        train(config, task=task, workers=1)
    assert compare([run, "no-growth"], task=task, n_hosts=2).task == "mine"


def test_a_task_that_is_taken_for_a_file_is_pointed_out() -> None:
    with pytest.raises(
        ConfigError, match=r"no configuration file 'leak'\. A task is named by task="
    ):
        train("leak")


def test_a_new_run_makes_its_task_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(name: str, options: dict[str, object]) -> Task:
        made.append(name)
        return make_task(name, **options)

    monkeypatch.setattr("esper.training.setup.create_task", counted)
    train(override(tiny_config(), {**SHORT, "rounds": 1}), run_dir=tmp_path / "run")
    assert made == ["spirals"]

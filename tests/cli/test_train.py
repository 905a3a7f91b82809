"""Options override presets and files, and errors name the setting by its path."""

import io
import os
import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from esper.cli.main import main
from esper.config.growth import Budget
from esper.config.run import RunConfig
from esper.config.toml import load_preset, override, preset_names, read_toml, write_toml
from esper.tasks import make_task
from tests.config.run_configs import run_configs


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> RunConfig:
    assert main(["train", *words, "--print-config"]) == 0
    return read_toml(capsys.readouterr().out, source="printed")


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_printed_unchanged(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--preset", name, "--print-config"]) == 0
    printed_text = capsys.readouterr().out
    assert printed_text.replace(f"  # preset {name}", "") == write_toml(load_preset(name))


def test_the_quick_preset_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed([], capsys) == load_preset("quick")


def test_options_override_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--preset digits --rounds 5 --ppo.learning-rate 3e-4 --ppo.n_epochs=7 --task spirals"
    flags += " --evaluation.patience 3 --ppo.target-kl None --ppo.no-normalize-returns"
    flags += " --telemetry.sinks wandb tensorboard --schedule.ent-coef cosine"
    flags += " --task-options n_epochs=4 host=cnn rate=0.5 flag=true"
    flags += " --budget.n-epochs 5 --budget.flop-price 0.25 --budget.parameter-rent 0"
    changes = {
        "rounds": 5,
        "ppo.learning_rate": 3e-4,
        "ppo.n_epochs": 7,
        "task": "spirals",
        "evaluation.patience": 3,
        "ppo.target_kl": None,
        "ppo.normalize_returns": False,
        "telemetry.sinks": ("wandb", "tensorboard"),
        "schedule.ent_coef": "cosine",
        "task_options": {"n_epochs": 4, "host": "cnn", "rate": 0.5, "flag": True},
        "budget": Budget(n_epochs=5, flop_price=0.25, parameter_rent=0.0),
    }
    assert printed(flags.split(), capsys) == override(load_preset("digits"), changes)


def test_the_settings_are_printed_with_where_each_comes_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = replace(make_task("spirals"), budget=Budget(n_epochs=12, flop_price=0.3))
    monkeypatch.setattr("esper.training.setup.create_task", lambda *_, **__: task)

    def sources(*words: str) -> dict[str, str]:
        assert main(["train", *words, "--print-config"]) == 0
        lines = capsys.readouterr().out.splitlines()
        return dict(line.split("  # ") for line in lines if "  # " in line)

    found = sources("--task", "mine", "--rounds", "45")
    assert found["n_epochs = 12"] == found["flop_price = 0.3"] == "task mine"
    assert found["rounds = 45"] == found['task = "mine"'] == "command line"
    assert found["seed = 0"] == "preset quick"
    assert sources("--task", "mine", "--budget.n-epochs", "24")["n_epochs = 24"] == "command line"
    assert sources()[f"n_epochs = {load_preset('quick').budget.n_epochs}"] == "preset quick"
    path = tmp_path / "a.toml"
    path.write_text('task = "mine"\n[budget]\nn_epochs = 16\n')
    found = sources("--config", str(path), "--budget.parameter-rent", "0.02")
    assert found["n_epochs = 16"] == str(path)  # although it is the default
    assert found["flop_price = 0.3"] == "task mine"
    assert found["parameter_rent = 0.02"] == "command line"
    assert found["rounds = 300"] == "default"


def test_options_override_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.toml"
    text = "rounds = 9\n[evaluation]\npatience = 4\n[task_options]\nhost = 'cnn'\n"
    path.write_text(text + "[budget]\nn_epochs = 5\n")
    read = printed(["--config", str(path)], capsys)
    assert (read.rounds, read.evaluation.patience) == (9, 4)
    assert read.task_options == {"host": "cnn"}
    flags = ["--config", str(path), "--evaluation.patience", "none", "--task-options"]
    changed = printed(flags, capsys)
    assert (changed.rounds, changed.evaluation.patience, changed.task_options) == (9, None, {})


@settings(max_examples=4)
@given(run_configs())
def test_the_settings_of_a_file_are_printed_unchanged(config: RunConfig) -> None:
    shown = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(shown):
        path = Path(folder) / "run.toml"
        path.write_text(write_toml(config), encoding="utf-8", newline="")
        assert main(["train", "--config", str(path), "--print-config"]) == 0
    assert read_toml(shown.getvalue(), source="printed") == config


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--ppo.learning-rte 3",
            "--ppo.learning-rte is not an option of esper train. Did you mean '--ppo.l",
        ),
        ("--learning-rate 3", "Did you mean '--ppo.learning-rate' or '--schedule.learning-rate'?"),
        ("--rounds 1.5", "--rounds is '1.5'"),
        ("--rounds=x", "--rounds is 'x'"),
        ("--rounds", "--rounds has no value"),
        ("--rounds 0", "rounds is 0; it must be"),
        ("--rounds none", "--rounds is 'none'"),
        ("--preset quik", "Did you mean 'quick'?"),
        ("--preset quick --config x", "--preset and --config are both given"),
        ("--config /no/such/file", "'/no/such/file'"),
        (
            "--schedule.ent-coef lin",
            'it must be one of "constant", "linear", "cosine". Did you mean \'linear\'?',
        ),
        ("--telemetry.sinks wandb wand", "--telemetry.sinks is 'wand'; it must be one of"),
        ("--ppo.learning-rate -1", "--ppo.learning-rate is -1.0"),
        ("--ppo.learning-rate nan", "--ppo.learning-rate is nan"),
        ("--ppo.learning-rate fast", "--ppo.learning-rate is 'fast'"),
        (
            "--evaluation.patience x",
            "--evaluation.patience is 'x'",
        ),
        ("--ppo.gamma 0.5", "ppo.gamma is 0.5 and rewards.gamma is 1.0"),
        ("--task-options host", "--task-options has 'host'"),
        ("--task-options x=nan", "task_options.x is nan"),
        ("--evaluation.no-deterministic=1", "--evaluation.no-deterministic takes no value"),
        ("--bogus", "--bogus is not an option of esper train. See esper train --help."),
        ("--run-dir -dash", "written --run-dir=VALUE"),
        ("--run-dir --rounds 3", "--run-dir has no value"),
        ("--run-dir=", "--run-dir is ''"),
        ("--task nope --run-dir x", "'nope'"),
        ("extra", "unexpected argument 'extra' for esper train"),
    ],
)
def test_wrong_options_are_reported_in_one_line(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *words.split()]) == 2
    printed_text = capsys.readouterr()
    assert message in printed_text.err
    assert printed_text.err.startswith("esper: error: ")
    assert len(printed_text.err.splitlines()) == 1
    assert printed_text.out == ""


def test_help_shows_the_defaults_of_the_chosen_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--preset", "text", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "(default: text)" in shown
    assert f"(default: {load_preset('text').envs})" in shown
    assert "Step size of Adam." in shown


def test_training_receives_the_settings_and_a_view(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    called: dict[str, Any] = {}

    def fake_train(config: RunConfig, **others: Any) -> None:
        called.update(config=config, **others)

    monkeypatch.setattr("esper.training.runs.train", fake_train)
    monkeypatch.setattr("esper.cli.launch.show_results", lambda *_, **__: None)
    assert main(["train", "--rounds", "2", "--run-dir", str(tmp_path / "a")]) == 0
    assert called["config"].config == override(load_preset("quick"), {"rounds": 2})
    assert called["config"].given == {"rounds": "command line"}
    assert called["run_dir"] == tmp_path / "a"
    assert len(called["watchers"]) == 1
    assert called["stop"].reason is None
    assert "training on digits-family: 2 rounds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--ray-address nonsense", "'nonsense'"),
        ("--ray-address 127.0.0.1:1", "'127.0.0.1:1'"),
        ("--ray-address local", "pip install 'esper-lite[ray]'"),
        ("--workers 9 --envs 8 --envs-per-shard 2", "workers is 9"),
        ("--workers 0 --ray-address auto", "workers is 0"),
    ],
)
def test_workers_that_cannot_be_had_are_reported_in_one_line(
    words: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    monkeypatch.setattr(os, "environ", os.environ.copy())
    os.environ.pop("RAY_AUTH_MODE", None)
    folder = tmp_path / "run"
    assert main(["train", "--quiet", "--run-dir", str(folder), *words.split()]) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.startswith("esper: error: ")
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert not folder.exists()

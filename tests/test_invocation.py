"""Printed commands can be pasted into a shell, and training commands reproduce the settings."""

import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from esper.cli.main import main
from esper.config.run import CheckpointConfig, RunConfig, TelemetryConfig
from esper.config.toml import load_preset, override, preset_names, read_toml
from esper.invocation import nearest_preset, training_command
from tests.training.tiny import tiny_config

ROOT = Path(__file__).parents[1]
BARE = os.pathsep.join(["/usr/bin", "/bin"])
SCRIPT = f"#!{sys.executable}\nimport sys\nfrom esper.cli.main import main\nsys.exit(main())\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with an ``esper`` script in a virtual environment."""
    bin_folder = tmp_path / "a place/.venv/bin"
    bin_folder.mkdir(parents=True)
    script = bin_folder / "esper"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    return tmp_path / "a place"


def printed_command(called: str, place: Path, path: str = BARE) -> str:
    """Return the command that ``esper runs`` suggests, after running it."""
    environment = {"PATH": path, "PYTHONPATH": str(ROOT / "src")}

    def run(words: str) -> str:
        done = subprocess.run(
            words, shell=True, cwd=place, env=environment, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, ""), words
        return done.stdout

    command = run(f"{called} runs").partition("start one with ")[2].strip()
    assert run(f"{command} --print-config").startswith("# ")
    return command


def test_a_script_outside_the_search_path_is_printed_with_its_path(place: Path) -> None:
    assert printed_command(".venv/bin/esper", place) == ".venv/bin/esper train"
    absolute = shlex.quote(str(place / ".venv/bin/esper"))
    assert printed_command(absolute, place) == ".venv/bin/esper train"
    assert printed_command("./esper", place / ".venv/bin") == "./esper train"
    assert printed_command(absolute, place.parent) == "'a place/.venv/bin/esper' train"


def test_a_script_in_the_search_path_is_printed_by_name(place: Path) -> None:
    path = f"{place}/.venv/bin{os.pathsep}{BARE}"
    assert printed_command("esper", place, path) == "esper train"
    assert printed_command(".venv/bin/esper", place, path) == "esper train"


def test_another_script_of_the_same_name_is_not_confused_with_it(place: Path) -> None:
    other = place / "other"
    other.mkdir()
    (other / "esper").write_text("#!/bin/sh\nexit 3\n")
    (other / "esper").chmod(0o755)
    path = f"{other}{os.pathsep}{BARE}"
    assert printed_command(".venv/bin/esper", place, path) == ".venv/bin/esper train"


def test_python_dash_m_is_printed_as_such(place: Path) -> None:
    python = shlex.quote(sys.executable)
    assert printed_command(f"{python} -m esper", place) == f"{python} -m esper train"
    path = f"{Path(sys.executable).parent}{os.pathsep}{BARE}"
    name = Path(sys.executable).name
    assert printed_command(f"{name} -m esper", place, path) == f"{name} -m esper train"


def parse_command(command: str, capsys: pytest.CaptureFixture[str]) -> RunConfig:
    args = shlex.split(command)
    assert args[:2] == ["esper", "train"]
    assert main([*args[1:], "--print-config"]) == 0
    return read_toml(capsys.readouterr().out, source="printed")


@pytest.mark.parametrize("name", preset_names())
def test_the_training_command_of_a_preset_names_only_the_preset(name: str) -> None:
    assert training_command(load_preset(name)) == f"esper train --preset {name}"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"task": "spirals", "task_options": {"batches_per_epoch": 2, "note": "it's 1 = 2"}},
        {"ppo.target_kl": None, "ppo.sequence_length": 4, "ppo.clip_range_vf": 0.25},
        {"evaluation.deterministic": True, "policy.normalize_observations": False, "seed": 7},
        {"ppo.learning_rate": 1e-5, "budget.flop_price": 0.1234567890123, "rounds": 1},
    ],
)
def test_the_training_command_reproduces_changed_settings(
    changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for start in (load_preset("quick"), tiny_config()):
        config = override(start, changes)
        found = parse_command(training_command(config), capsys)
        # Checkpoints and telemetry do not affect what is learned.
        same = {"checkpoints": CheckpointConfig(), "telemetry": TelemetryConfig()}
        assert replace(found, **same) == replace(config, **same)


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_differs_from_itself_in_nothing(name: str) -> None:
    assert nearest_preset(load_preset(name)) == (name, {})


def test_changed_settings_are_listed_with_the_value_of_the_preset() -> None:
    preset = load_preset("spirals")
    changed = override(preset, {"seed": 5, "ppo.learning_rate": 0.25})
    differs = {"seed": str(preset.seed), "ppo.learning_rate": str(preset.ppo.learning_rate)}
    assert nearest_preset(changed) == ("spirals", differs)


def test_a_setting_that_the_preset_does_not_have_is_listed() -> None:
    changed = override(load_preset("spirals"), {"task_options": {"n_classes": 4}})
    assert nearest_preset(changed) == ("spirals", {"task_options.n_classes": None})


def test_a_preset_of_the_same_task_is_preferred() -> None:
    changed = override(load_preset("universal"), {"task": "spirals"})
    assert nearest_preset(changed)[0] == "spirals"

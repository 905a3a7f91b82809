"""The command that trains again gives the same settings when the command line reads it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from esper.cli.main import main
from esper.config.run import CheckpointConfig, RunConfig, TelemetryConfig
from esper.config.toml import load_preset, override, preset_names, read_toml
from esper.invocation import training_command
from tests.training.tiny import tiny_config


def reads_as(command: str, capsys: pytest.CaptureFixture[str]) -> RunConfig:
    words = shlex.split(command)
    assert words[:2] == ["esper", "train"]
    assert main([*words[1:], "--print-config"]) == 0
    return read_toml(capsys.readouterr().out, source="what was printed")


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_named_and_nothing_else(name: str) -> None:
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
def test_changed_settings_come_back_as_they_were(
    changes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for start in (load_preset("quick"), tiny_config()):
        config = override(start, changes)
        found = reads_as(training_command(config), capsys)
        # How often a run is saved and what is recorded of it decides nothing.
        same = {"checkpoints": CheckpointConfig(), "telemetry": TelemetryConfig()}
        assert replace(found, **same) == replace(config, **same)

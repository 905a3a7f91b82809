"""Sample names, records and databases for tests of views."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from esper.config.growth import Budget
from esper.config.learning import PPOConfig
from esper.config.run import RunConfig, TelemetryConfig
from esper.config.toml import write_toml
from esper.telemetry import RunTelemetry, TelemetryWriter, open_run
from esper.telemetry.records import EvaluationRecord, Record, RunRecord
from tests.telemetry.samples import FILE, example

SLOTS = ["blocks.0", "blocks.1"]
BLUEPRINTS = ["noop", "norm", "widen"]
OPS = ["wait", "germinate", "set_alpha_target", "prune", "fossilize", "advance", "finish"]
WAIT, GERMINATE, FOSSILIZE, FINISH = 0, 1, 4, 6
CHOICES = {
    "slot": SLOTS,
    "blueprint": BLUEPRINTS,
    "style": ["add", "gate"],
    "tempo": ["3 epochs"],
    "alpha_target": ["0.5", "1.0"],
    "alpha_speed": ["at once"],
    "alpha_curve": ["linear", "cosine"],
    "op": OPS,
}
HEADS = list(CHOICES)
READS = {
    "wait": ["op"],
    "germinate": ["slot", "blueprint", "style", "op"],
    "fossilize": ["slot", "op"],
    "finish": ["op"],
}
HOST = [
    {"name": "stem", "kind": "Linear", "parameters": 24, "slot": None},
    {"name": "blocks.0", "kind": "slot", "parameters": 0, "slot": "blocks.0"},
]
N_EPOCHS = 6


@cache
def config_text(*, record_steps: bool = True, target_kl: float | None = 0.02) -> str:
    """Return the settings of a run of nine rounds on three environments."""
    config = RunConfig(
        task="spirals",
        task_options={"n_classes": 3},
        rounds=9,
        envs=3,
        budget=Budget(n_epochs=N_EPOCHS),
        ppo=PPOConfig(gamma=1.0, n_minibatches=1, target_kl=target_kl),
        telemetry=TelemetryConfig(record_steps=record_steps),
    )
    return write_toml(config)


def run_record(*, record_steps: bool = True, **changes: Any) -> RunRecord:
    """Return the record of a run with these settings."""
    values: dict[str, Any] = {
        "name": "made-up",
        "task": "spirals",
        "config": config_text(record_steps=record_steps),
        "slots": json.dumps(SLOTS),
        "blueprints": json.dumps(BLUEPRINTS),
        "heads": json.dumps(HEADS),
        "ops": json.dumps(OPS),
        "created_at": "2030-01-02T03:04:05+00:00",
        "choices": json.dumps(CHOICES),
        "reads": json.dumps(READS),
        "host": json.dumps(HOST),
    }
    return example(RunRecord, **(values | changes))


def trial(round_: int, arm: str, **changes: Any) -> EvaluationRecord:
    """Return an evaluation during training."""
    values: dict[str, Any] = {"purpose": "tuning", "split": "validation", "is_best": False}
    values |= {"fixed_reward": 0.6 if arm == "learned" else None}
    return example(EvaluationRecord, round=round_, arm=arm, **(values | changes))


def write(folder: Path, records: list[Record]) -> Path:
    """Write records and a finished session to a folder, and return the folder."""
    folder.mkdir(exist_ok=True)
    with TelemetryWriter(folder / FILE) as writer:
        writer.start_session(first_round=1, threads=1, torch_version="2")
        writer.write_many(records)
        writer.end_session("done")
    return folder


@contextmanager
def stored(folder: Path, records: list[Record]) -> Iterator[RunTelemetry]:
    """Yield the telemetry of records written to a folder."""
    with open_run(write(folder, records)) as telemetry:
        yield telemetry

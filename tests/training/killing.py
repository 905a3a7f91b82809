"""Runs that are killed and resumed, and one that is not; a script that test_kills runs.

    killing.py PLAN FOLDER

Each killed process is a fork of this one, which has already imported torch and computes nothing
itself. Prints the outcomes of the plan's runs as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # imported once here instead of in every process

from esper.config.run import RunConfig
from esper.populations import Population
from esper.simic.agent import PPOAgent
from esper.storage.checkpoint_folder import CheckpointFolder, CheckpointWarning
from esper.tamiyo import FixedSchedule, LearnedController
from esper.telemetry import TelemetryWriter, open_run
from esper.telemetry.records import Record
from esper.training.runs import resume, train
from esper.training.state import RunParts
from esper.training.trainer import Trainer
from tests.training.tiny import Seen, liveliness, run_digests, tiny_config

Steps = dict[str, int]
"""The step of the reference run at which each stage is first entered."""

Arm = Callable[[Steps], "list[Seen]"]
"""Makes this process kill itself at some moment; returns the watchers that the run needs."""

DISK_CALLS = ("mkdir", "open", "write", "fsync", "rename", "replace", "unlink", "rmdir")


@dataclass
class Plan:
    """A run, and lists of consecutive moments at which copies of it are killed."""

    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    kills: dict[str, list[Arm]] = field(default_factory=dict[str, list[Arm]])


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wrap(owner: Any, name: str, before: Callable[..., None]) -> None:
    """Call something before every call of a function."""
    inner = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        return inner(*args, **kwargs)

    setattr(owner, name, wrapped)


def at_call(owner: Any, name: str, number: int = 1) -> Arm:
    """Die before a call of a function."""

    def arm(_: Steps) -> list[Seen]:
        left = number

        def count(*_: Any, **__: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                die()

        wrap(owner, name, count)
        return []

    return arm


def at_record(table: str, number: int = 1, **values: object) -> Arm:
    """Die when a record with these values is made."""

    def arm(_: Steps) -> list[Seen]:
        left = number

        def look(record: Record) -> None:
            nonlocal left
            if record.table == table and all(getattr(record, n) == v for n, v in values.items()):
                left -= 1
                if left == 0:
                    die()

        return [Seen(look)]

    return arm


def before_stage(stage: str, offset: int = 0) -> Arm:
    """Die before the step that enters a stage, or some steps later."""
    return lambda steps: at_step(steps[stage] + offset)(steps)


def at_step(number: int) -> Arm:
    """Die before a step."""

    def arm(_: Steps) -> list[Seen]:
        def look(trainer: Trainer) -> None:
            if trainer.parts.progress.step + 1 == number:
                die()

        wrap(Trainer, "_step", look)
        return []

    return arm


def in_stage(stage: str) -> Arm:
    """Die in the step that enters a stage, after the actions and before the epoch."""

    def arm(steps: Steps) -> list[Seen]:
        step = 0

        def note(trainer: Trainer) -> None:
            nonlocal step
            step = trainer.parts.progress.step + 1

        def look(_: Population) -> None:
            if step == steps[stage]:
                die()

        wrap(Trainer, "_step", note)
        wrap(Population, "train_epoch", look)
        return []

    return arm


def in_save(number: int, call: int) -> Arm:
    """Die at a system call of a save."""

    def arm(_: Steps) -> list[Seen]:
        left, calls = number, 0

        def count_save(*_: Any, **__: Any) -> None:
            nonlocal left, calls
            left, calls = left - 1, 0

        def count_call(*_: Any, **__: Any) -> None:
            nonlocal calls
            calls += 1
            if left == 0 and calls == call:
                die()

        wrap(CheckpointFolder, "save", count_save)
        for name in DISK_CALLS:
            wrap(os, name, count_call)
        return []

    return arm


def in_summary() -> Arm:
    """Die between writing the summary and renaming it."""

    def arm(_: Steps) -> list[Seen]:
        def look(_source: Any, target: Any, **__: Any) -> None:
            if Path(target).name == "summary.json":
                die()

        wrap(os, "replace", look)
        return []

    return arm


def run_forked(job: Callable[[], None]) -> int:
    """Run a job in another process; return 0, or the signal that killed it."""
    child = os.fork()
    if child == 0:
        try:
            job()
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status)
    assert os.WEXITSTATUS(status) == 0, "a run failed"
    return 0


def work(folder: Path, config: RunConfig, arm: Arm | None, steps: Steps) -> None:
    """Start or resume a run, and die at a moment of it."""
    watchers = [] if arm is None else arm(steps)
    with liveliness():
        if (folder / "config.toml").exists():
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "the run had not saved", CheckpointWarning)
                resume(folder, watchers=watchers)
        else:
            train(config, run_dir=folder, watchers=watchers)


def first_steps(folder: Path) -> Steps:
    steps: Steps = {}
    with open_run(folder) as telemetry:
        for event in telemetry.rows("seed_events"):
            steps.setdefault(event.to_stage, event.step)
    return steps


def carry_out(plan: Plan, folder: Path) -> dict[str, Any]:
    """Return the outcomes of an uninterrupted run and of each killed one."""
    config = tiny_config(**plan.settings)
    # A run records the name of its folder, so all folders have the same name.
    reference = folder / "reference" / "run"
    assert run_forked(lambda: work(reference, config, None, {})) == 0
    steps = first_steps(reference)
    found: dict[str, Any] = {"stages": steps, "reference": run_digests(reference), "killed": {}}
    for name, arms in plan.kills.items():
        place = folder / name / "run"
        ends = [run_forked(partial(work, place, config, arm, steps)) for arm in (*arms, None)]
        with open_run(place) as telemetry:
            sessions = [session.outcome for session in telemetry.sessions()]
        found["killed"][name] = {
            "ends": ends,
            "sessions": sessions,
            "digests": run_digests(place),
        }
    return found


MANY = {
    **{
        f"{stage}: {when}": [arm]
        for stage in ("germinated", "blending", "fossilized", "embargoed")
        for when, arm in {
            "before": before_stage(stage),
            "in it": in_stage(stage),
            "recorded": at_record("seed_events", to_stage=stage),
            "after": before_stage(stage, 1),
        }.items()
    },
    "mid-rollout": [at_step(9)],
    "in the update": [at_call(PPOAgent, "_clip_gradient", 3)],
    "update recorded": [at_record("updates", round=2)],
    "round recorded": [at_record("rounds", round=2)],
    "in the fixed schedule's trial": [at_call(FixedSchedule, "act", 3)],
    "in an evaluation": [at_call(LearnedController, "act", 5)],
    "evaluation recorded": [at_record("evaluations", round=2)],
    "saving, first call": [in_save(3, 1)],
    "saving, half way": [in_save(3, 8)],
    "saving, near the end": [in_save(3, 16)],
    "saving the best": [at_call(CheckpointFolder, "_remove_old", 3)],
    "in the comparison": [at_record("evaluations", purpose="final", arm="no-growth")],
    "in the summary": [in_summary()],
    "after the summary": [at_call(TelemetryWriter, "end_session")],
    "before the first checkpoint": [in_save(1, 3)],
    "before anything": [at_call(TelemetryWriter, "start_session")],
    "again and again": [
        at_step(5),
        at_call(TelemetryWriter, "rewind"),
        at_call(RunParts, "load"),
        in_save(1, 10),
        at_record("updates", round=2),
        at_record("evaluations", round=2),
    ],
}

SOME = (
    "germinated: in it",
    "blending: recorded",
    "embargoed: after",
    "mid-rollout",
    "in the update",
    "in an evaluation",
    "saving, half way",
    "again and again",
)

PLANS: dict[str, Plan] = {
    "fast": Plan(
        {"checkpoints__save_freq": 5, "rounds": 2, "task_options": {"batches_per_epoch": 1}},
        {
            "four times": [
                in_stage("blending"),
                in_save(2, 8),
                at_call(RunParts, "load"),
                at_call(LearnedController, "act", 5),
            ],
        },
    ),
    "every step": Plan({"rounds": 4}, MANY),
    "every seventh step": Plan({"rounds": 4, "checkpoints__save_freq": 7}, MANY),
    "images": Plan(
        {
            "task": "digits",
            "task_options": {"host": "cnn", "batches_per_epoch": 2},
            "checkpoints__save_freq": 4,
            "evaluation__deterministic": True,
            "policy__normalize_observations": True,
            "ppo__n_minibatches": 2,
        },
        {name: MANY[name] for name in SOME},
    ),
}


if __name__ == "__main__":
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    print(json.dumps(carry_out(PLANS[sys.argv[1]], Path(sys.argv[2]))))

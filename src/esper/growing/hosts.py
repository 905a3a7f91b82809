"""Growing one host with a controller, and getting it back as a plain module."""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import nn

from esper.environment import GrowthVectorEnv
from esper.errors import RunError, StorageError
from esper.growing.timeline import OnStep, TimelineStep, live
from esper.growth.export import export
from esper.invocation import program
from esper.lifecycle.factored_actions import HEAD_NAMES
from esper.storage.files import write_whole
from esper.storage.run_folder import shell_word
from esper.tamiyo import Controller, Replay
from esper.tasks import Task, make_task
from esper.training.lookup import AnyController, find_controller
from esper.training.run import Run
from esper.training.setup import make_run_task, make_trial_envs
from esper.training.trials import TRIAL_SEED, trial_parts


@dataclass(frozen=True, kw_only=True, eq=False)
class GrownHost:
    """A host at the end of its life as one, and how it got there."""

    model: nn.Module
    """A plain module: nothing of Esper is in it."""
    timeline: tuple[TimelineStep, ...]
    score: float
    """On the test split, which nobody had seen."""
    ep_rew: float
    """The score minus what it cost."""
    flops: float
    host_parameters: int
    seed_parameters: int
    """Parameters of the seeds that were committed."""
    sample: Any
    """A few inputs, as the model takes them."""


def grow_host(
    task: str | Task,
    controller: AnyController = "heuristic",
    *,
    seed: int = 0,
    on_step: OnStep = lambda _: None,
    **task_options: Any,
) -> GrownHost:
    """Grow one host of a task and return it as a plain module.

    Args:
        task: A task, or the name of one.
        controller: ``"shipped"``, the name of a simple controller, the folder of a saved one or of
            a run, a run, or a controller.
        seed: Decides the host: its data where the task draws them, and its weights.
        on_step: Told of every epoch as it happens.
        task_options: Options of the task, if it is named.
    """
    made = make_task(task, **task_options) if isinstance(task, str) else task
    envs = GrowthVectorEnv(made, 1, purpose="evaluation", final_split="test", autoreset=False)
    return _grow(envs, find_controller(controller, envs), seed, on_step)


def grow_best_host(run: Run) -> GrownHost:
    """Grow the best host of a run's comparison again, by the same actions."""
    summary = run.summary
    if summary is None or summary.best_host is None:
        raise RunError(
            f"run {run.name!r} is not done ({run.state}); its best host is known at its end. "
            f"Go on with it: {program()} resume {shell_word(run.path)}"
        )
    best = summary.best_host
    parts = trial_parts(make_run_task(run.config), run.config.evaluation.n_final_episodes)
    task = next(part.task for part in reversed(parts) if part.first <= best.number)
    envs = make_trial_envs(run.config, task, 1, purpose="evaluation", final_split="test")
    actions = np.array(best.actions, np.int64).reshape(1, -1, len(HEAD_NAMES))
    return _grow(envs, Replay(actions), TRIAL_SEED + best.number, lambda _: None)


def _grow(envs: GrowthVectorEnv, controller: Controller, seed: int, on_step: OnStep) -> GrownHost:
    """Steer one host through its episode and take it out of its population."""
    life = live(envs, controller, seed, on_step)
    return GrownHost(
        model=export(envs.growth.population.model(0), committed_only=True),
        timeline=life.timeline,
        score=float(life.results.scores[0]),
        ep_rew=float(life.results.returns[0]),
        flops=float(life.results.flops[0]),
        host_parameters=int(life.results.host_parameters[0]),
        seed_parameters=int(life.results.seed_parameters[0]),
        sample=envs.growth.draws[0].data.test.inputs[:4].clone(),
    )


PROGRAM_FILE = "model.pt2"
WEIGHTS_FILE = "model.safetensors"
STORY_FILE = "growth.json"


def save_grown(grown: GrownHost, folder: str | os.PathLike[str]) -> Path:
    """Save a grown host, ready to be used for any number of samples at once; return the folder.

    Raises:
        StorageError: If it cannot be written.
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
        _save_program(grown, place / PROGRAM_FILE)
        weights = {name: t.detach().contiguous() for name, t in grown.model.state_dict().items()}
        safetensors.torch.save_file(weights, place / WEIGHTS_FILE)
        write_whole(place / STORY_FILE, json.dumps(_story(grown), indent=1) + "\n")
    except OSError as error:
        raise StorageError(
            f"{place} cannot be written: {error.strerror or error}; choose another folder."
        ) from error
    return place


def _save_program(grown: GrownHost, path: Path) -> None:
    batch = torch.export.Dim("batch", min=1)
    model = grown.model.eval()
    with warnings.catch_warnings():  # what PyTorch says of its own parts is not for users of ours
        warnings.simplefilter("ignore")
        program = torch.export.export(
            model, (grown.sample,), dynamic_shapes=({0: batch},), strict=False
        )
        torch.export.save(program, path)


def _story(grown: GrownHost) -> dict[str, Any]:
    return {
        "score": grown.score,
        "return": grown.ep_rew,
        "flops": grown.flops,
        "host_parameters": grown.host_parameters,
        "seed_parameters": grown.seed_parameters,
        "timeline": [asdict(step) for step in grown.timeline],
    }

"""Growing a model of the user's own by one call."""

from __future__ import annotations

import copy
import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import nn

from esper.config.growth import Budget, PopulationConfig
from esper.environment import GrowthVectorEnv
from esper.errors import ConfigError, RunError, StorageError, did_you_mean
from esper.growing.data import (
    batch_size_of,
    copy_modes,
    is_above,
    measure,
    read_samples,
    require_fit,
)
from esper.growing.slots import copy_model, copy_with_slots
from esper.growing.timeline import Life, OnStep, TimelineStep, live
from esper.growth.export import export
from esper.growth.modules import count_parameters
from esper.invocation import program
from esper.lifecycle.factored_actions import HEAD_NAMES
from esper.lifecycle.stages import Stage
from esper.storage.files import write_atomic
from esper.storage.run_folder import shell_word
from esper.tamiyo import Controller, Replay
from esper.tasks import ACCURACY, Metric, Samples, Task, TaskData, make_task
from esper.tasks.data import check_samples
from esper.training.lookup import AnyController, find_controller, find_saved
from esper.training.run import Run
from esper.training.setup import make_run_task, make_trial_envs
from esper.training.trials import TRIAL_SEED, trial_parts


@dataclass(frozen=True, kw_only=True)
class GrowthSummary:
    """What growing a model came to. Printing it gives sentences."""

    metric: str
    """What models are judged by."""
    before: float
    """The metric of the given model on all of the validation data."""
    after: float
    """The same of the model that is returned."""
    grown: float
    """The same of the trained model with what was committed, whether it is returned or not."""
    parameters_before: int
    parameters_after: int
    """Of the model that is returned."""
    flops: float
    """Computing spent, as a share of training the given model for the whole budget."""
    n_epochs: int
    """Epochs that were trained."""
    budget_epochs: int
    """Epochs that the budget allows."""
    seeds: tuple[tuple[str, str], ...]
    """The slot and the blueprint of each seed that the returned model has."""
    was_kept: bool
    """Whether the trained model is better on validation and is returned; if not, the given model
    is."""
    controller: str
    """Who decided."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """What there is to say, one thing in each sentence."""
        return (self._result(), self._growth(), self._cost())

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def _result(self) -> str:
        if not self.was_kept:
            return (
                f"The model is returned as it was given: {self.metric} {self.before:.4g} on "
                f"validation; trained and grown it had {self.grown:.4g}, which is no better."
            )
        return (
            f"{self.metric.capitalize()} on validation went from {self.before:.4g} to "
            f"{self.after:.4g}."
        )

    def _growth(self) -> str:
        if not self.was_kept:
            return f"It has {self.parameters_after:,} parameters, as before."
        if not self.seeds:
            return f"It was trained, and nothing was grown: {self.parameters_after:,} parameters."
        listed = ", ".join(f"{blueprint} in {slot}" for slot, blueprint in self.seeds)
        added = self.parameters_after - self.parameters_before
        return (
            f"Grown: {listed}; {self.parameters_before:,} parameters became "
            f"{self.parameters_after:,} ({added:+,})."
        )

    def _cost(self) -> str:
        return (
            f"The controller {self.controller} used {self.n_epochs} of {self.budget_epochs} epochs "
            f"and {self.flops:.0%} of the FLOPs of training the given model for all of them."
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Grown:
    """A model after its growth, and how it got there."""

    model: nn.Module
    """A plain module: nothing of Esper is in it."""
    timeline: tuple[TimelineStep, ...]
    """What was decided in each epoch; scores are those of the half that the controller sees."""
    summary: GrowthSummary
    """What it came to; printing it gives sentences."""


def grow(
    model: nn.Module,
    train_data: Any,
    val_data: Any,
    budget: Budget | int | None = None,
    *,
    controller: AnyController = "shipped",
    at: Sequence[str] | None = None,
    metric: Metric = ACCURACY,
    seed: int = 0,
    on_step: OnStep = lambda _: None,
    **training: Any,
) -> Grown:
    """Train a model and let a controller grow it while it trains; return it as a plain module.

    A copy is trained and grown; the model, its gradients and its modes stay as they are. The
    controller sees one half of the validation data after each epoch. When its episode is over,
    seeds that it has not committed are removed, and what is left is judged on all of the validation
    data, in evaluation mode, as the given model was before. The better of these two is returned,
    and the given model (a copy of it) if they are equal: what is returned is never worse on
    validation than what was given. No other epoch is considered. The validation data choose, so an
    honest figure of the result needs test data that were not given here.

    Torch's default generator is left as it was.

    Args:
        model: Any module that maps inputs to logits ``[n, classes]`` (or ``[n, T, classes]``). If
            it has slots these are used, and must be empty.
        train_data: What to learn from: a pair (inputs, targets) of tensors or arrays, a Dataset or
            a DataLoader. It is read into memory once; inputs get the model's dtype and device.
        val_data: What to decide by, in the same forms; at least 4 samples.
        budget: How many epochs there are and what computing costs, or only the epochs; None for
            what the controller was trained with.
        controller: Who decides: ``"shipped"``, the folder of a saved controller or of a run, a run,
            the name of a simple controller, or a controller.
        at: Names of the blocks that get slots; None for up to 12 that :func:`esper.find_slots`
            finds (see :func:`~esper.growing.slots.choose_slots`).
        metric: What the model is trained for and judged by; accuracy if not given.
        seed: Decides the order of batches, the weights of seeds and what the controller draws.
        on_step: Told of every epoch as it happens.
        training: Settings of :class:`~esper.PopulationConfig`: ``learning_rate`` (1e-3),
            ``batch_size`` (the loader's, or 32), ``optimizer`` ("adamw"), ``weight_decay``, ...

    Raises:
        BadDataError: If the data cannot be used, or do not fit the model.
        SlotError: If the model has no place to grow.
        ConfigError: If a setting cannot be used.
        ControllerError: If there is no such controller.
    """
    given = _copy(model)
    train, validation = _read(given, train_data, val_data, metric)
    saved = find_saved(controller)
    settings = _settings(training, batch_size_of(train_data))
    slotted = copy_with_slots(given, at, train.inputs[:2])
    given = export(given)  # before anything is spent: what cannot be exported is not grown
    task = Task(
        name="own-model",
        make_host=lambda _: copy.deepcopy(slotted),
        # Nothing reads the test split here, and a task must have one.
        data=TaskData(train=train, validation=validation, test=validation),
        metric=metric,
        budget=_find_budget(budget, Budget() if saved is None else saved.budget),
        training=settings,
        growth=None if saved is None else saved.growth,
        needs_all_classes=False,
    )
    envs = GrowthVectorEnv(task, 1, purpose="evaluation", autoreset=False)
    decider = find_controller(controller if saved is None else saved, envs)
    life = live(envs, decider, seed, on_step)
    return _choose(given, envs, life, validation, decider.name)


def _copy(model: nn.Module) -> nn.Module:
    """Return a copy of a model; refuse one that cannot learn."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model is a {type(model).__name__}; it must be a torch.nn.Module.")
    twin = copy_model(model)
    if not any(parameter.requires_grad for parameter in twin.parameters()):
        raise ConfigError(
            f"no parameter of this {type(twin).__name__} learns; at least one must have "
            "requires_grad."
        )
    return twin


def _read(
    model: nn.Module, train_data: Any, val_data: Any, metric: Metric
) -> tuple[Samples, Samples]:
    """Return the samples to learn from and to decide by; refuse those that do not fit the model."""
    if not isinstance(metric, Metric):
        raise ConfigError(f"metric is a {type(metric).__name__}; it must be an esper.Metric.")
    like = next((p for p in model.parameters() if p.is_floating_point()), None)
    train = read_samples(train_data, "train_data", like=like)
    validation = read_samples(val_data, "val_data", like=like)
    for name, samples in (("train_data", train), ("val_data", validation)):
        check_samples(samples, like=train, what=name)
        require_fit(model, samples, name, metric)
    return train, validation


def _choose(
    given: nn.Module, envs: GrowthVectorEnv, life: Life, validation: Samples, controller: str
) -> Grown:
    """Return the grown model if it is better on validation than the given one, else that."""
    metric = envs.task.metric
    grown = export(envs.growth.population.model(0), committed_only=True)
    before, after = (measure(one, validation, metric) for one in (given, grown))
    is_better = is_above(metric.score(after), metric.score(before))
    result = grown if is_better else given
    copy_modes(given, grown)
    for parameter in grown.parameters():
        parameter.grad = None
    summary = GrowthSummary(
        metric=metric.name,
        before=before,
        after=after if is_better else before,
        grown=after,
        parameters_before=count_parameters(given),
        parameters_after=count_parameters(result),
        flops=float(life.results.flops[0]),
        n_epochs=int(life.results.n_epochs[0]),
        budget_epochs=envs.task.budget.n_epochs,
        seeds=_committed(envs) if is_better else (),
        was_kept=is_better,
        controller=controller,
    )
    return Grown(model=result, timeline=life.timeline, summary=summary)


def _committed(envs: GrowthVectorEnv) -> tuple[tuple[str, str], ...]:
    """Return the slot and the blueprint of each seed that is part of the host."""
    lives = envs.growth.population.lives(0)
    return tuple(
        (slot, life.blueprint) for slot, life in lives.items() if life.stage == Stage.FOSSILIZED
    )


def _find_budget(budget: Any, usual: Budget) -> Budget:
    if budget is None:
        return usual
    if isinstance(budget, Budget):
        return budget
    if isinstance(budget, int) and not isinstance(budget, bool):
        return replace(usual, n_epochs=budget)
    raise ConfigError(
        f"budget is {budget!r}; it must be an esper.Budget, a number of epochs, or None."
    )


def _settings(training: dict[str, Any], batch_size: int | None) -> PopulationConfig:
    """Return how the model is trained; refuse settings that there are not."""
    known = [field.name for field in fields(PopulationConfig)]
    for name in training:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"there is no setting {name!r}; there are {', '.join(known)}.{hint}")
    own: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
    return PopulationConfig(**own | training)


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
        write_atomic(place / STORY_FILE, json.dumps(_story(grown), indent=1) + "\n")
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

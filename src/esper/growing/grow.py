"""`esper.grow`: growing one model, the user's own or the host of a task."""

from __future__ import annotations

import copy
import json
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from esper.config.growth import Budget, GrowthConfig, PopulationConfig
from esper.environment import EpisodeResults, GrowthVectorEnv
from esper.errors import ConfigError, RunError, StorageError, did_you_mean, type_of
from esper.growing.data import (
    batch_size_of,
    copy_modes,
    is_above,
    measure,
    read_samples,
    require_finite,
    require_fit,
)
from esper.growing.slots import copy_model, copy_with_slots
from esper.growing.timeline import OnStep, TimelineStep, run_episode
from esper.growth.export import export
from esper.growth.modules import count_parameters
from esper.growth.placement import require_growable
from esper.lifecycle.factored_actions import HEAD_NAMES
from esper.storage.files import replacing, write_atomic
from esper.tamiyo import Controller, Replay
from esper.tasks import ACCURACY, Metric, Samples, Task, TaskData, make_task
from esper.tasks.data import check_samples
from esper.training.lookup import (
    PROGRESSIVE,
    AnyController,
    find_controller,
    find_saved,
    require_progressive,
)
from esper.training.run import Run
from esper.training.setup import make_run_task, make_trial_envs
from esper.training.trials import TRIAL_SEED, trial_parts

MOST_PERCENT = 10.0
"""Costs from this multiple on are shown as a multiple."""

PROGRESSIVE_GROWTH = GrowthConfig(commits_at_once=True, embargo_epochs=1)
"""Growth to a target size: new seeds are part of the model at once."""


@dataclass(frozen=True, kw_only=True)
class GrowthSummary:
    """The outcome of growing a model. Printing it gives sentences."""

    metric: str
    """The name of the metric."""
    split: str
    """The data that the metric is measured on: ``validation``, or ``test`` for a task."""
    before: float
    """The metric of the initial model."""
    after: float
    """The metric of the returned model."""
    grown: float
    """The metric of the model after its best validated epoch, returned or not."""
    parameters_before: int
    parameters_after: int
    """Parameters of the returned model."""
    flops: float
    """FLOPs spent, relative to training the initial model for the whole budget."""
    n_epochs: int
    """Epochs trained."""
    best_epoch: int
    """The epoch that counts, the first with the best validation score."""
    budget_epochs: int
    """Epochs of the budget."""
    seeds: tuple[tuple[str, str], ...]
    """The slot and the blueprint of each seed in the returned model."""
    was_kept: bool
    """Whether the trained model is returned; if not, it is no better and the given one is."""
    controller: str
    """The name of the controller."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """The result, the growth and the cost, in one sentence each."""
        return (self._result(), self._growth(), self._cost())

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def _result(self) -> str:
        if not self.was_kept:
            return (
                f"The given model is returned unchanged: its {self.split} {self.metric} is "
                f"{self.before:.4g}, and no epoch of training and growing it gave a better one."
            )
        return (
            f"{self.split.capitalize()} {self.metric} went from {self.before:.4g} to "
            f"{self.after:.4g}."
        )

    def _growth(self) -> str:
        if not self.was_kept:
            return f"It has {self.parameters_after:,} parameters, as before."
        if not self.seeds:
            return f"Nothing was grown: the model has {self.parameters_after:,} parameters."
        counts = Counter(f"{blueprint} in {slot}" for slot, blueprint in self.seeds)
        listed = ", ".join(f"{n} x {seed}" if n > 1 else seed for seed, n in counts.items())
        added = self.parameters_after - self.parameters_before
        return (
            f"Grown: {listed}; {self.parameters_before:,} parameters became "
            f"{self.parameters_after:,} ({added:+,})."
        )

    def _cost(self) -> str:
        spent = f"{self.flops:.0%} of" if self.flops < MOST_PERCENT else f"{self.flops:,.0f} times"
        return (
            f"Controller {self.controller} used {self.n_epochs} of {self.budget_epochs} epochs, of "
            f"which epoch {self.best_epoch} was the best and counts, and {spent} the FLOPs of "
            "training the initial model for all of them."
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Grown:
    """A grown model and how it got there."""

    model: nn.Module
    """A plain module without anything of Esper."""
    timeline: tuple[TimelineStep, ...]
    """Each epoch: the decision and its effect."""
    summary: GrowthSummary
    """The outcome; printing it gives sentences."""
    results: EpisodeResults
    """The score, the return and the costs of the episode, of one host."""
    sample: Tensor
    """A few inputs of the model."""

    def __repr__(self) -> str:
        return f"Grown({type(self.model).__name__}, {len(self.timeline)} epochs)\n{self.summary}"

    def to_json(self) -> dict[str, Any]:
        """Return the score, the return, the costs and the timeline as JSON values."""
        return {
            "score": float(self.results.scores[0]),
            "return": float(self.results.returns[0]),
            "flops": float(self.results.flops[0]),
            "host_parameters": int(self.results.host_parameters[0]),
            "seed_parameters": int(self.results.seed_parameters[0]),
            "timeline": [asdict(step) for step in self.timeline],
        }


def grow(
    model: nn.Module | Task | str,
    train_data: Any = None,
    val_data: Any = None,
    budget: Budget | int | None = None,
    *,
    controller: AnyController = "shipped",
    target: Mapping[str, int] | None = None,
    fractions: Sequence[float] | None = None,
    at: Sequence[str] | None = None,
    metric: Metric | None = None,
    seed: int = 0,
    on_step: OnStep = lambda _: None,
    **options: Any,
) -> Grown:
    """Train a model while a controller grows it, and return a plain module.

    A copy is trained and grown; the given model, its gradients and its modes do not change. The
    controller sees its score on one half of the validation data after each epoch. The epoch with
    the best score counts: seeds that were blended in by then are kept if the score with them is at
    least as good as without them. The result is compared with the given model on all of the
    validation data, in evaluation mode. The better one is returned, or a copy of the given model
    if they are equal: the result is never worse on validation than the given model.
    Because the validation data decide, an unbiased estimate needs separate test data.

    Given a task instead of a model, one host of the task is grown on the task's data, and measured
    on its test split.

    Torch's default generator is left unchanged.

    Args:
        model: A module that maps inputs to logits ``[n, classes]`` or ``[n, T, classes]``; its
            slots, if it has any, must be empty. Or a task, or the name of one.
        train_data: The training data: a pair (inputs, targets) of tensors or arrays, a Dataset or
            a DataLoader. It is read into memory once; inputs get the model's dtype and device.
        val_data: The validation data in the same forms; at least 4 samples.
        budget: The number of epochs, or an :class:`esper.Budget` that also has prices; None for
            the budget that the controller was trained with, or that of the task.
        controller: ``"shipped"``, the folder of a saved controller or of a run, a run, the name of
            a simple controller, or a controller.
        target: With ``controller="progressive"``, the size to grow to: ``{"depth": 12}`` for 12
            residual blocks, or ``{"parameters": 100_000}``. The best epoch at that size counts.
        fractions: The fractions of the budget at which it grows.
        at: Names of the blocks and pairs of layers that get slots; None for up to 12 that
            :func:`esper.find_slots` finds (see :func:`~esper.growing.slots.choose_slots`).
        metric: The metric; accuracy by default.
        seed: Seeds the order of batches, the weights of seeds and the controller; for a task also
            the host and its data.
        on_step: Called after each epoch.
        options: Settings of :class:`~esper.PopulationConfig`: ``learning_rate`` (1e-3),
            ``batch_size`` (the loader's, or 32), ``optimizer`` ("adamw"), ``weight_decay``, ...
            For the name of a task, its options.

    Raises:
        BadDataError: If the data are invalid or do not fit the model.
        NonFiniteError: If the model's weights or outputs are NaN or infinite.
        SlotError: If the model has no place for a slot.
        ConfigError: If a setting is invalid.
        ControllerError: If there is no such controller.
    """
    if not callable(on_step):
        raise ConfigError(f"on_step is {on_step!r}; it must be a function of one epoch.")
    require_progressive(controller, target=target, fractions=fractions)
    if isinstance(model, (Task, str)):
        _require_none(train_data=train_data, val_data=val_data, at=at, metric=metric)
        task = _task_of(model, options)
        growth = PROGRESSIVE_GROWTH if controller == PROGRESSIVE else task.growth
        task = replace(task, budget=_find_budget(budget, task.budget), growth=growth)
        envs = GrowthVectorEnv(task, 1, purpose="evaluation", final_split="test", autoreset=False)
        decider = find_controller(controller, envs, target=target, fractions=fractions)
        return _grow_host(envs, decider, seed, on_step, largest_counts=target is not None)
    given = _copy(model)
    metric = ACCURACY if metric is None else metric
    train, validation = _read(given, train_data, val_data, metric)
    saved = find_saved(controller)
    settings = _settings(options, batch_size_of(train_data))
    wants_depth = isinstance(target, Mapping) and "depth" in target
    slotted = copy_with_slots(given, at, train.inputs[:2], for_depth=wants_depth)
    given = export(given)  # a model that cannot be exported fails here, before training
    task = Task(
        name="own-model",
        make_host=lambda _: copy.deepcopy(slotted),
        # A task must have a test split, but nothing here reads it.
        data=TaskData(train=train, validation=validation, test=validation),
        metric=metric,
        budget=_find_budget(budget, Budget() if saved is None else saved.budget),
        training=settings,
        growth=PROGRESSIVE_GROWTH if controller == PROGRESSIVE else saved and saved.growth,
        needs_all_classes=False,
    )
    envs = GrowthVectorEnv(task, 1, purpose="evaluation", autoreset=False)
    decider = find_controller(
        controller if saved is None else saved, envs, target=target, fractions=fractions
    )
    timeline, results = run_episode(envs, decider, seed, on_step, largest_counts=target is not None)
    grown = _export_host(envs)
    copy_modes(given, grown)
    before, after = (measure(one, validation, metric) for one in (given, grown))
    is_better = is_above(metric.score(after), metric.score(before))
    kept = grown if is_better else given
    summary = _summarize(envs, results, decider, before=before, after=after, given=given, kept=kept)
    return Grown(
        model=kept,
        timeline=timeline,
        summary=replace(summary, split="validation"),
        results=results,
        sample=validation.inputs[:4].clone(),
    )


def grow_best_host(run: Run, *, allow_code: bool = False) -> Grown:
    """Grow the best host of a run's final comparison again, with the same actions.

    Args:
        run: The run.
        allow_code: Whether to run a task that the settings name by ``module:function``.

    Raises:
        RunError: If the run is not done.
        TaskError: If the settings name code and that is not allowed.
    """
    summary = run.summary
    if summary is None or summary.best_host is None:
        raise RunError(
            f"run {run.name!r} is not done ({run.state}), so its best host is not known; resume "
            f"it: {run.resume_command}"
        )
    run.require_trusted_task(allow_code=allow_code)
    best = summary.best_host
    parts = trial_parts(make_run_task(run.config), run.config.evaluation.n_final_episodes)
    task = next(part.task for part in reversed(parts) if part.first <= best.number)
    envs = make_trial_envs(run.config, task, 1, purpose="evaluation", final_split="test")
    actions = np.array(best.actions, np.int64).reshape(1, -1, len(HEAD_NAMES))
    return _grow_host(envs, Replay(actions), TRIAL_SEED + best.number, lambda _: None)


def _task_of(task: Task | str, options: dict[str, Any]) -> Task:
    """Return a task by its name, or as it is given."""
    if isinstance(task, str):
        return make_task(task, **options)
    if options:
        raise ConfigError(
            f"the options {', '.join(options)} are given with a Task; give them with the name of a "
            "task, or change the Task."
        )
    return task


def _grow_host(
    envs: GrowthVectorEnv,
    controller: Controller,
    seed: int,
    on_step: OnStep,
    *,
    largest_counts: bool = False,
) -> Grown:
    """Grow the host of an environment of one host."""
    with torch.random.fork_rng(devices=[]):
        envs.reset(seed=seed)
    given = _export_host(envs)
    timeline, results = run_episode(envs, controller, seed, on_step, largest_counts=largest_counts)
    grown, test = _export_host(envs), envs.growth.draws[0].data.test
    before, after = (measure(one, test, envs.task.metric) for one in (given, grown))
    summary = _summarize(
        envs, results, controller, before=before, after=after, given=given, kept=grown
    )
    return Grown(
        model=grown,
        timeline=timeline,
        summary=summary,
        results=results,
        sample=test.inputs[:4].clone(),
    )


def _export_host(envs: GrowthVectorEnv) -> nn.Module:
    """Return the host as a plain module with its committed seeds and no gradients."""
    model = export(envs.growth.population.model(0), committed_only=True)
    for parameter in model.parameters():
        parameter.grad = None
    return model


def _summarize(
    envs: GrowthVectorEnv,
    results: EpisodeResults,
    controller: Controller,
    *,
    before: float,
    after: float,
    given: nn.Module,
    kept: nn.Module,
) -> GrowthSummary:
    was_kept = kept is not given
    lives = envs.growth.population.lives(0)
    committed = tuple(
        (slot, seed.blueprint) for slot, life in lives.items() for seed in life.committed
    )
    return GrowthSummary(
        metric=envs.task.metric.name,
        split="test",
        before=before,
        after=after if was_kept else before,
        grown=after,
        parameters_before=count_parameters(given),
        parameters_after=count_parameters(kept),
        flops=float(results.flops[0]),
        n_epochs=int(results.n_epochs[0]),
        best_epoch=int(envs.growth.records.settled_epoch[0]),
        budget_epochs=envs.task.budget.n_epochs,
        seeds=committed if was_kept else (),
        was_kept=was_kept,
        controller=controller.name,
    )


def _copy(model: nn.Module) -> nn.Module:
    """Return a copy of a model; reject one without trainable parameters."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model is {type_of(model)}; it must be a torch.nn.Module, or a task.")
    require_growable(model)
    twin = copy_model(model)
    if not any(parameter.requires_grad for parameter in twin.parameters()):
        raise ConfigError(
            f"this {type(twin).__name__} has no trainable parameter; at least one must have "
            "requires_grad."
        )
    return twin


def _read(
    model: nn.Module, train_data: Any, val_data: Any, metric: Metric
) -> tuple[Samples, Samples]:
    """Return the training and validation samples; reject data that do not fit the model."""
    if not isinstance(metric, Metric):
        raise ConfigError(f"metric is {type_of(metric)}; it must be an esper.Metric.")
    like = next((p for p in model.parameters() if p.is_floating_point()), None)
    train = read_samples(train_data, "train_data", like=like)
    validation = read_samples(val_data, "val_data", like=like)
    for name, samples in (("train_data", train), ("val_data", validation)):
        check_samples(samples, like=train, what=name)
        require_fit(model, samples, name, metric)
    require_finite(model, validation, "val_data")
    return train, validation


def _require_none(**arguments: object) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise ConfigError(f"{name} is given with a task; a task has its own.")


def _find_budget(budget: Any, default: Budget) -> Budget:
    if budget is None:
        return default
    if isinstance(budget, Budget):
        return budget
    if isinstance(budget, int) and not isinstance(budget, bool):
        return replace(default, n_epochs=budget)
    raise ConfigError(
        f"budget is {budget!r}; it must be an esper.Budget, a number of epochs, or None."
    )


def _settings(options: dict[str, Any], batch_size: int | None) -> PopulationConfig:
    """Return the training settings; reject unknown ones."""
    known = [field.name for field in fields(PopulationConfig)]
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(
                f"there is no setting {name!r}; the settings are {', '.join(known)}.{hint}"
            )
    default: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}
    return PopulationConfig(**default | options)


PROGRAM_FILE = "model.pt2"
WEIGHTS_FILE = "model.safetensors"
GROWTH_FILE = "growth.json"


def save_grown(grown: Grown, folder: str | os.PathLike[str]) -> Path:
    """Save a grown model as an exported program for any batch size; return the folder.

    Raises:
        StorageError: If it cannot be written.
    """
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with replacing(path / PROGRAM_FILE) as temporary:
            _save_program(grown, temporary)
        weights = {name: t.detach().contiguous() for name, t in grown.model.state_dict().items()}
        write_atomic(path / WEIGHTS_FILE, safetensors.torch.save(weights))
        write_atomic(path / GROWTH_FILE, json.dumps(grown.to_json(), indent=1) + "\n")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}; choose another folder."
        ) from error
    return path


def _save_program(grown: Grown, path: Path) -> None:
    batch = torch.export.Dim("batch", min=1)
    model = grown.model.eval()
    with warnings.catch_warnings():  # PyTorch warns about its own internals
        warnings.simplefilter("ignore")
        program = torch.export.export(
            model, (grown.sample,), dynamic_shapes=({0: batch},), strict=False
        )
        with path.open("wb") as file:  # given a path, PyTorch wants the name to end in .pt2
            torch.export.save(program, file)

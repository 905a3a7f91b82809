"""`esper.grow`: growing one model, the user's own or the host of a task."""

from __future__ import annotations

import copy
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from esper.config.checks import require_seed
from esper.config.growth import OPTIMIZERS, Budget, GrowthConfig, PopulationConfig
from esper.config.memory import BYTES_PER_WEIGHT, require_memory
from esper.environment import EpisodeResults, GrowthVectorEnv
from esper.errors import ConfigError, RunError, did_you_mean, type_of
from esper.growing.batches import Batch, Batches
from esper.growing.grower import Grower
from esper.growing.grown import Grown, GrowthSummary
from esper.growing.measuring import copy_modes, measure, require_finite
from esper.growing.objectives import LossFunction, MetricFunction, Objective, make_objective
from esper.growing.progress import shown_progress
from esper.growing.slots import copy_model, place_slots
from esper.growing.timeline import OnStep, TimelineStep, run_episode
from esper.growing.training_loop import Limits, TrainingLoop
from esper.growth.dry_run import first_samples
from esper.growth.export import export
from esper.growth.host_slots import slots
from esper.growth.modules import count_parameters, seeded
from esper.growth.placement import require_growable
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.populations.host_models import make_optimizer
from esper.populations.sequential import EVALUATION_BATCH
from esper.storage.checkpoint_folder import CheckpointFolder
from esper.tamiyo import Controller, Replay
from esper.tamiyo.policy.observations import ObservationLayout
from esper.tasks import Metric, Task, make_task
from esper.training.lookup import (
    PROGRESSIVE,
    AnyController,
    find_controller,
    find_progressive,
    find_saved,
    require_progressive,
)
from esper.training.run import Run
from esper.training.setup import make_run_task, make_trial_envs
from esper.training.trials import TRIAL_SEED, trial_parts

PROGRESSIVE_GROWTH = GrowthConfig(commits_at_once=True, embargo_epochs=1)
"""Growth to a target size: new seeds are part of the model at once."""


def grow(
    model: nn.Module | Task | str,
    train_data: Any = None,
    val_data: Any = None,
    epochs: int | Budget | None = None,
    *,
    loss: LossFunction | None = None,
    metric: str | Metric | MetricFunction | None = None,
    class_weights: Any = None,
    price: float = 0.0,
    controller: AnyController = "shipped",
    target: Mapping[str, int] | None = None,
    fractions: Sequence[float] | None = None,
    at: Sequence[str] | None = None,
    optimizer: str | Optimizer | Callable[..., Optimizer] = "adamw",
    scheduler: Any = None,
    max_parameters: int | None = None,
    max_flops: float | None = None,
    max_seconds: float | None = None,
    patience: int | None = None,
    baseline: bool = False,
    resume: str | os.PathLike[str] | None = None,
    progress: bool | Literal["auto"] = "auto",
    seed: int = 0,
    on_step: OnStep | None = None,
    budget: Budget | int | None = None,
    **options: Any,
) -> Grown:
    """Train a model while a controller grows it, and return a plain module.

    A copy is trained and grown; the given model, its gradients and its modes do not change. After
    each epoch the model is validated, and the epoch with the best metric counts: seeds that were
    blended in by then are kept if the metric with them is at least as good as without them. The
    given model is returned if no epoch was better, so the result is never worse on validation.
    Because the validation data decide, an unbiased estimate needs separate test data.

    Data are iterated anew in every epoch and never read into memory as a whole. Ctrl-C ends the
    training and returns the best so far. Torch's default generator is left unchanged.

    Given a task instead of a model, one host of the task is grown on the task's data, and measured
    on its test split.

    Args:
        model: Any module; its slots, if it has any, must be empty. Or a task, or the name of one.
        train_data: The training data: a pair (inputs, targets) of tensors or arrays, or a Dataset,
            DataLoader or other iterable of such pairs or of mappings with ``labels``; inputs get
            the model's dtype and device, images in bytes are scaled to [0, 1].
        val_data: The validation data in the same forms.
        epochs: Epochs to train, all of which are used unless a limit ends it; None for the number
            that the controller was trained with. An :class:`esper.Budget` also has the price.
        loss: A function of outputs and targets; None for the model's own loss if it returns one,
            cross-entropy for whole targets, or the squared error for others.
        metric: ``"accuracy"``, ``"mse"``, ``"r2"``, ``"loss"``, an :class:`esper.Metric`, or a
            function of outputs and targets where more is better; None for the one that fits.
        class_weights: A weight for each class, for the default loss.
        price: Price of the FLOPs of plain training, in score, that the controller is told. At 0 it
            never ends the training early.
        controller: ``"shipped"``, the folder of a saved controller or of a run, a run, the name of
            a simple controller, or a controller.
        target: With ``controller="progressive"``, the size to grow to: ``{"depth": 12}`` for 12
            residual blocks, or ``{"parameters": 100_000}``. The best epoch at that size counts.
        fractions: The fractions of the budget at which it grows.
        at: Names of the blocks and pairs of layers that get slots; None for up to 12 that
            :func:`esper.find_slots` finds (see :func:`~esper.growing.slots.choose_slots`).
        optimizer: ``"adamw"``, ``"adam"``, ``"sgd"``, an optimizer of the given model, which is
            copied with it, or a function of parameters that returns one.
        scheduler: A scheduler of that optimizer, or a function of an optimizer that returns one. It
            is stepped after each epoch, OneCycleLR and CyclicLR after each batch.
        max_parameters: Parameters that the model may have.
        max_flops: FLOPs of training after which it ends.
        max_seconds: Seconds after which it ends.
        patience: Epochs without a better one after which it ends.
        baseline: Whether to train the given model without growth as well, with the same seeds, and
            say which was better.
        resume: A folder to save the training in after each epoch, and to go on from if it holds
            one.
        progress: Whether to show a bar; by default in terminals and notebooks.
        seed: Seeds the order of batches, the weights of seeds and the controller; for a task also
            the host and its data.
        on_step: Called after each epoch.
        budget: Another name for ``epochs``.
        options: ``learning_rate`` (1e-3), ``batch_size`` (32; for data that do not come in
            batches), ``weight_decay`` and the other settings of :class:`~esper.PopulationConfig`.
            For the name of a task, its options.

    Raises:
        BadDataError: If the data are invalid or do not fit the model.
        NonFiniteError: If the model's weights or outputs are NaN or infinite.
        SlotError: If the model has no place for a slot.
        ConfigError: If a setting is invalid.
        ControllerError: If there is no such controller.
    """
    if on_step is not None and not callable(on_step):
        raise ConfigError(f"on_step is {on_step!r}; it must be a function of one epoch.")
    if epochs is not None and budget is not None:
        raise ConfigError(f"epochs is {epochs!r} and budget is {budget!r}; give one of them.")
    given_as = "epochs" if budget is None else "budget"
    epochs = budget if epochs is None else epochs
    require_progressive(controller, target=target, fractions=fractions)
    if isinstance(model, (Task, str)):
        _require_none(
            train_data=train_data,
            val_data=val_data,
            at=at,
            metric=metric,
            loss=loss,
            class_weights=class_weights,
            scheduler=scheduler,
            max_parameters=max_parameters,
            max_flops=max_flops,
            max_seconds=max_seconds,
            patience=patience,
            resume=resume,
            baseline=baseline or None,
        )
        task = _task_of(model, options)
        growth = PROGRESSIVE_GROWTH if controller == PROGRESSIVE else task.growth
        task = replace(task, budget=_find_budget(epochs, task.budget, given_as), growth=growth)
        envs = GrowthVectorEnv(task, 1, purpose="evaluation", final_split="test", autoreset=False)
        decider = find_controller(controller, envs, target=target, fractions=fractions)
        return _grow_host(
            envs, decider, seed, on_step or _ignore, largest_counts=target is not None
        )
    require_seed(seed)
    wanted = (target or {}).get("parameters", 0)
    if max_parameters is not None and wanted > max_parameters:
        raise ConfigError(
            f"target is {wanted:,} parameters, but max_parameters is {max_parameters:,}; give one "
            "of them."
        )
    saved = find_saved(controller)
    usual = Budget() if saved is None else saved.budget
    plan = _find_budget(epochs, replace(usual, flop_price=price), given_as)
    settings = _settings(options, optimizer)
    _require_room(model)
    given, made = _copy_all(model, optimizer, scheduler)
    train = Batches(
        train_data,
        "train_data",
        given,
        batch_size=settings.batch_size,
        shuffle=True,
        limit=settings.batches_per_epoch,
    )
    validation = Batches(val_data, "val_data", given, batch_size=EVALUATION_BATCH, shuffle=False)
    first = train.first()
    objective, _ = (  # validation data that do not fit fail here, before training
        make_objective(
            given,
            batch,
            batches.name,
            loss=loss,
            metric=metric,
            class_weights=class_weights,
            all_targets=batches.all_targets,
        )
        for batches, batch in ((train, first), (validation, validation.first()))
    )
    require_finite(given, validation)
    limits = Limits(
        epochs=plan.n_epochs, max_flops=max_flops, max_seconds=max_seconds, patience=patience
    )
    work = _Work(
        given=given,
        made=made,
        settings=settings,
        plan=plan,
        objective=objective,
        train=train,
        validation=validation,
        first=first,
        limits=limits,
        at=at,
        max_parameters=max_parameters,
        seed=seed,
    )
    grown, loop = work.run(
        controller if saved is None else saved,
        target=target,
        fractions=fractions,
        on_step=on_step or _ignore,
        resume=resume,
        progress=progress,
    )
    if baseline and not loop.was_interrupted:
        # As many epochs as growth had, whatever ended it.
        plain = replace(work, limits=Limits(epochs=max(1, loop.grower.epoch))).run(
            "wait", on_step=_ignore, resume=None, progress=progress, label="training without growth"
        )[1]
        if not plain.was_interrupted:
            value = plain.kept.evaluation.value
            is_above = objective.is_better(loop.kept.evaluation.value, value)
            summary = replace(grown.summary, baseline=value, is_above_baseline=is_above)
            return replace(grown, summary=summary)
    return grown


def _ignore(_: TimelineStep) -> None:
    """Do nothing after an epoch."""


@dataclass(frozen=True, kw_only=True)
class _Work:
    """A model, its data and its training settings, which can be trained several times."""

    given: nn.Module
    made: _Made
    settings: PopulationConfig
    plan: Budget
    objective: Objective
    train: Batches
    validation: Batches
    first: Batch
    limits: Limits
    at: Sequence[str] | None
    max_parameters: int | None
    seed: int

    def run(
        self,
        controller: AnyController,
        *,
        target: Mapping[str, int] | None = None,
        fractions: Sequence[float] | None = None,
        on_step: OnStep,
        resume: str | os.PathLike[str] | None,
        progress: bool | Literal["auto"],
        label: str = "growing",
    ) -> tuple[Grown, TrainingLoop]:
        """Train a copy of the model with a controller."""
        memo: dict[int, Any] = {}
        model = copy.deepcopy(self.given, memo)
        if not self.given.training:
            model.train()
        sample = first_samples(self.first.sample)
        is_progressive = controller == PROGRESSIVE
        saved = find_saved(controller)
        place_slots(
            model,
            self.at,
            sample,
            for_depth=isinstance(target, Mapping) and "depth" in target,
            growth_config=PROGRESSIVE_GROWTH if is_progressive else saved and saved.growth,
            seed=self.seed,
        )
        template = export(self.given)  # a model that cannot be exported fails here
        if is_progressive:
            layout = ObservationLayout(
                replace(slots(model).slot_config, allow_finish=self.plan.flop_price > 0.0)
            )
            controller = find_progressive(
                layout, copy.deepcopy(model), self.plan.n_epochs, target, fractions
            )
        optimizer, scheduler = self.made.bind(model, memo, self.settings)
        with seeded(self.seed):
            grower = Grower(
                model,
                optimizer,
                epochs=self.plan.n_epochs,
                controller=controller,
                sample_input=sample,
                price=self.plan.flop_price,
                scheduler=scheduler,
                seed=self.seed,
                max_parameters=self.max_parameters,
            )
            grower.set_batch_size(self.first.size)
            with shown_progress(progress, grower, label) as bar:
                loop = TrainingLoop(
                    grower,
                    self.objective,
                    self.train,
                    self.validation,
                    self.limits,
                    on_step=bar.wrap(on_step),
                    on_batch=bar.on_batch,
                    largest_counts=target is not None,
                    checkpoints=None if resume is None else CheckpointFolder(resume, keep_last=1),
                    identity=self._identity(grower),
                )
                loop.run()
        return self._result(loop, template), loop

    def _identity(self, grower: Grower) -> dict[str, str]:
        """Return what tells this training from others, to compare with a saved one."""
        digest = hashlib.sha256()
        for name, tensor in self.given.state_dict().items():
            digest.update(f"{name}{list(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return {
            "the model": f"{type(self.given).__name__} with weights {digest.hexdigest()[:12]}",
            "epochs": str(self.plan.n_epochs),
            "the metric": self.objective.metric,
            "price": str(self.plan.flop_price),
            "seed": str(self.seed),
            "the controller": grower.controller_name,
            "the optimizer": type(grower.optimizers[0]).__name__,
            "the learning rate": str(grower.optimizers[0].param_groups[0]["lr"]),
            "the batch size": str(self.first.size),
        }

    def _result(self, loop: TrainingLoop, template: nn.Module) -> Grown:
        grower, kept = loop.grower, loop.kept
        before = self.objective.evaluate(self.given, self.validation)
        was_kept = kept.epoch > 0 and self.objective.is_better(kept.evaluation.value, before.value)
        model = kept.rebuild(self.given) if was_kept else template
        copy_modes(self.given, model)
        for parameter in model.parameters():
            parameter.grad = None
        summary = GrowthSummary(
            metric=self.objective.metric,
            split="validation",
            before=before.value,
            after=kept.evaluation.value if was_kept else before.value,
            grown=kept.evaluation.value,
            parameters_before=count_parameters(self.given),
            parameters_after=count_parameters(model),
            flops=float(grower.trace[-1].flops),
            n_epochs=grower.epoch,
            best_epoch=kept.epoch,
            budget_epochs=self.plan.n_epochs,
            seeds=kept.seeds(self.given) if was_kept else (),
            was_kept=was_kept,
            controller=grower.controller_name,
            seconds=loop.seconds,
            total_flops=grower.flops,
            stopped=loop.stopped,
            problems=tuple(loop.problems),
        )
        return Grown(
            model=model,
            timeline=tuple(loop.timeline),
            summary=summary,
            results=self._episode(loop, summary),
            sample=self._sample(),
            trace=grower.trace,
        )

    def _sample(self) -> Any:
        found: Any = first_samples(self.validation.first().sample, 4)
        is_single = isinstance(found, tuple) and len(cast(tuple[Any, ...], found)) == 1
        return cast(Any, found)[0] if is_single else cast(Any, found)

    def _episode(self, loop: TrainingLoop, summary: GrowthSummary) -> EpisodeResults:
        """Return the outcome in the form of a host's episode."""
        ops = Counter(step.op for step in loop.timeline)
        score = loop.kept.evaluation.score
        return EpisodeResults(
            returns=np.array([score - self.plan.flop_price * summary.flops]),
            scores=np.array([score]),
            flops=np.array([summary.flops]),
            n_epochs=np.array([summary.n_epochs]),
            host_parameters=np.array([summary.parameters_before]),
            seed_parameters=np.array([summary.parameters_after - summary.parameters_before]),
            op_counts=np.array([[ops[op.name.lower()] for op in Op]]),
            n_illegal=np.zeros(1, np.int64),
            draw_seeds=np.array([self.seed]),
        )


@dataclass(frozen=True)
class _Made:
    """The optimizer and the scheduler as the user gave them, copied with the model if bound."""

    optimizer: Any
    scheduler: Any

    def bind(
        self, model: nn.Module, memo: dict[int, Any], settings: PopulationConfig
    ) -> tuple[Optimizer, Any]:
        """Return them for a copy of the model that ``copy.deepcopy`` made with this memo."""
        if isinstance(self.optimizer, Optimizer):
            optimizer: Any = copy.deepcopy(self.optimizer, memo)
        elif isinstance(self.optimizer, str):
            optimizer = make_optimizer(model, settings, settings.learning_rate, fused=True)
        else:
            optimizer = self.optimizer(model.parameters())
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(
                f"optimizer returned {type_of(optimizer)}; it must return a torch.optim optimizer."
            )
        if self.scheduler is None:
            return optimizer, None
        if callable(self.scheduler) and not hasattr(self.scheduler, "step"):
            return optimizer, self.scheduler(optimizer)
        return optimizer, copy.deepcopy(self.scheduler, memo)


def _copy_all(model: nn.Module, optimizer: Any, scheduler: Any) -> tuple[nn.Module, _Made]:
    """Return copies of a model and of the optimizer and scheduler that belong to it."""
    is_known = isinstance(optimizer, (str, Optimizer)) or callable(optimizer)
    if not is_known or (isinstance(optimizer, str) and optimizer not in OPTIMIZERS):
        raise ConfigError(
            f"optimizer is {optimizer!r}; it must be one of {', '.join(OPTIMIZERS)}, an optimizer "
            "of the model, or a function of parameters that returns one."
        )
    if hasattr(scheduler, "step") and not isinstance(optimizer, Optimizer):
        raise ConfigError(
            "scheduler belongs to an optimizer; give that too, or give a function of an optimizer "
            "that returns the scheduler."
        )
    memo: dict[int, Any] = {}
    given = _copy(model, memo)
    if isinstance(optimizer, Optimizer):
        optimizer = copy.deepcopy(optimizer, memo)
        scheduler = copy.deepcopy(scheduler, memo) if hasattr(scheduler, "step") else scheduler
    return given, _Made(optimizer, scheduler)


def grow_best_host(run: Run, *, allow_code: bool = False) -> Grown:
    """Grow the best host of a run's final comparison again, with the same actions.

    Args:
        run: The run.
        allow_code: Whether to run a task that the settings name by ``module:function``.

    Raises:
        RunError: If the run is not done, or records the user's own training.
        TaskError: If the settings name code and that is not allowed.
    """
    run.require_learning()
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


def _copy(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a copy of a model; reject one without trainable parameters."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model is {type_of(model)}; it must be a torch.nn.Module, or a task.")
    require_growable(model)
    twin = copy_model(model, memo)
    if not any(parameter.requires_grad for parameter in twin.parameters()):
        raise ConfigError(
            f"this {type(twin).__name__} has no trainable parameter; at least one must have "
            "requires_grad."
        )
    return twin


def _require_room(model: Any) -> None:
    """Reject a model of which there is no room for a copy."""
    if isinstance(model, nn.Module):
        size = count_parameters(model)
        require_memory(BYTES_PER_WEIGHT * size, hosts=1, parameters=size)


def _require_none(**arguments: object) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise ConfigError(f"{name} is given with a task; a task has its own.")


def _find_budget(budget: Any, default: Budget, name: str) -> Budget:
    if budget is None:
        return default
    if isinstance(budget, Budget):
        return budget
    if isinstance(budget, int) and not isinstance(budget, bool):
        return replace(default, n_epochs=budget)
    raise ConfigError(
        f"{name} is {budget!r}; it must be a number of epochs, an esper.Budget, or None."
    )


def _settings(options: dict[str, Any], optimizer: Any) -> PopulationConfig:
    """Return the training settings; reject unknown ones."""
    known = [field.name for field in fields(PopulationConfig)]
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(
                f"there is no setting {name!r}; the settings are {', '.join(known)}.{hint}"
            )
    kind = {"optimizer": optimizer} if isinstance(optimizer, str) else {}
    return PopulationConfig(**options, **cast(Any, kind))

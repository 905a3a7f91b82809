"""`esper.grow`: growing one model, the user's own or the host of a task."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Unpack

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from esper.config.catalogue import SHIPPED
from esper.config.checks import Bounds, NonNegativeFloat, PositiveInt, Seed, check
from esper.config.growth import MAX_EPOCHS, Budget, TrainingSettings
from esper.environment.options import find_task
from esper.errors import ConfigError
from esper.growing.batches import Batches, DataLike
from esper.growing.decisions import OnStep, ignore_step
from esper.growing.grown import Grown, add_baseline, wants_baseline
from esper.growing.measuring import require_finite, require_finite_data
from esper.growing.objectives import LossFunction, MetricFunction, make_objective
from esper.growing.own_models import OwnModel, copy_all, read_settings
from esper.growing.progress import EpochProgress
from esper.growing.racing import RACE, SizeRace
from esper.growing.task_hosts import grow_task
from esper.growing.training_loop import Limits
from esper.growth.host_slots import own_slots, unwrapped
from esper.modes import suitable_threads
from esper.populations.host import EVALUATION_BATCH
from esper.progress import ShowProgress
from esper.storage.checkpoint_folder import CheckpointFolder
from esper.tasks import Metric, Task
from esper.training.lookup import AnyController, find_saved, require_progressive

RACE_EPOCHS = 30
"""Epochs that a race of sizes trains by default."""

Tolerance = Annotated[float, Bounds(0.0, 0.5)]
Epochs = Annotated[int, Bounds(1, MAX_EPOCHS)]


def grow(
    model: nn.Module | Task | str,
    train_data: DataLike | None = None,
    val_data: DataLike | None = None,
    epochs: int | Budget | None = None,
    *,
    loss: LossFunction | None = None,
    metric: str | Metric | MetricFunction | None = None,
    class_weights: Tensor | Sequence[float] | None = None,
    price: float | None = None,
    tolerance: float = 0.01,
    controller: AnyController = "shipped",
    target: Mapping[str, int] | None = None,
    fractions: Sequence[float] | None = None,
    at: Sequence[str] | None = None,
    optimizer: str | Optimizer | Callable[..., Optimizer] = "adamw",
    scheduler: LRScheduler | Callable[[Optimizer], LRScheduler] | None = None,
    max_parameters: int | None = None,
    max_flops: float | None = None,
    max_seconds: float | None = None,
    patience: int | None = None,
    baseline: bool | Literal["auto"] = False,
    resume: str | os.PathLike[str] | None = None,
    progress: ShowProgress = "auto",
    seed: int = 0,
    on_step: OnStep | None = None,
    **settings: Unpack[TrainingSettings],
) -> Grown:
    """Train a model while a controller grows it, and return a plain module.

    A copy is trained and grown; the given model, its gradients and its modes do not change. After
    each epoch the model is validated, and the best epoch is kept: seeds that were
    blended in by then are kept if the metric with them is at least as good as without them. The
    given model is returned if no epoch was better, so the result is never worse on validation.
    Because the validation data decide, an unbiased estimate needs separate test data.

    Data are iterated in every epoch and never read into memory as a whole. Ctrl-C ends the
    training and returns the best so far. Torch's default generator is left unchanged.

    Given a task instead of a model, one host of the task is grown on the task's data, and measured
    on its test split.

    Args:
        model: Any module; its slots, if it has any, must be empty. A compiled one is trained
            compiled; the result is not compiled. Or a task, or the name of one.
        train_data: The training data: a pair (inputs, targets) of tensors or arrays, or a Dataset,
            DataLoader or other iterable of such pairs or of mappings with ``labels``; inputs get
            the model's dtype and device, images in bytes are scaled to [0, 1].
        val_data: The validation data in the same forms.
        epochs: Epochs to train, all of which are used unless a limit ends it; None for the number
            that the controller was trained with. An :class:`esper.Budget` also has the price.
        loss: A function of outputs and targets; None for the model's own loss if it returns one,
            cross-entropy for classes, or the squared error for numbers. Classes are whole targets,
            or floats of which all are 0 or 1 if the model has one output.
        metric: ``"accuracy"``, ``"mse"``, ``"r2"``, ``"loss"``, an :class:`esper.Metric`, or a
            function of outputs and targets where more is better, which gets all validation data
            at once where their outputs and targets are tensors; None chooses one by the targets.
            ``"mse"`` and ``"r2"`` take all floats for numbers.
        class_weights: A weight for each class, for the default loss.
        price: How much score one plain training run costs, for the controller. At 0, the default
            for a model, it never ends the training early; a task has its own price.
        tolerance: How far the returned size may be from the best one: points of the metric as a
            share of 1, so 0.01 is 1 point of accuracy, or a share of a loss or of a metric of your
            own. At 0 the best wins.
        controller: ``"shipped"`` for a race of sizes (for a task, a model with slots or a price,
            the learned controller), ``"learned"`` for the learned controller, the folder of a saved
            one or of a run, a run, the name of a simple controller, or a controller.
        target: With ``controller="progressive"``, the size to grow to: ``{"depth": 12}`` for 12
            residual blocks, or ``{"parameters": 100_000}``. The best epoch at that size counts.
        fractions: The fractions of the budget at which it grows.
        at: Names of the blocks and pairs of layers that get slots; None for up to 12 that
            :func:`esper.find_slots` finds (see :func:`~esper.growing.slots.choose_slots`). Seeds
            on a single layer grow beside it; name its pair to widen the layer itself.
        optimizer: ``"adamw"``, ``"adam"``, ``"sgd"``, an optimizer of the given model, which is
            copied with it, or a function of parameters that returns one.
        scheduler: A scheduler of that optimizer, or a function of an optimizer that returns one. It
            is stepped after each epoch, OneCycleLR and CyclicLR after each batch.
        max_parameters: Parameters that the model may have.
        max_flops: FLOPs of training that it may take; it ends before a batch that needs more, but
            not before the first one.
        max_seconds: Seconds after which it ends.
        patience: Epochs without a better one after which it ends.
        baseline: Whether to train the given model with no growth as well, with the same seeds and
            limits, and say which was better; ``"auto"`` does if growing took less than a minute.
        resume: A folder to save the training in after each epoch, and to resume from if it holds
            one, also with more epochs or other limits. It must hold nothing else.
        progress: Whether to show a bar; by default in terminals and notebooks.
        seed: Seeds the order of batches, the weights of seeds and the controller; for a task also
            the host and its data.
        on_step: Called after each epoch.
        settings: ``learning_rate`` (1e-3), ``batch_size`` (32; for data that do not come in
            batches), ``weight_decay`` and the other settings of :class:`~esper.PopulationConfig`,
            those of an optimizer only if it is given by name; for a task that is given by name, its
            options.

    Raises:
        BadDataError: If the data are invalid or do not fit the model.
        NonFiniteError: If the model's weights or outputs are NaN or infinite.
        SlotError: If the model has no place for a slot.
        ConfigError: If a setting is invalid.
        CheckpointError: If the folder of ``resume`` holds other files, or is damaged.
        ControllerError: If there is no such controller.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x, y = torch.randn(80, 4), torch.randint(3, (80,))
        >>> data = (x[:60], y[:60]), (x[60:], y[60:])
        >>> grown = esper.grow(model, *data, epochs=4, controller="heuristic", progress=False)
        >>> type(grown.model).__module__
        'torch.nn.modules.container'
    """
    check("on_step", on_step, OnStep | None)
    check("epochs", epochs, Epochs | Budget | None)
    check("price", price, NonNegativeFloat | None)
    check("baseline", baseline, bool | Literal["auto"])
    check("tolerance", tolerance, Tolerance)
    options: dict[str, Any] = {**settings}
    require_progressive(controller, target=target, fractions=fractions)
    if isinstance(model, (Task, str)):
        _require_none(
            model,
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
        )
        task = find_task(model, options)
        usual = task.budget
        if price is not None:  # at price 0 nothing has a cost
            rent = usual.parameter_rent if price else 0.0
            usual = replace(usual, flop_price=price, parameter_rent=rent)
        return grow_task(
            task,
            _find_budget(epochs, usual),
            controller,
            target=target,
            fractions=fractions,
            seed=seed,
            baseline=baseline,
            on_step=on_step or ignore_step,
            progress=progress,
        )
    seed = check("seed", seed, Seed)
    if resume is not None:
        CheckpointFolder(resume).require_free()
    check("max_parameters", max_parameters, PositiveInt | None)
    wanted = (target or {}).get("parameters", 0)
    if max_parameters is not None and wanted > max_parameters:
        raise ConfigError(
            f"target is {wanted:,} parameters, but max_parameters is {max_parameters:,}; give one "
            "of them."
        )
    training = read_settings(options, optimizer, _ARGUMENTS)
    given, given_optimizer = copy_all(model, optimizer, scheduler)
    is_race = _is_race(given, controller, price)
    saved = None if is_race else find_saved(controller)
    own = Budget(n_epochs=RACE_EPOCHS) if is_race else Budget()
    usual = own if saved is None else saved.budget
    plan = _find_budget(epochs, replace(usual, flop_price=price or 0.0))
    train = Batches(
        train_data,
        "train_data",
        given,
        batch_size=training.batch_size,
        shuffle=True,
        limit=training.batches_per_epoch,
    )
    validation = Batches(val_data, "val_data", given, batch_size=EVALUATION_BATCH, shuffle=False)
    limits = Limits(
        epochs=plan.n_epochs, max_flops=max_flops, max_seconds=max_seconds, patience=patience
    )
    with EpochProgress(progress, plan.n_epochs, "growing") as bar:
        first = train.first()
        objective, _ = (  # validation data that do not fit fail here, before training
            make_objective(
                given,
                batch,
                batches.name,
                loss=loss,
                metric=metric,
                class_weights=class_weights,
                all_targets=None if batches.whole is None else batches.whole.targets,
            )
            for batches, batch in ((train, first), (validation, validation.first()))
        )
        work = OwnModel(
            given=given,
            wrapped=model,
            optimizer=given_optimizer,
            settings=training,
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
        with suitable_threads(work.batch_flops):
            for batches in (train, validation):
                require_finite_data(given, objective, batches)
            require_finite(given, validation)
        if is_race:
            sizes = SizeRace(work=work, tolerance=tolerance)
            return sizes.run(
                on_step=on_step or ignore_step, resume=resume, bar=bar, baseline=baseline
            )
        grown, loop = work.run(
            controller if saved is None else saved,
            target=target,
            fractions=fractions,
            on_step=on_step or ignore_step,
            resume=resume,
            bar=bar,
        )
    if loop.was_interrupted or not wants_baseline(baseline, grown):
        return grown
    with EpochProgress(progress, plan.n_epochs, "training with no growth") as bar:
        plain, loop = work.run("no-growth", on_step=ignore_step, resume=None, bar=bar)
    return grown if loop.was_interrupted else add_baseline(grown, plain, objective.is_better)


_ARGUMENTS = [name for name in inspect.signature(grow).parameters if name != "settings"]


def _is_race(model: nn.Module, controller: AnyController, price: float | None) -> bool:
    """Return whether sizes of a model race, rather than a controller steering its growth."""
    is_named = isinstance(controller, str) and controller == RACE
    if is_named and price:
        raise ConfigError(f"price is {price!r}; it needs a controller, such as 'learned'.")
    has_slots = isinstance(model, nn.Module) and own_slots(unwrapped(model)) is not None
    if is_named and has_slots:
        raise ConfigError(
            "the model has slots, which a controller fills; give controller='learned', or the "
            "model without them, esper.export(model)."
        )
    is_default = isinstance(controller, str) and controller == SHIPPED
    return is_named or (is_default and not price and not has_slots)


def _require_none(model: Task | str, **arguments: object) -> None:
    for name, value in arguments.items():
        if value is not None and isinstance(model, str):
            raise ConfigError(
                f"model is {model!r}, and a string names a task, which has data of its own; load "
                f"your model first, or leave out {name}."
            )
        if value is not None:
            raise ConfigError(f"{name} does not go with a task, only with a model of your own.")


def _find_budget(epochs: int | Budget | None, default: Budget) -> Budget:
    if isinstance(epochs, Budget):
        return epochs
    return default if epochs is None else replace(default, n_epochs=epochs)

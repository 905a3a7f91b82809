"""Training the user's own model with growth, on the user's data."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from esper.config.checks import reject_unknown
from esper.config.growth import OPTIMIZERS, Budget, PopulationConfig
from esper.config.memory import BYTES_PER_WEIGHT, require_memory
from esper.errors import ConfigError, did_you_mean, type_of
from esper.growing.batches import Batch, Batches
from esper.growing.decisions import OnStep
from esper.growing.grower import Grower
from esper.growing.grown import Grown, GrowthSummary, germination_epochs
from esper.growing.measuring import copy_modes
from esper.growing.objectives import Objective
from esper.growing.progress import EpochProgress
from esper.growing.slots import copy_model, place_slots, require_trainable
from esper.growing.training_loop import ExportedEpoch, Limits, TrainingLoop
from esper.growth.dry_run import batch_size_of, first_samples
from esper.growth.export import export
from esper.growth.footprint import training_step_flops
from esper.growth.host_slots import slots
from esper.growth.modules import compiled_like, count_parameters, seeded
from esper.growth.placement import require_growable
from esper.modes import suitable_threads
from esper.populations.host import make_optimizer
from esper.storage.checkpoint_folder import CheckpointFolder
from esper.tamiyo.policy.observations import ObservationLayout
from esper.training.lookup import (
    PROGRESSIVE,
    PROGRESSIVE_GROWTH,
    AnyController,
    find_progressive,
    find_saved,
)


@dataclass(frozen=True, kw_only=True)
class OwnModel:
    """The user's model, its data and its training settings; it can be trained several times."""

    given: nn.Module
    wrapped: nn.Module
    """The user's own object, compiled or not, which is only looked at."""
    optimizer: GivenOptimizer
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
        bar: EpochProgress,
    ) -> tuple[Grown, TrainingLoop]:
        """Train a copy of the model with a controller."""
        memo: dict[int, Any] = {}
        model = copy.deepcopy(self.given, memo)
        if not self.given.training:
            model.train()
        with suitable_threads(self.batch_flops):
            template, controller = self._place_slots(model, controller, target, fractions)
        optimizer, scheduler = self.optimizer.bind(model, memo, self.settings)
        with seeded(self.seed):
            with suitable_threads(self.batch_flops):
                grower = Grower(
                    compiled_like(self.wrapped, model),
                    optimizer,
                    epochs=self.plan.n_epochs,
                    controller=controller,
                    sample_input=self.first.sample,
                    price=self.plan.flop_price,
                    scheduler=scheduler,
                    seed=self.seed,
                    max_parameters=self.max_parameters,
                )
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
                identity={
                    **self.identity(grower.optimizers[0]),
                    "price": str(self.plan.flop_price),
                    "the controller": grower.controller_name,
                },
            )
            loop.run()
        return self._result(loop, template), loop

    @cached_property
    def batch_flops(self) -> float:
        """FLOPs of training the given model on one batch."""
        sample = first_samples(self.first.sample)
        return self.first.size / batch_size_of(sample) * training_step_flops(self.given, sample)

    def _place_slots(
        self,
        model: nn.Module,
        controller: AnyController,
        target: Mapping[str, int] | None,
        fractions: Sequence[float] | None,
    ) -> tuple[nn.Module, AnyController]:
        """Add slots to a copy of the model; return the given model exported, and the controller."""
        is_progressive = isinstance(controller, str) and controller == PROGRESSIVE
        saved = find_saved(controller)
        place_slots(
            model,
            self.at,
            first_samples(self.first.sample),
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
        return template, controller

    def identity(self, optimizer: Optimizer) -> dict[str, str]:
        """Return what tells this training from others, to compare with a saved one."""
        digest = hashlib.sha256()
        for name, tensor in self.given.state_dict().items():
            digest.update(f"{name}{list(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        return {
            "the model": f"{type(self.given).__name__} with weights {digest.hexdigest()[:12]}",
            "the metric": self.objective.metric,
            "seed": str(self.seed),
            "the optimizer": type(optimizer).__name__,
            "the learning rate": str(optimizer.param_groups[0]["lr"]),
            "the batch size": str(self.first.size),
        }

    def _result(self, loop: TrainingLoop, template: nn.Module) -> Grown:
        grower, kept, before = loop.grower, loop.kept, loop.before
        was_kept = kept.epoch > 0 and self.objective.is_better(kept.evaluation.value, before.value)
        rebuilt = kept.rebuild(self.given) if was_kept else ExportedEpoch(template, ())
        model, growth = rebuilt.model, rebuilt.growth
        seeds = [(each.slot, name) for each in growth for name in each.blueprints]
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
            growth=growth,
            germinated_after=germination_epochs(loop.timeline, seeds, kept.epoch),
            frozen=find_frozen(self.given, model),
            max_widening=grower.slots.lives.growth_config.max_widening,
            max_parameters=self.max_parameters if grower.was_limited else None,
            was_kept=was_kept,
            controller=grower.controller_name,
            has_costs=self.plan.flop_price > 0.0,
            seconds=loop.seconds,
            total_flops=grower.flops,
            stopped=loop.stopped,
            problems=tuple(loop.problems),
        )
        score = loop.score(kept.evaluation)
        return Grown(
            model=model,
            timeline=loop.timeline,
            summary=summary,
            score=score,
            episode_return=score - self.plan.flop_price * summary.flops,
            sample=self.sample(),
            trace=grower.trace,
        )

    def sample(self) -> Any:
        """Return a few validation inputs."""
        found: Any = first_samples(self.validation.first().sample, 4)
        is_single = isinstance(found, tuple) and len(cast(tuple[Any, ...], found)) == 1
        return cast(Any, found)[0] if is_single else cast(Any, found)


def find_frozen(given: nn.Module, grown: nn.Module) -> tuple[str, ...]:
    """Return the frozen parameters of a grown model that have other shapes than before."""
    shapes = {name: parameter.shape for name, parameter in given.named_parameters()}
    return tuple(
        name
        for name, parameter in grown.named_parameters()
        if not parameter.requires_grad and shapes.get(name, parameter.shape) != parameter.shape
    )


@dataclass(frozen=True)
class GivenOptimizer:
    """The optimizer and the scheduler as the user gave them, copied with the model if bound."""

    optimizer: Any
    scheduler: Any

    @property
    def is_bound(self) -> bool:
        """Whether the optimizer is one of the given model's own."""
        return isinstance(self.optimizer, Optimizer)

    def bind(
        self, model: nn.Module, memo: dict[int, Any], settings: PopulationConfig
    ) -> tuple[Optimizer, Any]:
        """Return them for a copy of the model that ``copy.deepcopy`` made with this memo."""
        if self.is_bound:
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


def copy_all(model: nn.Module, optimizer: Any, scheduler: Any) -> tuple[nn.Module, GivenOptimizer]:
    """Return copies of a model and of the optimizer and scheduler that belong to it."""
    is_known = isinstance(optimizer, (str, Optimizer)) or callable(optimizer)
    if not is_known or (isinstance(optimizer, str) and optimizer not in OPTIMIZERS):
        hint = did_you_mean(optimizer, OPTIMIZERS) if isinstance(optimizer, str) else ""
        raise ConfigError(
            f"optimizer is {optimizer!r}; it must be one of {', '.join(OPTIMIZERS)}, an optimizer "
            f"of the model, or a function of parameters that returns one.{hint}"
        )
    if hasattr(scheduler, "step") and not isinstance(optimizer, Optimizer):
        raise ConfigError(
            "scheduler belongs to an optimizer; give that too, or give a function of an optimizer "
            "that returns the scheduler."
        )
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model is {type_of(model)}; it must be a torch.nn.Module, or a task.")
    require_growable(model)
    require_trainable(model)
    size = count_parameters(model)
    require_memory(BYTES_PER_WEIGHT * size, hosts=1, parameters=size)
    memo: dict[int, Any] = {}
    given = copy_model(model, memo)
    if isinstance(optimizer, Optimizer):
        optimizer = copy.deepcopy(optimizer, memo)
        scheduler = copy.deepcopy(scheduler, memo) if hasattr(scheduler, "step") else scheduler
    return given, GivenOptimizer(optimizer, scheduler)


_OWN_SETTINGS = ("batch_size", "batches_per_epoch")
"""Settings that do not belong to an optimizer."""


def read_settings(
    options: dict[str, Any], optimizer: Any, arguments: Iterable[str]
) -> PopulationConfig:
    """Return the training settings; reject unknown ones, and those of an optimizer if one is given.

    Args:
        options: The settings by name.
        optimizer: The optimizer, a function that makes it, or its name.
        arguments: The names of the other arguments of `esper.grow`.
    """
    settings = [field.name for field in fields(PopulationConfig) if field.name != "optimizer"]
    reject_unknown("grow", options, [*arguments, *settings], _HINTS)
    if isinstance(optimizer, str):
        return PopulationConfig(**options, **cast(Any, {"optimizer": optimizer}))
    unused = [name for name in options if name not in _OWN_SETTINGS]
    if unused and (callable(optimizer) or isinstance(optimizer, Optimizer)):
        raise ConfigError(
            f"{unused[0]} does not go with an optimizer of your own, which would not use it; set "
            "it there, or give the name of an optimizer, such as 'adamw'."
        )
    return PopulationConfig(**options)


_HINTS = {
    "lr": "write learning_rate=",
    "n_epochs": "write epochs=",
    "device": "it trains where the model is; move that, model.to(device)",
}
"""What to write instead of names that users bring from other libraries."""

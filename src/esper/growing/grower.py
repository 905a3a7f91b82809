"""`esper.Grower`: growth inside a training loop of the user's own."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from esper.config.checks import (
    Bounds,
    NonNegativeFloat,
    PositiveInt,
    Seed,
    check,
    rejects_unknown,
)
from esper.config.growth import MAX_EPOCHS, Budget
from esper.errors import ConfigError, GrowerError, SlotError, type_of
from esper.growing.averages import AverageKeeper
from esper.growing.decisions import Decision, Trace, decision_of
from esper.growing.epoch_results import EpochReader, EpochResults, require_function
from esper.growing.own_episode import OwnEpisode
from esper.growing.own_host import OwnHost
from esper.growing.recording import Recording, own_training_config, start_recording
from esper.growing.sampling import SampleCatcher
from esper.growing.slots import place_same_slots, require_trainable
from esper.growth.dry_run import SampleInput
from esper.growth.export import export
from esper.growth.governor import Governor, GovernorReport
from esper.growth.host_slots import HostSlots, own_slots, remove_slots, slots, unwrapped
from esper.growth.modules import count_parameters
from esper.growth.optimizers import as_optimizers, require_vectors
from esper.growth.placement import require_growable
from esper.growth.ranks import Call, Ranks
from esper.growth.saved_models import describe_slots, restore_slots
from esper.growth.sharding import find_mesh, require_whole, reshard
from esper.lifecycle.factored_actions import Op
from esper.lifecycle.slot_state import SlotState
from esper.tamiyo import Controller, make_controller
from esper.tamiyo.controllers.controller import require_controller
from esper.training.lookup import AnyController, find_saved

FORMAT = 3
"""Version of :meth:`Grower.state_dict`."""


class Grower:
    """Grows a model inside a training loop of the user's own, steered by a controller.

    .. code-block:: python

        grower = esper.Grower(model, optimizer, epochs=30)
        for epoch in range(30):
            for x, y in loader:
                loss = loss_fn(model(x), y)
                loss.backward()
                grower.step(loss)
            print(grower.end_epoch(train_loss=..., val_loss=..., score=...))
        model = grower.export()

    The model is changed in place: seeds grow in it, their parameters join the optimizer. The loop
    keeps its data, loss, schedule, precision and parallelism.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(32, 4)
        >>> y = torch.randint(3, (32,))
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> grower = esper.Grower(model, optimizer, epochs=2, controller="heuristic")
        >>> for epoch in range(2):
        ...     loss = nn.functional.cross_entropy(model(x), y)
        ...     loss.backward()
        ...     report = grower.step(loss)
        ...     score = (model(x).argmax(1) == y).float().mean().item()
        ...     decision = grower.end_epoch(score=score)
        >>> plain = grower.export()
    """

    @rejects_unknown("Grower")
    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        epochs: int,
        controller: AnyController = "learned",
        at: Sequence[str] | None = None,
        sample_input: SampleInput | None = None,
        price: float = 0.0,
        scheduler: LRScheduler | Sequence[LRScheduler] | None = None,
        ema: nn.Module | Sequence[nn.Module] | None = None,
        scaler: GradScaler | None = None,
        seed: int = 0,
        max_parameters: int | None = None,
    ) -> None:
        """Start growing a model.

        Args:
            model: Any module; also inside ``torch.compile`` or DistributedDataParallel.
            optimizer: The optimizer of its parameters, or several that share them.
            epochs: Epochs that will be trained.
            controller: ``"learned"``, the folder of a saved controller or of a run, a run, the name
                of a simple controller, or a controller.
            at: Blocks and pairs of layers that get slots; None for the model's own or, without
                any, for up to 12 that :func:`esper.find_slots` finds. Seeds on a single layer
                grow beside it; name its pair to widen the layer itself.
            sample_input: Input of the model, as for :func:`esper.add_slots`, of as many samples as
                a batch has; None to take it from the first training step.
            price: How much score one plain training run costs. At 0 the controller never ends the
                training early.
            scheduler: The learning-rate scheduler, or several, to save with the rest; the loop
                steps it.
            ema: An ``AveragedModel`` of the model, or several, that grow with it.
            scaler: A ``torch.amp.GradScaler``, if the loop scales its loss.
            seed: Seeds new weights and the controller.
            max_parameters: Parameters that the model may have; seeds that would exceed it are
                not planted. None for no limit.

        Raises:
            ConfigError: If an argument is invalid.
            SlotError: If the model has no place for a slot, or the optimizer does not fit.
            ControllerError: If there is no such controller.
        """
        if not isinstance(model, nn.Module):
            raise ConfigError(f"model is {type_of(model)}; it must be a torch.nn.Module.")
        check("price", price, NonNegativeFloat)
        check("seed", seed, Seed)
        check("epochs", epochs, Annotated[int, Bounds(1, MAX_EPOCHS)])
        require_growable(model)
        self.model, self._module = model, unwrapped(model)
        self.budget = Budget(n_epochs=epochs, flop_price=float(price), parameter_rent=0.0)
        self.max_parameters = parameter_limit(max_parameters, self._module)
        require_trainable(self._module)
        self.optimizers = as_optimizers(optimizer, self._module)
        require_vectors(self.optimizers)
        self.schedulers = as_schedulers(scheduler)
        self.seed = seed
        self.epoch = 0
        """Epochs trained."""
        self.trace = Trace()
        """The decision after each epoch."""
        self.was_rolled_back = False
        """Whether the governor rolled the model back in the last epoch."""
        self.last_slots: dict[str, SlotState] = {}
        """The slots in use at the end of the last epoch, before the decision."""
        self.is_finished = False
        """Whether the controller has ended the training."""
        if own_slots(self._module) is None:
            require_whole(self._module)
        if ema is not None and find_mesh(self._module) is not None:
            raise ConfigError("ema does not work with a sharded model; leave it out.")
        self.ranks = Ranks(model)
        """The processes that train the model."""
        self._averages = [AverageKeeper(each, self._module) for each in _as_tuple(ema)]
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._results = EpochReader(self.ranks)
        self._at, self._controller_name = at, controller
        self._recording: Recording | None = None
        self._saved = find_saved(controller)  # an unknown controller fails here
        if self._saved is None and not isinstance(controller, str):
            require_controller(controller)
        self._sample = SampleCatcher(model, self._module, sample_input)
        self._is_started = False
        if own_slots(self._module) is not None or sample_input is not None:
            self._start()

    @property
    def epochs(self) -> int:
        """Epochs of the budget."""
        return self.budget.n_epochs

    @property
    def slots(self) -> HostSlots:
        """The slots of the model.

        Raises:
            GrowerError: If they are found in the first training step, which has not been done.
        """
        self._require_started()
        return self._host.slots

    @property
    def episode(self) -> OwnEpisode:
        """What is known about the training, and the controller that decides by it."""
        self._require_started()
        return self._episode

    @property
    def governor(self) -> Governor:
        """The governor, which blocks updates that would break the model."""
        self._require_started()
        return self._host.governor

    @property
    def was_limited(self) -> bool:
        """Whether ``max_parameters`` ruled out a seed that could have been planted."""
        self._require_started()
        return self._episode.was_limited

    def step(
        self, loss: Tensor, *, accumulate: int = 1, max_grad_norm: float | None = None
    ) -> GovernorReport | None:
        """Check a loss and its gradients, update the parameters and set the gradients to None.

        Call it after ``loss.backward()``, or after ``scaler.scale(loss).backward()`` with the loss
        itself.

        Args:
            loss: The loss of the batch.
            accumulate: Update only in every call of this number, with the sum of the gradients.
            max_grad_norm: Clip the norm of all gradients before the update; seeds that train in
                isolation are clipped by themselves, so that they do not affect the model.

        Returns:
            None; or a report if the model was rolled back to its last good state instead.
        """
        self._require_started()
        return self._host.step(loss, accumulate, max_grad_norm)

    def check_loss(self, loss: Tensor | float) -> GovernorReport | None:
        """Roll the model back if a loss is NaN, infinite or far outside its range.

        For loops that update the parameters themselves: follow it by :meth:`check_gradients`, and
        if both return None by ``optimizer.step()`` and :meth:`commit`.
        """
        self._require_started()
        return self._host.check_loss(loss)

    def check_gradients(self, *, is_synced: bool = True) -> GovernorReport | None:
        """Average the gradients of seeds over all ranks, and roll back if one is not finite.

        With a scaler, gradients that overflow are left to it: it skips the update and lowers its
        scale.

        Args:
            is_synced: Whether DistributedDataParallel has averaged the others; not after
                ``no_sync()``.
        """
        self._require_started()
        return self._host.check_gradients(is_synced=is_synced)

    def commit(self) -> None:
        """Note that the parameters are updated, after both checks were passed."""
        self._require_started()
        self._host.governor.commit()

    def end_epoch(
        self,
        *,
        train_loss: float | None = None,
        val_loss: float | None = None,
        score: float | None = None,
        validate: Callable[[], float] | None = None,
    ) -> Decision:
        """End an epoch: observe the model, let the controller decide, and act.

        With several processes, which all call it, the mean of their values is used; a rank that
        has no score gives none.

        Args:
            train_loss: The mean training loss; None for the mean of the losses that were checked.
            val_loss: The validation loss. One that is far above earlier ones rolls the model back.
            score: The validation score, where more is better, such as the accuracy; None to use
                how much lower the validation loss is than at first, as a share.
            validate: Returns the score of the model as it is; called once for each held seed while
                that seed is switched off, to see what it contributes.

        Raises:
            GrowerError: If there is no score and no validation loss, one is not finite, or the
                budget is used up. Nothing is changed then.
        """
        self._require_started()
        if self.epoch >= self.epochs:
            raise GrowerError(
                f"epoch {self.epoch + 1} is beyond the budget of {self.epochs} epochs; make the "
                "Grower with more epochs, or end the training here."
            )
        require_function(validate)
        if score is None and validate is not None:
            score = validate()
        reshard(self._module)
        host, episode, governor = self._host, self._episode, self._host.governor
        found = self._results.read(train_loss, val_loss, score, host.mean_loss)
        host.require_unchanged()
        host.flush()
        host.refresh()
        validation = self._results.make_validation(validate)
        loss = found.finite_val_loss if found.finite_val_loss is not None else found.train_loss
        scores = host.note_scores(found.score, loss)
        if episode.is_first:
            episode.begin(scores, host.first_loss)
        with host.validated_by(validation):
            given = math.nan if found.train_loss is None else found.train_loss
            episode.end_epoch([0], host.tally, scores, np.array([given]))
        host.note(governor.check_parameters() or governor.check_validation(found.val_loss))
        self.epoch += 1
        problems, n_losses = host.problems, int(host.tally.n_losses[0])
        episode.records.was_restored[0] = bool(problems)
        episode.add_costs(self._count_samples(), n_losses)
        host.slots.tick()
        governor.keep()
        slots = host.refresh()
        self.last_slots = slots.states(0, episode.slot_config)
        decision = self._decide(found)
        host.note_growing()
        host.sync()
        self.was_rolled_back = bool(problems)
        host.begin_epoch()
        self.trace.append(decision)
        if self._recording is not None:
            rate = float(self.optimizers[0].param_groups[0]["lr"])
            self._recording.add_epoch(episode, self.trace, slots, problems, rate)
        return decision

    def begin(self, *, val_loss: float | None = None, score: float | None = None) -> Decision:
        """Let the controller decide before the first epoch too, as it does in its own training.

        Optional. Give what validation says about the model as it is, as for :meth:`end_epoch`.

        Raises:
            GrowerError: If an epoch has been trained, or there is no score.
        """
        self._require_started()
        episode = self._episode
        if self.epoch or not episode.is_first:
            raise GrowerError(
                f"the training has begun, with {self.epoch} epochs; call begin() once and before "
                "the first epoch."
            )
        found = self._results.read(None, val_loss, score, None)
        self._host.refresh()
        episode.begin(self._host.note_scores(found.score, found.finite_val_loss), None)
        self._host.governor.check_validation(found.val_loss)
        decision = self._decide(found)
        self.trace.append(decision)
        if self._recording is not None:
            self._recording.note_decision(episode, decision)
        return decision

    def record(self, folder: str | os.PathLike[str] | None = None) -> Path | None:
        """Record the training as a run from now on, for the dashboard and ``esper show``.

        The record ends with the last epoch, when the controller ends the training, or with
        :meth:`end_recording`. After :meth:`load_state_dict`, name the folder of before to continue
        the record; what it holds of later epochs is deleted. With several processes, the first
        one records.

        Args:
            folder: The folder of the run; by default one in ``runs`` named after the time.

        Returns:
            The folder; None in other processes than the first.

        Raises:
            GrowerError: If the training is being recorded already.
            RunError: If the folder holds another run, or not the epochs before.
            StorageError: If it cannot be written.
        """
        if self._recording is not None and self._recording.is_open:
            raise GrowerError(
                f"the training is recorded in {self._recording.folder.path} already; end that "
                "first with grower.end_recording()."
            )
        if self.ranks.number:
            return None
        config = own_training_config(self._module, self.controller_name, self.budget, self.seed)
        self._recording = start_recording(folder, config, epoch=self.epoch)
        return self._recording.folder.path

    def end_recording(self) -> None:
        """End the record of a training that ends before its last epoch; otherwise do nothing."""
        if self._recording is not None:
            self._recording.close()
            self._recording = None

    @property
    def controller_name(self) -> str:
        """The name of the controller, such as ``learned (universal, 0.2)``."""
        if self._saved is not None:
            return self._saved.label
        given = self._controller_name
        return given if isinstance(given, str) else getattr(given, "name", type(given).__name__)

    def __repr__(self) -> str:
        return (
            f"Grower({type(self._module).__name__}, {self.epoch} of {self.epochs} epochs, "
            f"controller {self.controller_name})"
        )

    @property
    def flops(self) -> float:
        """FLOPs of training so far."""
        self._require_started()
        records = self._episode.records
        return float(records.flops_used[0] * records.reference_flops[0])

    @property
    def batch_flops(self) -> float:
        """FLOPs of training the model as it is on one batch; 0 without a sample of its input."""
        self._require_started()
        return self._sample.batch_size * self._host.sample_flops()

    def export(self) -> nn.Module:
        """Return the model as a plain module, without anything of Esper.

        Seeds that are blended in are part of it, at their alpha.
        """
        return export(self._module)

    def state_dict(self, *, weights: bool = True) -> dict[str, Any]:
        """Return everything that the next epoch depends on: plain values and tensors.

        It can be saved by ``torch.save`` and loaded with ``weights_only=True``. It holds the
        structure, the weights, the optimizers, schedulers, averages and the scaler, the governor,
        the controller's memory and the state of torch's default generator.

        Args:
            weights: Whether to include the model's weights, which other software may save.
        """
        self._require_started()
        reshard(self._module)
        model = self._module.state_dict() if weights else {}
        host = self._host
        return {
            "format": FORMAT,
            "epoch": self.epoch,
            "growth": json.dumps(describe_slots(self.slots)),
            "model": {name: tensor.detach().clone() for name, tensor in model.items()},
            "optimizers": host.keeper.state_dict(),
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "averages": [average.state_dict() for average in host.averages],
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "governor": host.governor.state_dict(),
            "records": self._episode.records.state_dict(),
            "history": self._episode.history_dict(),
            "trace": json.dumps(self.trace.to_json()),
            "first_losses": [host.first_loss, self._results.first_val_loss],
            "is_finished": self.is_finished,
            "random": torch.get_rng_state(),
            "rank": self.ranks.number,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned.

        The Grower must be new, on a model and an optimizer as they were before growth; it adds the
        seeds before it loads the weights.

        Raises:
            GrowerError: If the state is from another version, or this Grower has been used.
            SavedModelError: If the state belongs to another model.
        """
        if state.get("format") != FORMAT:
            raise GrowerError(
                f"the state has format {state.get('format')!r}; this version of Esper reads format "
                f"{FORMAT}."
            )
        if self.epoch or (self._is_started and self._host.tally.n_losses[0]):
            raise GrowerError(
                f"this Grower has trained for {self.epoch} epochs; load the state into a new one, "
                "made with a new model and optimizer."
            )
        found = own_slots(self._module)
        for name, slot in () if found is None else found.items():
            if slot.life.has_seed or slot.life.fossils:
                raise GrowerError(
                    f"slot {name!r} holds a seed; load the state into a model without seeds, which "
                    "are rebuilt from it."
                )
        remove_slots(self._module)
        restore_slots(self._module, json.loads(state["growth"]), self._follow)
        self._start_deciding()
        try:
            self._module.load_state_dict(state["model"])
        except RuntimeError as error:
            raise GrowerError(
                f"the state belongs to another model: {' '.join(str(error).split())}"
            ) from error
        self._host.keeper.load_state_dict(state["optimizers"])
        self._load_parts(state)
        self._episode.load_records(state["records"])
        self._episode.replay(state["history"])
        self.trace = Trace.from_json(json.loads(state["trace"]))
        self.epoch, self.is_finished = int(state["epoch"]), bool(state["is_finished"])
        self._host.first_loss, self._results.first_val_loss = state["first_losses"]
        self._host.governor.load_state_dict(state["governor"])
        if state["rank"] == self.ranks.number:
            torch.set_rng_state(state["random"])

    def _load_parts(self, state: Mapping[str, Any]) -> None:
        for kind, own in (("schedulers", self.schedulers), ("averages", self._host.averages)):
            if len(state[kind]) != len(own):
                raise GrowerError(
                    f"the state has {len(state[kind])} {kind}, but this Grower has {len(own)}; "
                    "make it with the same ones."
                )
            for part, values in zip(cast(Sequence[Any], own), state[kind], strict=True):
                part.load_state_dict(values)
        if self.scaler is not None and state["scaler"] is not None:
            self.scaler.load_state_dict(state["scaler"])

    def _require_started(self) -> None:
        """Find the slots if that has not been done, and count FLOPs once there is a sample."""
        if self._is_started and self._host.meter is not None:
            return
        sample = self._sample.take()
        if not self._is_started:
            if sample is None:
                raise GrowerError(
                    "the model has not been run yet, so its slots are not known; call the model "
                    "before grower.step(loss), or give the Grower a sample_input."
                )
            self._start()
        elif sample is not None:
            self._episode.start_meter(sample)

    def _start(self) -> None:
        for name, value in (("seed", self.seed), ("epochs", self.epochs)):
            advice = f"give every Grower the same {name}"
            self.ranks.require_same(Call.START, name, [float(value)], advice)
        if own_slots(self._module) is None or self._at is not None:
            growth = None if self._saved is None else self._saved.growth
            sample = self._sample.take()
            place_same_slots(self._module, self._at, sample, self.ranks, growth, seed=self.seed)
        self._follow(slots(self._module))
        self._start_deciding()

    def _follow(self, host_slots: HostSlots) -> None:
        """Let optimizers and averages follow the slots of the model."""
        own = [site.name for site in host_slots.sites if site.what != "module"]
        if own and find_mesh(self._module) is not None:
            raise SlotError(
                f"slot {own[0]!r} is in layers that are sharded, which new units and blocks cannot "
                "join; grow the model before fully_shard, use DistributedDataParallel, or give "
                "esper.add_slots the names of blocks, for modules beside them."
            )
        self._host = OwnHost(
            self._module,
            self.optimizers,
            self.ranks,
            scaler=self.scaler,
            averages=self._averages,
            max_parameters=self.max_parameters,
            allow_finish=self.budget.flop_price > 0.0,
        )

    def _start_deciding(self) -> None:
        """Make the governor and the controller of a model whose structure is followed."""
        self._host.watch(self.model)
        self._episode = episode = OwnEpisode(self._host, self.budget, self.ranks)
        saved, given = self._saved, self._controller_name
        if saved is not None:
            episode.controller = saved.make(episode.slot_config)
        elif isinstance(given, str):
            episode.controller = make_controller(given, episode.layout)
        else:
            episode.controller = cast(Controller, given)
        episode.controller.start(1, seed=self.seed)
        sample = self._sample.take()
        if sample is not None:
            episode.start_meter(sample)
        self._is_started = True

    def _count_samples(self) -> int:
        """Return the number of samples of the epoch, on all ranks."""
        (size,) = self.ranks.mean(Call.END_EPOCH, [self._sample.batch_size])
        n_batches = max(1, int(self._host.tally.n_losses[0]))
        return round(n_batches * cast(float, size) * self.ranks.count)

    def _decide(self, found: EpochResults) -> Decision:
        episode, problems = self._episode, self._host.problems
        op, heads, controller = Op.WAIT, list[int](), None
        if self.epoch >= self.epochs:
            why = "the budget is used up"
        elif self.is_finished:
            why = "the controller has ended the training"
        else:
            op, heads, why = episode.choose()
            controller, self.is_finished = episode.controller, op == Op.FINISH
        return decision_of(
            controller,
            op,
            heads,
            self._host.refresh(),
            episode.slot_config,
            epoch=self.epoch,
            epochs=self.epochs,
            train_loss=found.train_loss,
            val_loss=found.finite_val_loss,
            score=found.score,
            why=f"the model was rolled back: {problems[0]}" if problems else why,
            parameters=count_parameters(self._module),
            flops=float(episode.records.flops_used[0]),
        )


def _as_tuple(given: Any) -> tuple[Any, ...]:
    if given is None:
        return ()
    return tuple(cast(Sequence[Any], given)) if isinstance(given, (list, tuple)) else (given,)


def as_schedulers(given: Any) -> tuple[Any, ...]:
    """Return learning-rate schedulers, one or several, as a tuple; reject anything else."""
    schedulers = _as_tuple(given)
    for each in schedulers:
        if not callable(getattr(each, "state_dict", None)):
            raise ConfigError(
                f"scheduler is {type_of(each)}; it must be a learning-rate scheduler of "
                "torch.optim.lr_scheduler, or a list of them."
            )
    return schedulers


def parameter_limit(given: int | None, model: nn.Module) -> int | None:
    """Return the largest number of parameters, if it is at least that of the model."""
    limit = check("max_parameters", given, PositiveInt | None)
    n_given = count_parameters(model)
    if limit is not None and limit < n_given:
        raise ConfigError(
            f"max_parameters is {limit:,}; it must be at least {n_given:,}, the parameters of the "
            "given model."
        )
    return limit

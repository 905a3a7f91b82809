"""The user's model as the only host of its episode: it is trained and acted on like any other."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import compress

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from esper.environment.engine import HostScores
from esper.errors import GrowerError, IllegalActionError, SlotError
from esper.growing.averages import AverageKeeper
from esper.growth.footprint import TrainingMeter
from esper.growth.governor import Governor, GovernorReport
from esper.growth.modules import count_parameters, named_parameters
from esper.growth.ranks import Ranks
from esper.growth.slot_states import Outcome, SlotLife
from esper.lifecycle.factored_actions import GrowthAction, Op
from esper.lifecycle.slot_arrays import SlotArrays
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.populations.host_data import Split
from esper.populations.population import write_fossils, write_slot
from esper.populations.tally import EpochTally
from esper.populations.trained_model import TrainedModel
from esper.tamiyo.policy.action_masks import ActionMasks, compute_array_masks

MaskState = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""What masks depend on: stage, age, whether alpha rests and the gate is open, ``[1, slots]`` each,
and the blueprints that fit, ``[slots, blueprints]``."""


class OwnHost(TrainedModel):
    """The user's model: the only host of its episode, whose data the user's loop has."""

    n_hosts = 1

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        ranks: Ranks,
        *,
        scaler: GradScaler | None,
        averages: Sequence[AverageKeeper],
        max_parameters: int | None,
        allow_finish: bool,
    ) -> None:
        """Let optimizers and averages follow the slots of a model.

        Args:
            model: The model, not what wraps it.
            optimizers: The optimizers of its parameters.
            ranks: The processes that train it.
            scaler: The scaler of its loss, if it is in use.
            averages: Moving averages of its weights.
            max_parameters: The number of parameters that it may have.
            allow_finish: Whether a controller may end the training.
        """
        super().__init__(model, optimizers, scaler=scaler)
        self.averages, self._ranks = averages, ranks
        self._max_parameters, self._allow_finish = max_parameters, allow_finish
        for average in averages:
            average.follow(self.slots)
        self.slots.listeners.append(_weakly(self._note_structure))
        self.slots.action_listeners.append(_weakly(self.note_growing))
        self._note_structure()
        self.problems: list[str] = []
        """Why the governor rolled the model back in this epoch."""
        self.first_loss: float | None = None
        """The first loss of all."""
        self.begin_epoch()
        self.meter: TrainingMeter | None = None
        """Counts FLOPs; None without a sample of the model's input."""
        self._validate: Callable[[], float] | None = None
        """Returns the score of the model as it is; None if nothing can."""
        self.find_value: Callable[[float], float] = lambda score: score
        """Returns what the best epoch is chosen by, of a model that just got a score."""
        self.on_keep: Callable[[bool], None] = lambda with_blended: None
        """Called when the current epoch counts, with or without blended seeds."""
        self._found: dict[bool, HostScores] = {}
        """The last scores: of the model as it is, and with committed seeds only."""

    def watch(self, wrapper: nn.Module) -> None:
        """Let a governor watch the model, whose structure is that to start from, in its wrapper."""
        self.governor = Governor(wrapper, self.optimizers, ranks=self._ranks)
        self.slot_config = replace(self.slots.slot_config, allow_finish=self._allow_finish)
        self._arrays = SlotArrays.blank(1, self.slot_config.max_slots)
        self.note_growing()

    def begin_epoch(self) -> None:
        """Start to add up another epoch."""
        self.problems = []
        self.start_epoch(EpochTally(1, len(self.slots)))

    def check_loss(self, loss: Tensor | float) -> GovernorReport | None:
        """Roll the model back if a loss is bad."""
        report = super().check_loss(loss)
        if report is None and self.first_loss is None:
            self.first_loss = self.governor.loss
        return report

    def update(self, *, is_synced: bool = True) -> GovernorReport | None:
        """Check the gradients and update the parameters.

        Raises:
            GrowerError: If there are no gradients.
        """
        if self._ranks.count == 1 and all(p.grad is None for p in self._known.values()):
            raise GrowerError(
                "no parameter has a gradient, so there is nothing to learn from; call "
                "loss.backward() before grower.step(loss)."
            )
        return super().update(is_synced=is_synced)

    def note(self, report: GovernorReport | None) -> GovernorReport | None:
        """Note whether the model was rolled back."""
        if report is not None:
            self.problems.append(report.reason)
            self.sync()
        return super().note(report)

    def sync(self) -> None:
        """Give averages the structure and the alphas of the model."""
        for average in self.averages:
            average.sync()

    def require_unchanged(self) -> None:
        """Raise if parameters were replaced by hand, or the optimizers lost those of seeds."""
        now = named_parameters(self.model)
        for name, parameter in self._known.items():
            if now.get(name) is not parameter:
                raise GrowerError(
                    f"parameter {name!r} of the model was replaced while it grows; make a new "
                    "Grower after changing the model."
                )
        self.governor.require_seeds()

    def _note_structure(self) -> None:
        """Note which parameters there are, after some were added, removed or replaced."""
        self._known = named_parameters(self.model)
        self.note_growing()

    @property
    def mean_loss(self) -> float | None:
        """The mean of the good losses of this epoch; None without any."""
        return float(self.tally.losses[0]) if self.tally.n_losses[0] else None

    @property
    def can_measure(self) -> bool:
        """Whether the model can be evaluated without a seed."""
        return self._validate is not None

    @contextmanager
    def validated_by(self, validate: Callable[[], float] | None) -> Generator[None]:
        """Evaluate by a function of the loop's own, which may hold on to anything."""
        self._validate = validate
        try:
            yield
        finally:
            self._validate = None

    def slot_arrays(self) -> SlotArrays:
        """Return the state of all slots, as :meth:`refresh` left it."""
        return self._arrays

    def refresh(self) -> SlotArrays:
        """Bring the arrays of the slots up to date and return a copy."""
        now, lives = self._arrays, self.slots.lives
        for number, (name, life) in enumerate(lives.items()):
            at, slot = (0, number), self.slots[name]
            write_slot(now, at, life, self.slot_config, lives.growth_config)
            write_fossils(now, at, life, slot.count_fossils())
            now.parameters[at] = slot.count_live()
            if not life.has_seed:
                now.contribution[at] = math.nan
        return now.copy()

    def sample_flops(self) -> float:
        """Return the FLOPs of training the model as it is on one sample; 0 if unknown."""
        if self.meter is None:
            return 0.0
        with torch.random.fork_rng(devices=[]):
            return self.meter.training_flops()

    def note_scores(self, score: float, loss: float | None) -> HostScores:
        """Return what the loop has found about the model as it is."""
        loss, value = math.nan if loss is None else loss, self.find_value(score)
        now = HostScores(np.array([score]), np.array([loss]), np.zeros(1), np.array([value]))
        self._found = {False: now}
        return now

    def score(
        self,
        hosts: Sequence[int],
        split: Split = "validation",
        *,
        without_slot: int | None = None,
        committed_only: bool = False,
    ) -> HostScores:
        """Score the model by the loop's own validation; there are no other data at the end."""
        if split == "final":
            return self._found[committed_only]
        assert self._validate is not None, "what cannot be evaluated is not asked for"
        left_out = None if without_slot is None else self.slot_config.slot_ids[without_slot]

        def is_left_out(name: str, life: SlotLife) -> bool:
            return name == left_out or (committed_only and life.is_growing)

        with self.slots.without(is_left_out):
            score = self._validate()
        scores, nothing = np.array([score]), np.zeros(1)
        value = np.array([self.find_value(score)])
        found = HostScores(scores, np.full(1, math.nan), nothing, value)
        if committed_only:
            self._found[True] = found
        return found

    def keep(self, host: int, *, with_blended: bool) -> None:
        """Let the loop know that the current epoch counts."""
        self.on_keep(with_blended)

    def slot_config_of(self, host: int) -> SlotConfig:
        """Return the slots of the model."""
        return self.slot_config

    def apply(self, host: int, action: GrowthAction) -> Outcome:
        """Carry out an action; one that the model has no room for is refused.

        Raises:
            IllegalActionError: If the state of the slots does not allow it.
        """
        why = self._find_excess(action)
        if not why:
            try:
                return self.slots.apply(action)
            except IllegalActionError:
                raise
            except SlotError as error:  # the model is as it was
                why = str(error)
        return Outcome(action, why)

    def mask_state(self) -> MaskState:
        """Return what masks depend on."""
        now = self._arrays.copy()
        state = now.stage, now.age_epochs, now.alpha_at_rest, now.is_gate_open
        return (*state, self._affordable())

    def masks(self) -> ActionMasks:
        """Return the legal actions."""
        return self.masks_of(*self.mask_state())

    def masks_of(
        self,
        stage: np.ndarray,
        age: np.ndarray,
        at_rest: np.ndarray,
        is_open: np.ndarray,
        fits: np.ndarray,
    ) -> ActionMasks:
        """Return the legal actions in a state of the slots."""
        config = self.slot_config
        names = {
            slot: frozenset(compress(config.blueprints, row))
            for slot, row in zip(config.slot_ids, fits, strict=True)
        }
        given = (stage, age, at_rest, is_open)
        states, ages, rests, gates = (torch.from_numpy(values) for values in given)
        return compute_array_masks(states, ages, rests, replace(config, fits=names), gates)

    def fitting(self) -> np.ndarray:
        """Return the blueprints that fit each slot, ``[slots, blueprints]``."""
        config = self.slot_config
        fits = [[config.does_fit(name, slot) for name in config.blueprints] for slot in self.slots]
        return np.array(fits, np.bool_)

    def _affordable(self) -> np.ndarray:
        """Return the blueprints that fit each slot and the limit of parameters."""
        found = self.fitting()
        if self._max_parameters is None:
            return found
        left = self._max_parameters - count_parameters(self.model)
        for number, slot in enumerate(self.slots.values()):
            if slot.stage == Stage.DORMANT:
                for column in np.flatnonzero(found[number]).tolist():
                    size = slot.count_new(self.slot_config.blueprints[column])
                    found[number, column] = size <= left
        return found

    def _find_excess(self, action: GrowthAction) -> str:
        """Return why a seed would make the model too large; empty if it would not."""
        if self._max_parameters is None or action.op != Op.GERMINATE:
            return ""
        config = self.slot_config
        at = config.slot_index(action.slot), config.blueprint_index(action.blueprint)
        if self._affordable()[at] or not config.does_fit(action.blueprint, action.slot):
            return ""
        return (
            f"{action.blueprint} in {action.slot} would make more than max_parameters, "
            f"{self._max_parameters:,}"
        )


def _weakly(method: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls a method as long as its object lives, without keeping it."""
    known = weakref.WeakMethod(method)

    def call() -> None:
        found = known()
        if found is not None:
            found()

    return call

"""The user's model as the host of an episode: acting on it, and evaluating it."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import compress

import numpy as np
import torch
from torch import nn

from esper.environment.engine import HostScores
from esper.errors import IllegalActionError, SlotError
from esper.growth.footprint import TrainingMeter
from esper.growth.host_slots import HostSlots
from esper.growth.modules import count_parameters
from esper.growth.slot_states import Outcome, SlotLife
from esper.lifecycle.factored_actions import GrowthAction, Op, decode_action
from esper.lifecycle.slot_arrays import SlotArrays
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.populations.host_data import Split
from esper.populations.population import write_fossils, write_slot
from esper.tamiyo.policy.action_masks import ActionMasks, compute_array_masks

SlotState = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""What masks depend on: stage, age, whether alpha rests and the gate is open, ``[1, slots]`` each,
and the blueprints that fit, ``[slots, blueprints]``."""


class OwnHost:
    """The user's model: the only host of its episode."""

    n_hosts = 1

    def __init__(
        self,
        model: nn.Module,
        host_slots: HostSlots,
        slot_config: SlotConfig,
        max_parameters: int | None,
    ) -> None:
        """Take a model with slots, and the number of parameters that it may have."""
        self.model, self.slots = model, host_slots
        self.slot_config = slot_config
        self._max_parameters = max_parameters
        self._arrays = SlotArrays.blank(1, slot_config.max_slots)
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

    def evaluate(
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

    def apply(self, host: int, choices: Sequence[int]) -> Outcome:
        """Carry out an action; one that the model has no room for is refused.

        Raises:
            IllegalActionError: If the state of the slots does not allow it.
        """
        action = decode_action(choices, self.slot_config)
        why = self._find_excess(action)
        if not why:
            try:
                return self.slots.apply(action)
            except IllegalActionError:
                raise
            except SlotError as error:  # the model is as it was
                why = str(error)
        return Outcome(action, was_done=False, reason=why)

    def mask_state(self) -> SlotState:
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
        return compute_array_masks(
            torch.from_numpy(stage),
            torch.from_numpy(age),
            torch.from_numpy(at_rest),
            replace(config, fits=names),
            torch.from_numpy(is_open),
        )

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

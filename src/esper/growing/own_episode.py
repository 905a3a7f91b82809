"""The episode of the user's model: what its controller sees, and what it chooses."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import compress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from esper.config.growth import Budget
from esper.environment.engine import Episodes, HostScores
from esper.errors import IllegalActionError, SlotError
from esper.growth.footprint import TrainingMeter
from esper.growth.host_slots import HostSlots, slot_size
from esper.growth.modules import count_parameters
from esper.growth.ranks import Call, Ranks
from esper.growth.slot_states import Outcome, SlotLife
from esper.lifecycle.factored_actions import GrowthAction, Op, decode_action
from esper.lifecycle.slot_arrays import SlotArrays
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.populations.host_data import Split
from esper.populations.population import write_fossils, write_slot
from esper.tamiyo import Controller
from esper.tamiyo.policy.action_masks import ActionMasks, compute_array_masks
from esper.tamiyo.policy.observations import ObservationLayout

MaskState = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
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


_EVERY = np.ones(1, np.bool_)


class OwnEpisode(Episodes[OwnHost]):
    """Shows a controller how a training goes, and carries out what it chooses.

    With several processes, the choice of rank 0 is carried out on all of them.
    """

    controller: Controller

    def __init__(
        self,
        model: nn.Module,
        host_slots: HostSlots,
        budget: Budget,
        ranks: Ranks,
        max_parameters: int | None,
    ) -> None:
        may_finish = budget.flop_price > 0.0
        self.slot_config = replace(host_slots.slot_config, allow_finish=may_finish)
        hosts = OwnHost(model, host_slots, self.slot_config, max_parameters)
        super().__init__(hosts, ObservationLayout(self.slot_config))
        self.settles = False
        self._ranks, self._budget = ranks, budget
        self._plain_flops = 0.0
        """FLOPs of training the given model on one sample."""
        records = self.records
        records.clear(0)
        records.n_epochs[0], records.flop_price[0] = budget.n_epochs, budget.flop_price
        n_grown = sum(slot.count_live() + slot.count_fossils() for slot in host_slots.values())
        records.n_parameters[0] = count_parameters(model) - n_grown
        records.set_slot_sizes(0, [slot_size(slot) for slot in host_slots.values()])
        self._history: list[list[np.ndarray]] = []
        """What the controller saw, by decision: the observation and what masks depend on."""

    @property
    def is_first(self) -> bool:
        """Whether the controller has not decided anything yet."""
        return not self._history

    @property
    def was_limited(self) -> bool:
        """Whether the limit of parameters ruled out a seed in a decision."""
        fits = self.hosts.fitting()
        return any(bool((fits & ~seen[-1]).any()) for seen in self._history)

    def start_meter(self, sample: Any) -> None:
        """Count FLOPs from now on, with a sample of the model's input."""
        self.hosts.meter = TrainingMeter(self.hosts.model, sample)
        self._plain_flops = self.hosts.sample_flops()

    def begin(self, found: HostScores, first_loss: float | None) -> None:
        """Record how the model does before the controller's first decision.

        Later losses are relative to its first training loss, if there was one, which is closer to
        what the loss was before training.
        """
        self.start([0], found)
        if first_loss is not None:
            self.records.first_loss[0] = first_loss

    def add_costs(self, n_samples: int, n_batches: int) -> None:
        """Record what the training of an epoch cost."""
        records, hosts = self.records, self.hosts
        records.n_samples[0], records.n_batches[0] = n_samples, n_batches
        if hosts.meter is None:
            share = count_parameters(hosts.model) / max(1, int(records.n_parameters[0]))
            records.flops_used[0] += share / self._budget.n_epochs
            return
        if records.reference_flops[0] == 0.0:
            records.reference_flops[0] = n_samples * self._plain_flops * self._budget.n_epochs
        spent = n_samples * hosts.sample_flops()
        records.flops_used[0] += spent / max(1.0, float(records.reference_flops[0]))

    def choose(self) -> tuple[Op, list[int], str]:
        """Let the controller choose an action and carry it out.

        Returns:
            The op that was done, the choice of each head, and why the action was refused, if so.
        """
        self.hosts.refresh()
        observation, seen = self.observe(), self.hosts.mask_state()
        masks = self.hosts.masks_of(*seen)
        chosen = self.controller.act(observation, masks, np.array([self.is_first]))[0]
        heads = self._ranks.from_first(Call.DECIDE, chosen.tolist())
        self._history.append([observation, *seen])
        # An illegal choice is an error here, instead of a wait.
        ops, refusals = self.act(np.array([heads]), _EVERY, _EVERY)
        return Op(int(ops[0])), heads, refusals.get(0, "")

    def load_records(self, state: dict[str, Tensor]) -> None:
        """Continue from the records of a training, which may have had fewer epochs to train."""
        records, n_epochs = self.records, self._budget.n_epochs
        records.load_state_dict(state)
        times = n_epochs / int(records.n_epochs[0])
        records.n_epochs[0] = n_epochs
        records.reference_flops[0] *= times
        records.flops_used[0] /= times

    def history_dict(self) -> dict[str, Tensor]:
        """Return what the controller saw in all decisions."""
        columns = zip(*self._history, strict=True) if self._history else ()
        names = ("observations", "stage", "age", "at_rest", "gate", "fits")
        return {
            name: torch.from_numpy(np.stack(column))
            for name, column in zip(names, columns, strict=False)
        }

    def replay(self, history: Mapping[str, Tensor]) -> None:
        """Bring the controller to the memory that it had, by showing it the same again."""
        self._history = [
            [part.numpy() for part in step] for step in zip(*history.values(), strict=True)
        ]
        for number, (observation, *states) in enumerate(self._history):
            stage, age, at_rest, gate, fits = states
            masks = self.hosts.masks_of(stage, age, at_rest, gate, fits)
            self.controller.act(observation, masks, np.array([number == 0]))

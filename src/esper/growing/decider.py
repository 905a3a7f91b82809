"""The controller of one training: what it sees, what it may do, and what it chose."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from esper.config.growth import Budget
from esper.environment.records import EpisodeRecords
from esper.errors import IllegalActionError, SlotError
from esper.growth.footprint import TrainingMeter
from esper.growth.host_slots import HostSlots, slot_size
from esper.growth.modules import count_parameters
from esper.growth.ranks import Call, Ranks
from esper.lifecycle.factored_actions import WAIT, GrowthAction, Op, decode_action
from esper.lifecycle.slot_arrays import SlotArrays
from esper.lifecycle.stages import Stage
from esper.populations.population import write_fossils, write_slot
from esper.tamiyo import Controller
from esper.tamiyo.controllers.learned import expected_return, expects_gain, op_probabilities
from esper.tamiyo.policy.action_masks import ActionMasks, compute_array_masks
from esper.tamiyo.policy.observations import ObservationLayout


class EpochSums:
    """What the steps of an epoch add up to."""

    def __init__(self) -> None:
        self.n_losses = self.n_norms = 0
        self._loss = self._norm = self._norm_squares = 0.0
        self._seed_norms: dict[str, float] = {}
        self.problems: list[str] = []
        """Why the governor rolled the model back."""

    @property
    def mean_loss(self) -> float | None:
        """The mean loss; None without any."""
        return self._loss / self.n_losses if self.n_losses else None

    @property
    def mean_norm(self) -> float:
        """The mean norm of the gradients; NaN without any."""
        return self._norm / self.n_norms if self.n_norms else math.nan

    @property
    def gradient_noise(self) -> float:
        """The standard deviation of the norms relative to their mean; NaN without any."""
        mean = self.mean_norm
        spread = self._norm_squares / max(1, self.n_norms) - mean * mean
        return math.sqrt(max(spread, 0.0)) / mean if mean else mean

    def add_loss(self, loss: float) -> None:
        """Add the loss of a batch."""
        self._loss += loss
        self.n_losses += 1

    def add_norms(self, norm: float, seed_norms: Iterable[tuple[str, float]]) -> None:
        """Add the norm of all gradients, and those of each seed's, by slot."""
        self._norm += norm
        self._norm_squares += norm * norm
        self.n_norms += 1
        for name, own in seed_norms:
            self._seed_norms[name] = self._seed_norms.get(name, 0.0) + own

    def mean_seed_norms(self, names: Iterable[str]) -> list[float]:
        """Return the mean norm of the gradients of each slot's seed; 0 without one."""
        return [self._seed_norms.get(name, 0.0) / max(1, self.n_norms) for name in names]


@dataclass(frozen=True)
class Choice:
    """What a controller chose, and what became of it."""

    op: Op = Op.WAIT
    """What was done."""
    action: GrowthAction = WAIT
    """What was chosen."""
    why: str = ""
    """Why it was not done; empty if it was."""
    probabilities: dict[str, float] = field(default_factory=dict[str, float])
    """How likely each legal op was."""
    heads: list[int] = field(default_factory=list[int])
    """The choice of each head; empty if the controller was not asked."""
    value: float | None = None
    """The return that the controller expected from then on; None if it has no estimate."""
    is_gain: bool = False
    """Whether that is relative to the same model with no growth."""


class Decider:
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
        self.model, self._slots, self._ranks = model, host_slots, ranks
        self._budget, self._max_parameters = budget, max_parameters
        may_finish = budget.flop_price > 0.0
        self.slot_config = replace(host_slots.slot_config, allow_finish=may_finish)
        self.layout = ObservationLayout(self.slot_config)
        self.meter: TrainingMeter | None = None
        """Counts FLOPs; None without a sample of the model's input."""
        self._plain_flops = 0.0
        """FLOPs of training the given model on one sample."""
        self.records = EpisodeRecords.blank(SlotArrays.blank(1, self.slot_config.max_slots))
        self.records.clear(0)
        self.records.n_epochs[0], self.records.flop_price[0] = budget.n_epochs, budget.flop_price
        n_grown = sum(slot.count_live() + slot.count_fossils() for slot in host_slots.values())
        self.records.n_parameters[0] = count_parameters(model) - n_grown
        self.records.set_slot_sizes(0, [slot_size(slot) for slot in host_slots.values()])
        self._history: list[list[np.ndarray]] = []
        """What the controller saw, by decision: the observation, the state of the slots, and the
        blueprints that fit."""

    @property
    def is_first(self) -> bool:
        """Whether the controller has not decided anything yet."""
        return not self._history

    def start_meter(self, sample: Any) -> None:
        """Count FLOPs from now on, with a sample of the model's input."""
        self.meter = TrainingMeter(self.model, sample)
        self._plain_flops = self.sample_flops()

    def sample_flops(self) -> float:
        """Return the FLOPs of training the model as it is on one sample; 0 if unknown."""
        if self.meter is None:
            return 0.0
        with torch.random.fork_rng(devices=[]):
            return self.meter.training_flops()

    def start(self, score: float, loss: float | None, first_loss: float | None) -> None:
        """Record how the model does before the controller's first decision.

        Later losses are relative to its first training loss, if there was one, which is closer to
        what the loss was before training.
        """
        self.records.start_scores([0], _clipped(score), _array(loss))
        if first_loss is not None:
            self.records.first_loss[0] = first_loss

    def add_epoch(
        self,
        sums: EpochSums,
        n_samples: int,
        train_loss: float | None,
        loss: float | None,
        score: float,
    ) -> None:
        """Record an epoch for the controller, and what it cost."""
        records = self.records
        records.n_samples[0], records.n_batches[0] = n_samples, sums.n_losses
        losses, norm = (_array(loss), _array(train_loss)), _array(sums.mean_norm)
        records.add_epoch([0], _clipped(score), *losses, norm)
        records.gradient_noise[0] = sums.gradient_noise
        records.slots.gradient_norm[0] = sums.mean_seed_norms(self._slots)
        records.was_restored[0] = bool(sums.problems)
        if self.meter is None:
            share = count_parameters(self.model) / max(1, int(records.n_parameters[0]))
            records.flops_used[0] += share / self._budget.n_epochs
            return
        if records.reference_flops[0] == 0.0:
            records.reference_flops[0] = n_samples * self._plain_flops * self._budget.n_epochs
        spent = n_samples * self.sample_flops()
        records.flops_used[0] += spent / max(1.0, float(records.reference_flops[0]))

    def note_contributions(self, found: Mapping[str, float]) -> None:
        """Record by how much seeds improve the score, as measured after this epoch."""
        self.records.slots.is_measured[0] = [name in found for name in self._slots]
        for number, name in enumerate(self._slots):
            if name in found:
                self.records.slots.contribution[0, number] = found[name]

    def choose(self) -> Choice:
        """Let the controller choose an action, and carry it out."""
        now = self.slot_arrays()
        observation = self.layout.encode(self.records, now)
        fits = self._affordable()
        seen = [now.stage, now.age_epochs, now.alpha_at_rest, now.is_gate_open, fits]
        masks = self._masks(*seen)
        chosen = self.controller.act(observation, masks, np.array([self.is_first]))[0]
        odds, value = op_probabilities(self.controller), expected_return(self.controller)
        heads = self._ranks.from_first(Call.DECIDE, chosen.tolist())
        action = decode_action(heads, self.slot_config)
        self._history.append([observation, *seen])
        why = self._find_excess(action, fits)
        if not why:
            try:
                why = self._slots.apply(action).reason
            except IllegalActionError:
                raise
            except SlotError as error:  # the model is as it was
                why = str(error)
        op = Op.WAIT if why else action.op
        self.records.last_op[0], self.records.was_refused[0] = op, bool(why)
        return Choice(op, action, why, odds, heads, value, expects_gain(self.controller))

    def _fitting(self) -> np.ndarray:
        """Return the blueprints that fit each slot, ``[slots, blueprints]``."""
        config = self.slot_config
        fits = [[config.does_fit(name, slot) for name in config.blueprints] for slot in self._slots]
        return np.array(fits, np.bool_)

    def _affordable(self) -> np.ndarray:
        """Return the blueprints that fit each slot and the limit of parameters."""
        found = self._fitting()
        if self._max_parameters is None:
            return found
        left = self._max_parameters - count_parameters(self.model)
        for number, slot in enumerate(self._slots.values()):
            if slot.stage == Stage.DORMANT:
                for column in np.flatnonzero(found[number]).tolist():
                    size = slot.count_new(self.slot_config.blueprints[column])
                    found[number, column] = size <= left
        return found

    def _find_excess(self, action: GrowthAction, fits: np.ndarray) -> str:
        """Return why a seed would make the model too large; empty if it would not."""
        if self._max_parameters is None or action.op != Op.GERMINATE:
            return ""
        config = self.slot_config
        at = config.slot_index(action.slot), config.blueprint_index(action.blueprint)
        if fits[at] or not config.does_fit(action.blueprint, action.slot):
            return ""
        return (
            f"{action.blueprint} in {action.slot} would make more than max_parameters, "
            f"{self._max_parameters:,}"
        )

    @property
    def was_limited(self) -> bool:
        """Whether the limit of parameters ruled out a seed in a decision."""
        fits = self._fitting()
        return any(bool((fits & ~seen[-1]).any()) for seen in self._history)

    def _masks(
        self,
        stage: np.ndarray,
        age: np.ndarray,
        at_rest: np.ndarray,
        is_open: np.ndarray,
        fits: np.ndarray,
    ) -> ActionMasks:
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

    def slot_arrays(self) -> SlotArrays:
        """Return a copy of the state of the slots, after bringing the records up to date."""
        now, lives = self.records.slots, self._slots.lives
        for number, (name, life) in enumerate(lives.items()):
            at, slot = (0, number), self._slots[name]
            write_slot(now, at, life, self.slot_config, lives.growth_config)
            write_fossils(now, at, life, slot.count_fossils())
            now.parameters[at] = slot.count_live()
            if not life.has_seed:
                now.contribution[at] = np.nan
        return now.copy()

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
            self.controller.act(observation, self._masks(*states), np.array([number == 0]))


def _array(value: float | None) -> np.ndarray:
    """Return a number as an array; NaN if it is not known."""
    return np.array([math.nan if value is None else value])


def _clipped(score: float) -> np.ndarray:
    """Return a score as controllers see it."""
    return np.array([min(1.0, max(-1.0, score))])

"""The episode of the user's model: what its controller sees, and what it chooses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from esper.config.growth import Budget
from esper.environment.engine import Episodes, HostScores
from esper.growing.own_host import OwnHost
from esper.growth.footprint import TrainingMeter
from esper.growth.host_slots import slot_size
from esper.growth.modules import count_parameters
from esper.growth.ranks import Call, Ranks
from esper.lifecycle.factored_actions import Op
from esper.tamiyo import Controller
from esper.tamiyo.policy.observations import ObservationLayout

_EVERY = np.ones(1, np.bool_)


class OwnEpisode(Episodes[OwnHost]):
    """Shows a controller how a training goes, and carries out what it chooses.

    With several processes, the choice of rank 0 is carried out on all of them.
    """

    controller: Controller

    def __init__(self, host: OwnHost, budget: Budget, ranks: Ranks) -> None:
        """Start the episode of a model that a governor watches."""
        self.slot_config = host.slot_config
        super().__init__(host, ObservationLayout(self.slot_config))
        self.settles = False
        self._ranks, self._budget = ranks, budget
        self._plain_flops = 0.0
        """FLOPs of training the given model on one sample."""
        records = self.records
        records.clear(0)
        records.n_epochs[0], records.flop_price[0] = budget.n_epochs, budget.flop_price
        own = host.slots.values()
        n_grown = sum(slot.count_live() + slot.count_fossils() for slot in own)
        records.n_parameters[0] = count_parameters(host.model) - n_grown
        records.set_slot_sizes(0, [slot_size(slot) for slot in own])
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

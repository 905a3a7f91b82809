"""A model that grows in a loop: what its controller sees, and what was spent on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from esper.config.growth import Budget
from esper.environment.episodes import SlotOutcome
from esper.environment.records import EpisodeRecords
from esper.errors import GrowerError
from esper.growth.footprint import TrainingMeter
from esper.growth.governor import Governor
from esper.growth.host_slots import slots
from esper.growth.modules import count_parameters
from esper.growth.optimizers import OptimizerKeeper
from esper.growth.ranks import Ranks
from esper.growth.seed_slot import slot_size
from esper.lifecycle.factored_actions import GrowthAction, Op
from esper.lifecycle.stages import Stage
from esper.populations import SlotArrays
from esper.tamiyo import Controller
from esper.tamiyo.policy.action_masks import ActionMasks, compute_array_masks
from esper.tamiyo.policy.observations import ObservationLayout


class GrowingModel:
    """A model with slots, its optimizers and governor, and the controller that steers it."""

    controller: Controller

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[Any],
        budget: Budget,
        ranks: Ranks,
    ) -> None:
        self.model = model
        self.budget = budget
        self.slots = slots(model)
        may_finish = budget.flop_price > 0.0
        self.slot_config = replace(self.slots.slot_config, allow_finish=may_finish)
        self.layout = ObservationLayout(self.slot_config)
        self.keeper = OptimizerKeeper(model, optimizers, schedulers=schedulers)
        self.governor = Governor(model, optimizers, ranks=ranks)
        self.meter: TrainingMeter | None = None
        self._plain_flops = 0.0
        """FLOPs of training the given model on one sample."""
        n_slots = self.slot_config.max_slots
        self.records = EpisodeRecords.blank(1, n_slots)
        self.records.clear(0)
        self.records.n_parameters[0] = count_parameters(model) - self.n_grown()
        self.records.set_slot_sizes(0, [slot_size(slot) for slot in self.slots.values()])
        self._history: list[list[np.ndarray]] = []
        """What the controller saw: the observation and the state of the slots, by decision."""
        self._places = [(site.modules[0], self.slots[site.name].block) for site in self.slots.sites]

    @property
    def is_first(self) -> bool:
        """Whether the controller has not decided anything yet."""
        return not self._history

    def grown_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of all seeds and fossils."""
        return self.slots.grown_parameters()

    def clipped_together(self) -> list[list[nn.Parameter]]:
        """Return the parameters by whose gradients' norm each is clipped.

        A seed that trains in isolation is apart, because it must not change how the host learns.
        """
        apart = [s.seed_parameters() for s in self.slots.values() if s.stage == Stage.TRAINING]
        isolated = {id(parameter) for part in apart for parameter in part}
        return [[p for p in self.model.parameters() if id(p) not in isolated], *apart]

    def n_grown(self) -> int:
        """Return the number of parameters of all seeds and fossils."""
        return sum(parameter.numel() for parameter in self.grown_parameters())

    def observe(self) -> tuple[np.ndarray, ActionMasks]:
        """Return the observation of the model and its legal actions."""
        self.count_seeds()
        arrays = self._arrays()
        hosts = self.records.host_facts(self.budget)
        observation = self.layout.encode(hosts, self.records.slot_facts(arrays))
        self._seen = [arrays.stage, arrays.age_epochs, arrays.alpha_at_rest, arrays.is_gate_open]
        return observation, self._masks(*self._seen)

    def _masks(self, *states: np.ndarray) -> ActionMasks:
        stage, age, at_rest, is_open = (torch.from_numpy(values) for values in states)
        return compute_array_masks(stage, age, at_rest, self.slot_config, is_open)

    def remember(self, observation: np.ndarray) -> None:
        """Keep what the controller saw, to bring another one to the same memory."""
        self._history.append([observation, *self._seen])

    def history_dict(self) -> dict[str, Tensor]:
        """Return what the controller saw in all decisions."""
        columns = zip(*self._history, strict=True) if self._history else ()
        names = ("observations", "stage", "age", "at_rest", "gate")
        return {
            name: torch.from_numpy(np.stack(column))
            for name, column in zip(names, columns, strict=False)
        }

    def replay(self, history: Mapping[str, Tensor], seed: int) -> None:
        """Bring the controller to the memory that it had, by showing it the same again."""
        self.controller.start(1, seed=seed)
        self._history = [
            [part.numpy() for part in step] for step in zip(*history.values(), strict=True)
        ]
        for number, (observation, *states) in enumerate(self._history):
            self.controller.act(observation, self._masks(*states), np.array([number == 0]))

    def find_excess(self, action: GrowthAction, max_parameters: int | None) -> str:
        """Return why a seed would make the model too large; empty if it would not."""
        if max_parameters is None or action.op != Op.GERMINATE:
            return ""
        size = count_parameters(self.model) + self.slots[action.slot].count_new(action.blueprint)
        if size <= max_parameters:
            return ""
        return (
            f"{action.blueprint} in {action.slot} would make {size:,} parameters, and "
            f"max_parameters is {max_parameters:,}"
        )

    def count_seeds(self) -> None:
        """Record the parameters of each slot."""
        for number, slot in enumerate(self.slots.values()):
            sizes = [parameter.numel() for parameter in slot.grown_parameters()]
            self.records.seed_parameters[0, number] = sum(sizes)
            if slot.seed is None:
                self.records.contribution[0, number] = 0.0

    def add_flops(self, n_samples: int) -> None:
        """Add the FLOPs of an epoch, relative to plain training for the whole budget."""
        if self.meter is None:
            share = count_parameters(self.model) / max(1, int(self.records.n_parameters[0]))
            self.records.paid_flops[0] += share / self.budget.n_epochs
            return
        with torch.random.fork_rng(devices=[]):
            spent = n_samples * self.meter.training_flops()
        if self.records.reference_flops[0] == 0.0:
            self.records.reference_flops[0] = n_samples * self._plain_flops * self.budget.n_epochs
        self.records.paid_flops[0] += spent / max(1.0, float(self.records.reference_flops[0]))

    def start_meter(self, sample: Any) -> None:
        """Count FLOPs from now on, with a sample of the model's input."""
        self.meter = TrainingMeter(self.model, sample)
        with torch.random.fork_rng(devices=[]):
            self._plain_flops = self.meter.training_flops()

    def require_unchanged(self) -> None:
        """Raise if blocks with slots were replaced, or the optimizers lost parameters.

        Raises:
            GrowerError: Naming the block or the parameter.
        """
        for name, block in self._places:
            found: Any = self.model.get_submodule(name)
            while found is not block and hasattr(found, "block"):
                found = found.block
            if found is not block:
                raise GrowerError(
                    f"block {name!r} of the model was replaced while it grows; make a new Grower "
                    "after changing the model."
                )
        members = {
            id(p) for each in self.keeper.optimizers for g in each.param_groups for p in g["params"]
        }
        for name, parameter in self.model.named_parameters():
            if id(parameter) not in members and id(parameter) in {
                id(p) for p in self.grown_parameters()
            }:
                raise GrowerError(
                    f"the optimizers lack {name!r}, which was grown; they were changed behind the "
                    "Grower's back."
                )

    def slot_outcome(self) -> SlotOutcome:
        """Return the slots as they are, as the environment does after a step."""
        self.count_seeds()
        arrays, records = self._arrays(), self.records
        return SlotOutcome(
            stage=arrays.stage,
            blueprint=arrays.blueprint,
            alpha=arrays.alpha,
            contribution=records.contribution.copy(),
            parameters=records.seed_parameters - arrays.fossil_parameters,
            n_fossils=arrays.n_fossils,
            fossil_parameters=arrays.fossil_parameters,
        )

    def _arrays(self) -> SlotArrays:
        arrays = SlotArrays.blank(1, self.slot_config.max_slots)
        lives = self.slots.lives
        for number, (name, life) in enumerate(lives.items()):
            arrays.write(0, name, life, self.slot_config, lives.growth_config)
            fossils = self.slots[name].fossils
            arrays.write_fossils((0, number), life, count_parameters(fossils))
        return arrays

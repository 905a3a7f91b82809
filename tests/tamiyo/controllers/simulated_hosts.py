"""Hosts whose seeds follow the real rules but whose training is simulated.

Shapes: N = hosts, S = slots.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from esper.config.growth import GrowthConfig
from esper.growth.slot_states import SlotLife, SlotStates
from esper.lifecycle.factored_actions import BlendStyle, GrowthAction, Op, decode_action
from esper.lifecycle.slot_arrays import SlotArrays
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.populations.population import write_slot
from esper.tamiyo import Controller
from esper.tamiyo.policy.action_masks import ActionMasks, compute_array_masks
from esper.tamiyo.policy.observations import HISTORY, HostFacts, ObservationLayout


class Keeper:
    """Holds no modules; refuses a given number of times to let a seed start."""

    def __init__(self) -> None:
        self.n_refusals = 0

    def add_seed(self, slot: str, action: GrowthAction) -> None:
        pass

    def remove_seed(self, slot: str) -> None:
        pass

    def restyle_seed(self, slot: str, style: BlendStyle) -> None:
        pass

    def commit_seed(self, slot: str) -> None:
        pass

    def absorb_seed(self, slot: str) -> int:
        return 0

    starts_blended = False
    can_blend = True

    def __getitem__(self, slot: str) -> Keeper:
        return self

    def is_full(self) -> bool:
        return False

    def find_start_problem(self) -> str | None:
        self.n_refusals -= 1
        return "it may not start yet" if self.n_refusals >= 0 else None

    def explain_misfit(self, blueprint: str) -> str:
        return "it is another kind"


class SimulatedHosts:
    """Hosts for a controller, one action and one epoch at a time."""

    def __init__(self, slot_config: SlotConfig, n_hosts: int = 1, **growth: int) -> None:
        self.layout = ObservationLayout(slot_config)
        self.config = slot_config
        self.arrays = SlotArrays.blank(n_hosts, slot_config.max_slots)
        self.lives = [SlotStates(slot_config, GrowthConfig(**growth)) for _ in range(n_hosts)]
        self.keeper = Keeper()
        for host, lives in enumerate(self.lives):
            lives.on_change = lambda slot, life, host=host: self._note(host, slot, life)
        zeros = np.zeros(n_hosts, np.int64)
        self.host_facts: dict[str, Any] = {"epoch": zeros, "last_op": zeros - 1}
        self.host_facts |= {"n_epochs": 16, "first_loss": 1.0, "gradient_norm": 1.0}
        self.score: Any = 0.0
        self.older_score: Any = 0.0
        """The score of all earlier epochs."""
        self.loss = self.older_loss = 1.0
        self.slot_facts: dict[str, Any] = {"gradient_norm": 1.0, "is_measured": True}
        self.log: list[list[str]] = [[] for _ in range(n_hosts)]
        """The op of each epoch of each host; a question mark where a gate refused."""

    @property
    def n_hosts(self) -> int:
        return len(self.lives)

    def observe(self) -> np.ndarray:
        scores = self._history(self.score, self.older_score)
        losses = self._history(self.loss, self.older_loss)
        seen = {"scores": scores, "validation_losses": losses, "train_losses": losses}
        hosts = _fill(HostFacts, (self.n_hosts,), self.host_facts | seen)
        shape = (self.n_hosts, self.config.max_slots)
        slots = _fill(SlotArrays, shape, self.arrays.columns() | self.slot_facts)
        return self.layout.encode(hosts, slots)

    def _history(self, now: Any, before: Any) -> np.ndarray:
        """Return a history ``[N, HISTORY]`` that starts with the untrained host."""
        history = np.empty((self.n_hosts, HISTORY))
        history.T[:-1], history.T[-1] = before, now
        ages = np.arange(HISTORY)[::-1]
        return np.where(ages <= self.host_facts["epoch"][:, None], history, np.nan)

    def masks(self) -> ActionMasks:
        arrays = (self.arrays.stage, self.arrays.age_epochs, self.arrays.alpha_at_rest)
        gates = torch.from_numpy(self.arrays.is_gate_open)
        return compute_array_masks(*map(torch.from_numpy, arrays), self.config, gates)

    def step(self, rows: np.ndarray) -> None:
        """Perform an action and an epoch on each host."""
        refused = np.zeros(self.n_hosts, np.bool_)
        for host, row in enumerate(rows):
            action = decode_action(row.tolist(), self.config)
            outcome = self.lives[host].apply(action, self.keeper)
            refused[host] = not outcome.was_done
            about = "" if action.op in (Op.WAIT, Op.FINISH) else f" {action.slot}"
            self.log[host].append(f"{action.op.name.lower()}{about}{'?' if refused[host] else ''}")
            self.lives[host].tick(self.keeper)
        self.host_facts["was_refused"] = refused
        self.host_facts["last_op"] = rows[:, -1]
        self.host_facts["epoch"] = self.host_facts["epoch"] + 1

    def restore(self, host: int = 0) -> None:
        """Prune everything that grows in a host, as a rollback by the governor does."""
        for slot, life in self.lives[host].items():
            if life.is_growing:
                self.lives[host].abandon(slot, self.keeper)

    def run(self, controller: Controller, n_epochs: int) -> list[str]:
        """Run an episode and return the ops of the first host."""
        controller.start(self.n_hosts)
        for epoch in range(n_epochs):
            starts = np.full(self.n_hosts, epoch == 0)
            self.step(controller.act(self.observe(), self.masks(), starts))
        return self.log[0]

    def stages(self, host: int = 0) -> list[Stage]:
        return [life.stage for _, life in self.lives[host].items()]

    def _note(self, host: int, slot: str, life: SlotLife) -> None:
        at = host, self.config.slot_index(slot)
        write_slot(self.arrays, at, life, self.config, self.lives[host].growth_config)


def _fill(kind: type[Any], shape: tuple[int, ...], known: dict[str, Any]) -> Any:
    """Return facts that are zero except for those given."""
    dtypes = {"Integers": np.int64, "Floats": np.float64, "Flags": np.bool_}
    return kind(
        **{
            field.name: np.broadcast_to(
                np.asarray(known.get(field.name, 0), dtypes[str(field.type)]),
                np.shape(known[field.name]) if np.ndim(known.get(field.name, 0)) > 1 else shape,
            )
            for field in dataclasses.fields(kind)
        }
    )

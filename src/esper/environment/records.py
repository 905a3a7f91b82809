"""The running record of each host's episode. Shapes: N = hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.arrays import Flags, Floats, Integers
from esper.growth.sites import SlotSize
from esper.lifecycle.slot_arrays import NO_BLUEPRINT, SlotArrays
from esper.lifecycle.stages import Stage
from esper.tamiyo.policy.observations import HISTORY, TENSOR_KINDS, HostFacts

HISTORIES = ("scores", "train_losses", "validation_losses")
"""Columns ``[N, HISTORY]``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EpisodeRecords(HostFacts):
    """The episode of each host so far, ``[N]`` each, and its slots.

    The facts about hosts are what observations encode.
    """

    slots: SlotArrays
    """The slots as they are."""
    settled: SlotArrays
    """The slots of the epoch that is kept; its seeds, committed or blended in and kept, are
    fossilized."""
    draw_seed: Integers
    """Determines the host's data and initial weights."""
    n_steps: Integers
    is_over: Flags
    settled_epoch: Integers
    """The first epoch with the best validation score, which is kept; 0 for the untrained host."""
    settled_score: Floats
    """Validation score after that epoch, without the blended seeds if that is better."""
    final_score: Floats
    """Score of the same host on samples that the controller never sees."""
    n_classes: Integers
    reference_flops: Floats
    """FLOPs of training and validating the reference host for the whole budget."""
    baseline_scores: Floats
    """``[N, T]`` validation scores of the host's baseline, before training and after each epoch, if
    rewards are relative to one."""
    baseline_flops: Floats
    """``[N, T]`` what it has spent by then, as a share of a reference run's FLOPs."""
    baseline_final_score: Floats
    paid_progress: Floats
    paid_rent: Floats
    paid_penalty: Floats

    @classmethod
    def blank(cls, slots: SlotArrays, n_baseline: int = 0) -> EpisodeRecords:
        """Return records of hosts that have not started, with the slots that they have.

        ``n_baseline`` is the number of scores of each host's baseline.
        """
        n_hosts, n_slots = slots.stage.shape
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(HISTORIES, (n_hosts, HISTORY))
        shapes |= dict.fromkeys(("baseline_scores", "baseline_flops"), (n_hosts, n_baseline))
        arrays: dict[str, Any] = {
            field.name: np.zeros(shapes.get(field.name, (n_hosts,)), _DTYPES[str(field.type)])
            for field in fields(cls)
            if field.type != "SlotArrays"
        }
        return cls(slots=slots, settled=SlotArrays.blank(n_hosts, n_slots), **arrays)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of hosts by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.type != "SlotArrays"}

    def clear(self, host: int) -> None:
        """Reset the record of one host, and what was measured of its slots."""
        for values in self.columns().values():
            values[host] = 0
        self.slots.clear_measured(host)
        self.last_op[host] = -1
        for name in (*HISTORIES, "first_loss", "best_loss", "first_gradient_norm"):
            getattr(self, name)[host] = np.nan

    @property
    def score(self) -> Floats:
        """The current validation score."""
        return self.scores[:, -1]

    def set_slot_sizes(self, host: int, sizes: Sequence[SlotSize]) -> None:
        """Record kind and hidden units of a host's slots; it does not have the slots after them."""
        kinds, n = [TENSOR_KINDS.index(size.kind.name.lower()) for size in sizes], len(sizes)
        self.slots.kind[host, :n], self.slots.kind[host, n:] = kinds, -1
        self.slots.first_hidden[host, :n] = [size.hidden for size in sizes]
        self.slots.unit_parameters[host, :n] = [size.unit_parameters for size in sizes]

    def start_scores(self, hosts: list[int], scores: Floats, losses: Floats) -> None:
        """Record the validation scores and losses of hosts before their first epoch."""
        self.scores[hosts, -1] = self.best_score[hosts] = scores
        self.validation_losses[hosts, -1] = losses
        self.first_loss[hosts] = self.best_loss[hosts] = losses

    def add_epoch(
        self, hosts: list[int], scores: Floats, losses: Floats, train_losses: Floats, norms: Floats
    ) -> None:
        """Record the results of an epoch for some hosts."""
        histories = self.scores, self.validation_losses, self.train_losses
        for history, now in zip(histories, (scores, losses, train_losses), strict=True):
            history[hosts, :-1] = history[hosts, 1:]
            history[hosts, -1] = now
        self.best_score[hosts] = np.maximum(self.best_score[hosts], scores)
        self.best_loss[hosts] = np.fmin(self.best_loss[hosts], losses)
        firsts = ((self.first_loss, losses), (self.first_gradient_norm, norms))
        for first, now in firsts:
            first[hosts] = np.where(np.isnan(first[hosts]), now, first[hosts])
        self.previous_gradient_norm[hosts] = self.gradient_norm[hosts]
        self.gradient_norm[hosts] = norms
        self.epoch[hosts] += 1

    def settle(
        self, hosts: list[int], is_kept: Flags, scores: Floats, final_scores: Floats
    ) -> None:
        """Record that the current state of some hosts is their best.

        Of each: whether its blended seeds are kept, its validation score, and its score on samples
        that the controller never sees.
        """
        slots, settled = self.slots, self.settled
        self.settled_epoch[hosts] = self.epoch[hosts]
        self.settled_score[hosts], self.final_score[hosts] = scores, final_scores
        is_part = slots.is_blended[hosts] & is_kept[:, None]
        is_part |= slots.stage[hosts] == Stage.FOSSILIZED
        settled.stage[hosts] = np.where(is_part, Stage.FOSSILIZED, Stage.DORMANT)
        settled.blueprint[hosts] = np.where(is_part, slots.blueprint[hosts], NO_BLUEPRINT)
        for name in ("style", "alpha", "parameters"):
            now = getattr(slots, name)[hosts]
            getattr(settled, name)[hosts] = np.where(is_part, now, 0)
        for name in ("n_fossils", "fossil_units", "fossil_parameters"):
            getattr(settled, name)[hosts] = getattr(slots, name)[hosts]

    def slots_after_step(self) -> SlotArrays:
        """Return a copy of the slots; those of hosts that ended are those of their best epoch."""
        slots, over = self.slots.copy(), np.flatnonzero(self.is_over)
        if len(over):
            is_part = self.settled.stage[over] == Stage.FOSSILIZED
            contribution = np.where(is_part, slots.contribution[over], np.nan)
            slots.assign(over, self.settled)
            slots.contribution[over] = contribution
        return slots

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of all records as tensors."""
        return {name: torch.from_numpy(each.copy()) for name, each in self._all_columns().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` returned."""
        for name, values in self._all_columns().items():
            values[...] = state[name].numpy()

    def _all_columns(self) -> dict[str, NDArray[Any]]:
        parts = {"slots": self.slots, "settled": self.settled}
        return self.columns() | {
            f"{part}/{name}": values
            for part, arrays in parts.items()
            for name, values in arrays.columns().items()
        }


_DTYPES: dict[str, Any] = {"Integers": np.int64, "Floats": np.float64, "Flags": np.bool_}

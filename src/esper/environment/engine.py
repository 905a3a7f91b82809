"""The one end of an epoch, whatever is trained: hosts of a task, or the user's own model.

Shapes: N = hosts, K = some of them, S = slots, H = heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Flags, Floats, Integers
from esper.environment.records import EpisodeRecords
from esper.growth.slot_states import Outcome
from esper.lifecycle.factored_actions import HEAD_NAMES, GrowthAction, Op, decode_action
from esper.lifecycle.slot_arrays import SlotArrays
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.populations import EpochTally
from esper.populations.host_data import Split
from esper.stopwatch import Stopwatch
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tamiyo.policy.observations import ObservationLayout

_OP = HEAD_NAMES.index("op")


@dataclass(frozen=True, eq=False)
class HostScores:
    """How well some hosts do on a split, ``[K]`` each."""

    scores: Floats
    """As controllers see them, but for being clipped to [-1, 1]."""
    losses: Floats
    flops: Floats
    values: Floats
    """What the best epoch is chosen by; more is better, NaN is worst."""


class EpisodeHosts(Protocol):
    """What is trained: it can be acted on and evaluated."""

    @property
    def n_hosts(self) -> int:
        """The number of hosts."""
        ...

    @property
    def can_measure(self) -> bool:
        """Whether hosts can be evaluated without a seed."""
        ...

    def slot_arrays(self) -> SlotArrays:
        """Return the state of all slots as live arrays."""
        ...

    def masks(self) -> ActionMasks:
        """Return the legal actions of each host."""
        ...

    def slot_config_of(self, host: int) -> SlotConfig:
        """Return the slots of a host."""
        ...

    def apply(self, host: int, action: GrowthAction) -> Outcome:
        """Carry out a legal action of one host."""
        ...

    def score(
        self,
        hosts: Sequence[int],
        split: Split = "validation",
        *,
        without_slot: int | None = None,
        committed_only: bool = False,
    ) -> HostScores:
        """Score hosts: as they are, without one slot's seed, or with committed seeds only."""
        ...

    def keep(self, host: int, *, with_blended: bool) -> None:
        """Keep a copy of a host, because this is its best epoch so far."""
        ...


HostsT = TypeVar("HostsT", bound=EpisodeHosts)


class Episodes(Generic[HostsT]):
    """What is known about the episode of each host, and the rules that all episodes follow."""

    def __init__(self, hosts: HostsT, layout: ObservationLayout, n_baseline: int = 0) -> None:
        """Record the episodes of hosts, whose baselines have so many scores."""
        self.hosts, self.layout = hosts, layout
        self.records = EpisodeRecords.blank(hosts.slot_arrays(), n_baseline)
        self.stopwatch = Stopwatch()
        self.settles = True
        """Whether the best epoch is looked for."""
        self.keeps_states = False
        """Whether the hosts keep their state of the best epoch."""
        self.largest_counts = False
        """Whether an epoch is kept only if no later one has more committed seeds, for growth to a
        size that was asked for."""
        self._masks: ActionMasks | None = None
        """The current legal actions; None if the hosts have changed since they were computed."""

    @property
    def n_hosts(self) -> int:
        """The number of hosts."""
        return self.hosts.n_hosts

    def masks(self) -> ActionMasks:
        """Return the legal actions of each host."""
        if self._masks is None:
            with self.stopwatch.measure("masks"):
                self._masks = self.hosts.masks()
        return self._masks

    def observe(self) -> NDArray[np.float32]:
        """Return the observation of each host, ``[N, D]``."""
        with self.stopwatch.measure("observations"):
            return self.layout.encode(self.records, self.records.slots)

    def start(self, hosts: list[int], found: HostScores | None = None) -> None:
        """Record how hosts do before their first epoch, free of charge."""
        found = found or self._evaluate(hosts)
        self.records.start_scores(hosts, np.clip(found.scores, -1.0, 1.0), found.losses)
        self.records.settled_score[hosts] = -np.inf
        self._masks = None
        self._settle(hosts, found, np.zeros(self.n_hosts))

    def act(
        self, actions: Integers, is_legal: Flags, is_running: Flags
    ) -> tuple[Integers, dict[int, str]]:
        """Carry out actions ``[N, H]``; return the ops that were done and the refusals by host.

        An illegal action is treated as wait.
        """
        ops = np.where(is_legal & is_running, actions[:, _OP], Op.WAIT)
        refusals: dict[int, str] = {}
        with self.stopwatch.measure("actions"):
            acting: list[int] = np.flatnonzero(ops != Op.WAIT).tolist()
            for host, choices in zip(acting, actions[acting].tolist(), strict=True):
                action = decode_action(choices, self.hosts.slot_config_of(host))
                outcome = self.hosts.apply(host, action)
                if not outcome.was_done:
                    refusals[host] = outcome.reason
                    ops[host] = Op.WAIT
        self.records.last_op[is_running] = ops[is_running]
        self.records.was_refused[:] = False
        self.records.was_refused[list(refusals)] = True
        self._masks = None
        return ops, refusals

    def end_epoch(
        self,
        hosts: list[int],
        trained: EpochTally,
        found: HostScores | None = None,
        train_losses: Floats | None = None,
    ) -> Floats:
        """End an epoch of some hosts: validate, measure seeds, record, and keep the best epoch.

        Args:
            hosts: The hosts that were trained.
            trained: What their training came to.
            found: What validation says; None to validate here.
            train_losses: The mean losses that count, ``[N]``; None for those of the steps.

        Returns:
            FLOPs ``[N]`` of the epoch.
        """
        flops = trained.flops.copy()
        found = found or self._evaluate(hosts)
        flops[hosts] += found.flops
        self._measure_seeds(hosts, found.scores, flops)
        records = self.records
        records.was_restored[:] = False
        records.was_restored[list(trained.interventions)] = True
        losses = (trained.losses if train_losses is None else train_losses)[hosts]
        norms = trained.gradient_norms[hosts]
        records.add_epoch(hosts, np.clip(found.scores, -1.0, 1.0), found.losses, losses, norms)
        records.slots.gradient_norm[hosts] = trained.seed_gradient_norms[hosts]
        records.gradient_noise[hosts] = trained.gradient_noise[hosts]
        self._settle(hosts, found, flops)
        self._masks = None
        return flops

    def _measure_seeds(self, hosts: list[int], scores: Floats, flops: Floats) -> None:
        """Measure what each held seed contributes, and add what that costs to ``flops``."""
        slots, score = self.records.slots, np.zeros(self.n_hosts)
        score[hosts] = scores
        slots.contribution[slots.blueprint < 0] = np.nan
        is_held = np.zeros_like(slots.is_measured)
        if self.hosts.can_measure:
            is_held[hosts] = slots.stage[hosts] == Stage.HOLDING
        slots.is_measured[:] = is_held
        for slot in np.flatnonzero(is_held.any(0)).tolist():
            held = np.flatnonzero(is_held[:, slot]).tolist()
            with self.stopwatch.measure("counterfactuals"):
                without = self.hosts.score(held, without_slot=slot)
            slots.contribution[held, slot] = score[held] - without.scores
            flops[held] += without.flops

    def _settle(self, hosts: list[int], found: HostScores, flops: Floats) -> None:
        """Score hosts that are the best so far as if training ended here.

        Blended seeds are kept if validation is at least as good with them as without them; what
        that comparison costs is added to ``flops``. The final scores are free of charge and reach
        no controller before the end.
        """
        if not self.settles:
            return
        records, slots = self.records, self.records.slots
        values = np.nan_to_num(found.values, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        is_better = (values > records.settled_score[hosts]) | (records.epoch[hosts] == 0)
        if self.largest_counts:
            is_better |= (_n_committed(slots) > _n_committed(records.settled))[hosts]
        if not is_better.any():
            return
        better = [host for host, flag in zip(hosts, is_better.tolist(), strict=True) if flag]
        values, is_kept = values[is_better], np.ones(len(better), np.bool_)
        blended = np.flatnonzero(slots.is_blended[better].any(1))
        if len(blended):
            chosen = [better[index] for index in blended]
            with self.stopwatch.measure("counterfactuals"):
                without = self.hosts.score(chosen, committed_only=True)
            flops[chosen] += without.flops
            is_kept[blended] = ~(without.values > values[blended])
            values[blended] = np.fmax(values[blended], without.values)
        final_scores = np.empty(len(better))
        for kept in (True, False):
            indices = np.flatnonzero(is_kept == kept)
            if len(indices):
                final_scores[indices] = self._evaluate(
                    [better[index] for index in indices], "final", committed_only=not kept
                ).scores
        records.settle(better, is_kept, values, final_scores)
        if self.keeps_states:
            for host, kept in zip(better, is_kept.tolist(), strict=True):
                self.hosts.keep(host, with_blended=kept)

    def _evaluate(
        self, hosts: list[int], split: Split = "validation", *, committed_only: bool = False
    ) -> HostScores:
        with self.stopwatch.measure("evaluation"):
            return self.hosts.score(hosts, split, committed_only=committed_only)


def _n_committed(slots: SlotArrays) -> Integers:
    """Return the number of committed seeds of each host, ``[N]``."""
    return (slots.n_fossils + (slots.stage == Stage.FOSSILIZED)).sum(1)

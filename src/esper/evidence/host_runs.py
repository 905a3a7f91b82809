"""Hosts trained to their end, and what became of each. Shapes: N = hosts, S = slots, T = epochs.

A host may stop before its budget does. What it would have come to is known for every epoch at which
it could have stopped, if its committed state is scored after each: stopping costs nothing and
changes nothing that came before, so one training gives the results of all stopping epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Floats, Integers
from esper.environment.episodes import GrowthEpisodes, StepResult
from esper.environment.runner import steer_hosts
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.lifecycle.stages import Stage
from esper.populations import FirstSeed
from esper.populations.host_data import Split
from esper.tamiyo import Controller

SCORES = ("final", "validation")
_SLOT = HEAD_NAMES.index("slot")


@dataclass(frozen=True, kw_only=True, eq=False)
class Goals:
    """When hosts are scored, ``[N]`` each: after so many epochs, and once so much is paid.

    A host ends when it has been scored at both.
    """

    n_epochs: Integers
    flops: Floats
    """As a share of the reference run's."""

    def of_part(self, part: slice) -> Goals:
        """Return those of some of the hosts."""
        return Goals(n_epochs=self.n_epochs[part], flops=self.flops[part])

    def have_paid(self, flops: Floats) -> NDArray[np.bool_]:
        """Return which hosts have paid enough."""
        # Sums of the same numbers in another order are off by a last digit.
        return flops >= self.flops * (1.0 - 1e-9)


@dataclass(frozen=True, kw_only=True, eq=False)
class HostRuns:
    """What hosts came to, ``[N]`` each, and how they got there."""

    accuracy: Floats
    """Score of what was committed, on the final split, at the host's end."""
    flops: Floats
    """Paid until then, as a share of the reference run's."""
    parameters: Integers
    """Of the host and of what was committed."""
    host_parameters: Integers
    """Of the host as it started, without seeds."""
    n_epochs: Integers
    grown: Integers
    """Seeds that were committed while the host trained."""
    n_reads: Integers
    """How often the host was scored on the final split."""
    n_classes: Integers
    n_samples: Integers
    actions: Integers
    """``[N, T + 1, 8]`` what was decided at each step, -1 after the end."""
    op_counts: Integers
    """``[N, O]`` how often each op was carried out."""
    blueprint: Integers
    """``[N, S]`` the blueprint head's choice of each committed seed, -1 without one."""
    style: Integers
    """``[N, S]`` the style head's choice of each committed seed."""
    alpha: Floats
    """``[N, S]`` how strongly each committed seed counts."""
    number: Integers
    """``[N, S]`` seeds that germinated in the host before each committed one."""
    accuracy_by_epoch: Floats
    """``[N, T + 1]`` as if the host had stopped after each epoch, NaN where it was not scored;
    ``[N, 0]`` if not asked for."""
    flops_by_epoch: Floats
    validation_by_epoch: Floats
    """``[N, T + 1]`` score of what was committed on the validation samples, likewise."""
    parameters_by_epoch: Floats

    def picked(self, places: Integers) -> HostRuns:
        """Return the runs of hosts at some places, in that order."""
        return HostRuns(**{name: values[places] for name, values in self.arrays().items()})

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def run_hosts(
    growth: GrowthEpisodes,
    controller: Controller,
    n_hosts: int,
    *,
    seed: int = 0,
    seeds: Mapping[int, Sequence[FirstSeed]] | None = None,
    every_epoch: Sequence[Split] = (),
    goals: Goals | None = None,
) -> HostRuns:
    """Train hosts to their end.

    Args:
        growth: Whose first hosts are at the start of their episodes; the others' are over.
        controller: Decides; it is started anew.
        n_hosts: How many hosts are trained.
        seed: What the controller draws from.
        seeds: What hosts start with, by number.
        every_epoch: Splits to score by after every epoch: "final", "validation" or both.
        goals: Score by the final split where these are met, and end hosts that have met them.
    """
    if seeds:
        growth.plant(seeds)
    record = _Record(growth, n_hosts, every_epoch, goals)
    steer_hosts(growth, controller, seed=seed, n_hosts=n_hosts, on_step=record.enter)
    return record.results()


class _Record:
    """Notes what happens to hosts."""

    def __init__(
        self, growth: GrowthEpisodes, n: int, every_epoch: Sequence[Split], goals: Goals | None
    ) -> None:
        n_epochs, shape = growth.task.budget.n_epochs, (n, growth.slot_config.max_slots)
        self._growth, self._n, self._splits = growth, n, tuple(every_epoch)
        self._goals, self._has_paid = goals, np.zeros(n, np.bool_)
        self._step = 0
        self._actions = np.full((n, n_epochs + 1, len(HEAD_NAMES)), -1, np.int64)
        self._op_counts = np.zeros((n, len(Op)), np.int64)
        self._numbers, self._n_germinated = np.zeros(shape, np.int64), np.zeros(n, np.int64)
        self._accuracy, self._n_reads = np.full(n, np.nan), np.zeros(n, np.int64)
        self._planted = self._is_committed().copy()
        columns = n_epochs + 1 if every_epoch or goals is not None else 0
        self._by_epoch = {
            name: np.full((n, columns), np.nan if name in SCORES else 0.0)
            for name in (*SCORES, "flops", "parameters")
        }
        self._read(np.ones(n, np.bool_))

    def enter(self, actions: Integers, result: StepResult) -> None:
        """Note a step."""
        own = slice(self._n)
        ops, was_running = result.ops[own], result.was_running[own]
        running = np.flatnonzero(was_running)
        self._actions[running, self._step] = actions[running]
        self._step += 1
        np.add.at(self._op_counts, (running, ops[running]), 1)
        born = running[ops[running] == Op.GERMINATE]
        self._numbers[born, actions[born, _SLOT]] = self._n_germinated[born]
        self._n_germinated[born] += 1
        self._read(was_running & (ops != Op.FINISH))
        self._enter_ends(result.final_scores[own], result.terminated[own])

    def _enter_ends(self, scores: Floats, ended: NDArray[np.bool_]) -> None:
        """Note the final scores of hosts that have just ended, and that they stay so."""
        self._accuracy[ended] = scores[ended]
        self._n_reads[ended] += 1
        epochs = self._growth.records.epoch
        for host in np.flatnonzero(ended).tolist() if self._splits or self._goals else ():
            end = epochs[host]
            self._by_epoch["final"][host, end] = scores[host]
            self._stay(host)

    def _read(self, chosen: NDArray[np.bool_]) -> None:
        """Score what hosts have committed after the epoch that they have just trained."""
        if not (self._splits or self._goals) or not chosen.any():
            return
        growth, hosts = self._growth, np.flatnonzero(chosen)
        at = hosts, growth.records.epoch[hosts]
        for split in self._splits:
            self._by_epoch[split][at] = growth.score_committed(hosts.tolist(), split)
            self._n_reads[hosts] += split == "final"
        self._by_epoch["flops"][at] = growth.records.paid_flops[hosts]
        self._by_epoch["parameters"][at] = self._parameters()[hosts]
        if self._goals is not None:
            self._read_goals(self._goals, chosen)

    def _read_goals(self, goals: Goals, chosen: NDArray[np.bool_]) -> None:
        """Score hosts that have just met a goal; end those that have met both."""
        growth, own = self._growth, slice(self._n)
        epochs = growth.records.epoch[own]
        paid = goals.have_paid(growth.records.paid_flops[own])
        is_due = chosen & ((epochs == goals.n_epochs) | (paid & ~self._has_paid))
        # Whoever is at the end of the budget is scored by the episode itself.
        is_due &= ~growth.records.is_over[own]
        self._has_paid |= paid & chosen
        due = np.flatnonzero(is_due)
        self._n_reads[due] += 1
        if len(due):
            self._by_epoch["final"][due, epochs[due]] = growth.score_committed(
                due.tolist(), "final"
            )
        is_met = chosen & self._has_paid & (epochs >= goals.n_epochs)
        for host in np.flatnonzero(is_met & ~growth.records.is_over[own]).tolist():
            self._stay(host)
            growth.stop(host)

    def _stay(self, host: int) -> None:
        """Note that a host stays as it is."""
        end = self._growth.records.epoch[host]
        for values in self._by_epoch.values():
            values[host, end:] = values[host, end]

    def _is_committed(self) -> NDArray[np.bool_]:
        return self._growth.population.slot_arrays().stage[: self._n] == Stage.FOSSILIZED

    def _parameters(self) -> Integers:
        records, n = self._growth.records, self._n
        committed = np.where(self._is_committed(), records.seed_parameters[:n], 0)
        return records.n_parameters[:n] + committed.sum(1)

    def results(self) -> HostRuns:
        """Return what was noted."""
        records, arrays = self._growth.records, self._growth.population.slot_arrays()
        is_committed, own = self._is_committed(), slice(self._n)
        return HostRuns(
            accuracy=self._accuracy,
            flops=records.paid_flops[own].copy(),
            parameters=self._parameters(),
            host_parameters=records.n_parameters[own].copy(),
            n_epochs=records.epoch[own].copy(),
            grown=(is_committed & ~self._planted).sum(1),
            n_reads=self._n_reads,
            n_classes=records.n_classes[own].copy(),
            n_samples=records.n_samples[own].copy(),
            actions=self._actions,
            op_counts=self._op_counts,
            blueprint=np.where(is_committed, arrays.blueprint[own], -1),
            style=np.where(is_committed, arrays.style[own], 0),
            alpha=np.where(is_committed, arrays.alpha[own], 0.0),
            number=np.where(is_committed, self._numbers, 0),
            accuracy_by_epoch=self._by_epoch["final"],
            flops_by_epoch=self._by_epoch["flops"],
            validation_by_epoch=self._by_epoch["validation"],
            parameters_by_epoch=self._by_epoch["parameters"],
        )

"""Training hosts to their end and recording the results.

Shapes: N = hosts, S = slots, T = epochs, O = ops, C = settled seeds of the host with most.

A host may stop before the end of its budget. Stopping is free and does not change what came before,
so scoring the settled host after every epoch of one training gives the results of all stopping
epochs. The settled host is that of the best validated epoch so far, with the seeds that were
committed by then, or blended in and kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Flags, Floats, Integers
from esper.environment.episodes import GrowthEpisodes, StepResult
from esper.lifecycle.factored_actions import HEAD_NAMES, STYLES, Op
from esper.populations import FirstSeed
from esper.populations.host_data import Split
from esper.results.arms import LABELS, LEARNED, Arm

SCORES = ("final", "validation")
_SLOT = HEAD_NAMES.index("slot")


@dataclass(frozen=True, kw_only=True, eq=False)
class Goals:
    """When to score hosts, ``[N]`` each: after some epochs, and once some FLOPs are spent.

    A host ends when it has reached both.
    """

    n_epochs: Integers
    flops: Floats
    """As a share of the reference run's."""

    def select(self, hosts: slice) -> Goals:
        """Return the goals of some hosts."""
        return Goals(n_epochs=self.n_epochs[hosts], flops=self.flops[hosts])


@dataclass(frozen=True, kw_only=True, eq=False)
class HostRuns:
    """The results of hosts, ``[N]`` each, and the actions that led to them."""

    draw_seed: Integers
    """Determines the host; equal seeds pair the results of two controllers."""
    score: Floats
    """Score of the settled host on the final split, at its end."""
    returns: Floats
    """Sum of rewards."""
    flops: Floats
    """FLOPs spent, as a share of the reference run's."""
    parameters: Integers
    """Parameters of the host and its settled seeds."""
    host_parameters: Integers
    """Parameters of the initial host without seeds."""
    n_epochs: Integers
    grown: Integers
    """Number of settled seeds that grew during training."""
    n_reads: Integers
    """How many epochs of the host have a score on the final split in these results."""
    actions: Integers
    """``[N, T + 1, 8]`` action of each step, -1 after the end."""
    op_counts: Integers
    """``[N, O]`` how often each op was carried out."""
    may_finish: Flags
    """Whether the host may stop before the end of its budget."""
    slot: Integers
    """``[N, C]`` index of the slot of each settled seed, in the order of germination; -1 where a
    host has fewer."""
    blueprint: Integers
    """``[N, C]`` the blueprint head's choice of each settled seed; -1 where a host has fewer."""
    style: Integers
    """``[N, C]`` the style head's choice of each settled seed."""
    alpha: Floats
    """``[N, C]`` alpha of each settled seed."""
    number: Integers
    """``[N, C]`` number of seeds that germinated in the host before each settled one."""
    score_by_epoch: Floats
    """``[N, T + 1]`` score had the host stopped after each epoch, NaN where it was not scored;
    ``[N, 0]`` if not requested."""
    flops_by_epoch: Floats
    validation_by_epoch: Floats
    """``[N, T + 1]`` score of the settled host on the validation samples, likewise."""
    parameters_by_epoch: Floats
    returns_by_epoch: Floats
    """``[N, T + 1]`` return, without shaping, had the host stopped after each epoch."""

    @property
    def grown_parameters(self) -> Integers:
        """Parameters that were grown during training."""
        return np.where(self.grown > 0, self.parameters - self.host_parameters, 0)

    def stopped_after(self, epochs: Integers) -> HostRuns:
        """Return the results had each host stopped after its own number of epochs ``[N]``."""
        at = np.arange(len(epochs)), epochs
        return replace(
            self,
            score=self.score_by_epoch[at],
            returns=self.returns_by_epoch[at],
            flops=self.flops_by_epoch[at],
            parameters=self.parameters_by_epoch[at],
            n_epochs=np.minimum(epochs, self.n_epochs),
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def join_runs(parts: Sequence[HostRuns]) -> HostRuns:
    """Concatenate the runs of several groups of hosts."""
    n_settled = max(part.slot.shape[1] for part in parts)
    joined: dict[str, NDArray[Any]] = {}
    for name in parts[0].arrays():
        values = [getattr(part, name) for part in parts]
        if name in _NO_SEED:
            widths = [((0, 0), (0, n_settled - each.shape[1])) for each in values]
            pairs = zip(values, widths, strict=True)
            values = [np.pad(each, by, constant_values=_NO_SEED[name]) for each, by in pairs]
        joined[name] = np.concatenate(values)
    return HostRuns(**joined)


_NO_SEED = {"slot": -1, "blueprint": -1, "style": 0, "alpha": 0.0, "number": 0}
"""The columns of settled seeds, and their values where a host has fewer."""


def make_arm(
    name: str, runs: Sequence[HostRuns], *, price: float | None = None, **facts: Any
) -> Arm:
    """Return the result of a controller.

    Args:
        name: Its name.
        runs: Its host runs, one entry per training run; controllers without training have one.
        price: Score that the FLOPs of one reference run cost; None if the return is the sum of the
            rewards.
        **facts: Further fields of :class:`Arm`; label and kind follow from the name by default.
    """

    def stack(field: str) -> Floats:
        return np.stack([np.asarray(getattr(one, field), np.float64) for one in runs])

    names = ("score", "flops", "parameters", "grown_parameters", "n_epochs")
    values: dict[str, Any] = {field: stack(field) for field in names}
    values["returns"] = (
        stack("returns") if price is None else values["score"] - price * values["flops"]
    )
    values["label"] = LABELS.get(name, name)
    values["kind"] = "learned" if name == LEARNED else "simple"
    return Arm(name=name, **(values | facts))


def has_spent(spent: Floats, flops: Floats) -> NDArray[np.bool_]:
    """Return where at least ``flops`` were spent, up to rounding of their sum."""
    return spent >= flops * (1.0 - 1e-9)


class Recorder:
    """Records the steps of hosts, and scores them when asked to."""

    def __init__(
        self, growth: GrowthEpisodes, n: int, every_epoch: Sequence[Split], goals: Goals | None
    ) -> None:
        """Prepare for the first ``n`` hosts, which are at their start; the others are over."""
        n_epochs, shape = growth.task.budget.n_epochs, (n, growth.slot_config.max_slots)
        self._growth, self._n, self._splits = growth, n, tuple(every_epoch)
        self._goals, self._has_spent = goals, np.zeros(n, np.bool_)
        self.n_steps = 0
        self._actions = np.full((n, n_epochs + 1, len(HEAD_NAMES)), -1, np.int64)
        self._op_counts = np.zeros((n, len(Op)), np.int64)
        self._numbers: dict[tuple[int, int], list[int]] = {pair: [] for pair in np.ndindex(shape)}
        """Number of each seed of a host's slot, fossils first; the last may not be committed."""
        self._settled_numbers = {pair: list[int]() for pair in np.ndindex(shape)}
        """The same after the epoch that counts."""
        self._n_planted, self._n_germinated = np.zeros((2, n), np.int64)
        self._final_score, self._returns = np.full(n, np.nan), np.zeros(n)
        self._n_reads = np.zeros(n, np.int64)
        self._may_finish = growth.masks()["op"][:n, Op.FINISH].numpy().copy()
        columns = n_epochs + 1 if every_epoch or goals is not None else 0
        self._by_epoch = {
            name: np.full((n, columns), np.nan if name in SCORES else 0.0)
            for name in (*SCORES, "flops", "parameters", "returns")
        }
        self._score(np.ones(n, np.bool_))

    def add_planted(self, seeds: Mapping[int, Sequence[FirstSeed]]) -> None:
        """Record the seeds that hosts started with."""
        slots = self._growth.slot_config
        for host, first_seeds in seeds.items():
            self._n_planted[host] = len(first_seeds)
            for seed in first_seeds:
                self._numbers[host, slots.slot_index(seed.action.slot)].append(seed.number)
                self._n_germinated[host] = seed.number + 1
        self._keep_numbers()

    def _keep_numbers(self) -> None:
        """Keep the numbers of the seeds of hosts whose current epoch is their best."""
        records, n_slots = self._growth.records, self._growth.slot_config.max_slots
        for host in range(self._n):
            if records.settled_epoch[host] == records.epoch[host]:
                for slot in range(n_slots):
                    self._settled_numbers[host, slot] = list(self._numbers[host, slot])

    def add_step(self, actions: Integers, result: StepResult) -> None:
        """Record a step."""
        trained = slice(self._n)
        ops, was_running = result.op_done[trained], result.was_running[trained]
        running = np.flatnonzero(was_running)
        self._actions[running, self.n_steps] = actions[running]
        self._returns[running] += result.terms.total[running]
        self.n_steps += 1
        np.add.at(self._op_counts, (running, ops[running]), 1)
        for host in running[ops[running] == Op.GERMINATE].tolist():
            slot = int(actions[host, _SLOT])
            n_fossils = int(result.slots.n_fossils[host, slot])
            # A seed that was pruned before is replaced.
            self._numbers[host, slot][n_fossils:] = [int(self._n_germinated[host])]
            self._n_germinated[host] += 1
        self._keep_numbers()
        self._score(was_running & (ops != Op.FINISH))
        self._add_ends(result.final_score[trained], result.terminated[trained])

    def _add_ends(self, scores: Floats, ended: NDArray[np.bool_]) -> None:
        """Record the final scores of hosts that have just ended."""
        self._final_score[ended] = scores[ended]
        self._n_reads[ended] += 1
        epochs = self._growth.records.epoch
        for host in np.flatnonzero(ended).tolist() if self._splits or self._goals else ():
            end = epochs[host]
            self._by_epoch["final"][host, end] = scores[host]
            self._fill_after_end(host)

    def _score(self, chosen: NDArray[np.bool_]) -> None:
        """Score the settled hosts after the epoch they have just trained."""
        if not (self._splits or self._goals) or not chosen.any():
            return
        growth, hosts = self._growth, np.flatnonzero(chosen)
        at = hosts, growth.records.epoch[hosts]
        for split in self._splits:
            self._by_epoch[split][at] = self._settled(split)[hosts]
            self._n_reads[hosts] += split == "final"
        self._by_epoch["flops"][at] = growth.records.flops_used[hosts]
        self._by_epoch["parameters"][at] = self._parameters()[hosts]
        self._by_epoch["returns"][at] = growth.returns_if_stopped()[hosts]
        if self._goals is not None:
            self._score_at_goals(self._goals, chosen)

    def _score_at_goals(self, goals: Goals, chosen: NDArray[np.bool_]) -> None:
        """Score hosts that have just reached a goal; end those that have reached both."""
        growth, trained = self._growth, slice(self._n)
        epochs = growth.records.epoch[trained]
        spent = has_spent(growth.records.flops_used[trained], goals.flops)
        is_due = chosen & ((epochs == goals.n_epochs) | (spent & ~self._has_spent))
        # A host at the end of the budget is scored by the episode itself.
        is_due &= ~growth.records.is_over[trained]
        self._has_spent |= spent & chosen
        due = np.flatnonzero(is_due)
        self._n_reads[due] += 1
        if len(due):
            self._by_epoch["final"][due, epochs[due]] = self._settled("final")[due]
        is_done = chosen & self._has_spent & (epochs >= goals.n_epochs)
        for host in np.flatnonzero(is_done & ~growth.records.is_over[trained]).tolist():
            self._fill_after_end(host)
            growth.stop(host)

    def _fill_after_end(self, host: int) -> None:
        """Repeat the values of a host's last epoch for all later epochs."""
        end = self._growth.records.epoch[host]
        for values in self._by_epoch.values():
            values[host, end:] = values[host, end]

    def _settled(self, split: Split) -> Floats:
        records = self._growth.records
        return records.final_score if split == "final" else records.settled_score

    def _parameters(self) -> Integers:
        records, trained = self._growth.records, slice(self._n)
        return records.n_parameters[trained] + records.settled.grown_parameters[trained].sum(1)

    def _settled_seeds(self) -> dict[str, NDArray[Any]]:
        """Return the columns of settled seeds, ``[N, C]`` each."""
        population, config = self._growth.hosts, self._growth.slot_config
        settled = self._growth.records.settled
        found: list[list[dict[str, Any]]] = [[] for _ in range(self._n)]
        for (host, slot), numbers in self._settled_numbers.items():
            if not numbers:  # as in slots that a host lacks
                continue
            at, n_fossils = (host, slot), int(settled.n_fossils[host, slot])
            name = cast(str, population.slot_config_of(host).slot_ids[slot])
            fossils = population.lives(host)[name].fossils[:n_fossils]
            seeds = [
                (config.blueprint_index(one.blueprint), STYLES.index(one.style), one.alpha)
                for one in fossils
            ]
            if settled.blueprint[at] >= 0:
                choices = int(settled.blueprint[at]), int(settled.style[at])
                seeds.append((*choices, float(settled.alpha[at])))
            for number, seed in zip(numbers, seeds, strict=False):
                columns = zip(("blueprint", "style", "alpha"), seed, strict=True)
                found[host].append({"slot": slot, "number": number, **dict(columns)})
        shape = (self._n, max(map(len, found)))
        columns = {
            name: np.full(shape, fill, np.float64 if name == "alpha" else np.int64)
            for name, fill in _NO_SEED.items()
        }
        for host, seeds in enumerate(found):
            for index, seed in enumerate(sorted(seeds, key=lambda seed: seed["number"])):
                for name, value in seed.items():
                    columns[name][host, index] = value
        return columns

    def results(self) -> HostRuns:
        """Return everything that was recorded."""
        records, trained = self._growth.records, slice(self._n)
        settled = self._settled_seeds()
        return HostRuns(
            draw_seed=records.draw_seed[trained].copy(),
            score=self._final_score,
            returns=self._returns,
            flops=records.flops_used[trained].copy(),
            parameters=self._parameters(),
            host_parameters=records.n_parameters[trained].copy(),
            n_epochs=records.epoch[trained].copy(),
            grown=(settled["slot"] >= 0).sum(1) - self._n_planted,
            n_reads=self._n_reads,
            actions=self._actions,
            op_counts=self._op_counts,
            may_finish=self._may_finish,
            **settled,
            score_by_epoch=self._by_epoch["final"],
            flops_by_epoch=self._by_epoch["flops"],
            validation_by_epoch=self._by_epoch["validation"],
            parameters_by_epoch=self._by_epoch["parameters"],
            returns_by_epoch=self._by_epoch["returns"],
        )

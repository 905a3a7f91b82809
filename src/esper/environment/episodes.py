"""Episodes of growth: a population whose hosts are steered, trained, judged and paid for.

Shapes: N = hosts, S = slots, H = heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from esper.arrays import Flags, Floats
from esper.config.growth import RewardConfig
from esper.environment.draws import FinalSplit
from esper.environment.hosts import Hosts, HostScores
from esper.environment.records import EpisodeRecords
from esper.environment.rewards import RewardTerms, StepAccount, potential, settle_step
from esper.errors import ActionSpecError, ShapeError
from esper.lifecycle.factored_actions import (
    HEAD_NAMES,
    Op,
    growth_action_spec,
)
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.populations import (
    FirstSeed,
    Population,
)
from esper.populations.factory import Form
from esper.populations.host_data import Split
from esper.simic.stopwatch import Stopwatch
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tamiyo.policy.observations import ObservationLayout
from esper.tasks import Task, TaskDraw

_OP = HEAD_NAMES.index("op")


@dataclass(frozen=True, eq=False)
class SlotOutcome:
    """How a step left the slots, ``[N, S]`` each; of hosts that ended, what was committed."""

    stage: NDArray[np.int64]
    blueprint: NDArray[np.int64]
    """The blueprint head's choice, -1 without a seed."""
    alpha: Floats
    contribution: Floats
    """Score with the seed minus without it, when it was last measured."""
    parameters: NDArray[np.int64]
    """Parameters of the seed, 0 without one."""


@dataclass(frozen=True, eq=False)
class StepResult:
    """What a step did to each host, ``[N]``; hosts whose episode was over are left as they were."""

    was_running: Flags
    """Hosts whose episode was not over before the step."""
    terms: RewardTerms
    terminated: Flags
    """Episodes that ended by themselves in this step."""
    is_illegal: Flags
    """Actions that were not legal and were taken as wait."""
    ops: NDArray[np.int64]
    """The op that was carried out; wait where a gate refused or the action was illegal."""
    refusals: dict[int, str]
    """Why a gate refused, by host."""
    interventions: dict[int, str]
    """Why the governor stepped in, by host."""
    final_scores: Floats
    """Score of the committed host where ``terminated``, else NaN."""
    slots: SlotOutcome
    """The slots after the step."""


class GrowthEpisodes:
    """Many hosts, each in an episode of its own; knows nothing of Gymnasium."""

    def __init__(
        self,
        task: Task,
        draw_seeds: Sequence[int],
        *,
        form: Form = "auto",
        rewards: RewardConfig | None = None,
        final_split: FinalSplit = "validation",
    ) -> None:
        """Start an episode for each draw seed; the hosts of a task's variants are last.

        Raises:
            TaskError: If there are fewer seeds than designs, or one controller cannot steer all
                designs.
        """
        self.task = task
        self.rewards = rewards or RewardConfig()
        self.stopwatch = Stopwatch()
        self.hosts = Hosts(task, draw_seeds, form=form, final_split=final_split)
        self.slot_config: SlotConfig = self.hosts.groups[0].slot_config
        """The slots of the task's own hosts; those of variants may have other names."""
        self.layout = ObservationLayout(self.slot_config)
        self.records = EpisodeRecords.blank(self.n_hosts, self.slot_config.max_slots)
        self.head_sizes = np.array(growth_action_spec(self.slot_config).sizes)
        """``[H]`` how many choices each head has."""
        self._masks: ActionMasks | None = None
        """The current legal actions; None when the hosts have changed since."""
        for host, seed in enumerate(draw_seeds):
            self._start_record(host, seed)
        self._look(list(range(self.n_hosts)))

    @property
    def n_hosts(self) -> int:
        """How many hosts there are."""
        return self.hosts.n_hosts

    @property
    def draws(self) -> list[TaskDraw]:
        """What each host learns from."""
        return self.hosts.draws

    @property
    def population(self) -> Population:
        """The population of a task with one design."""
        return self.hosts.require_one_group().population

    def begin(self, hosts: Sequence[int], draw_seeds: Sequence[int]) -> None:
        """Replace hosts by those of new seeds, each at the start of an episode."""
        with self.stopwatch.measure("new hosts"):
            for host, seed in zip(hosts, draw_seeds, strict=True):
                self._replace(host, seed)
        self._masks = None
        self._look(list(hosts))

    def masks(self) -> ActionMasks:
        """Return the legal actions of each host."""
        if self._masks is None:
            with self.stopwatch.measure("masks"):
                self._masks = self.hosts.masks()
        return self._masks

    def observe(self) -> NDArray[np.float32]:
        """Return what a controller sees of each host, ``[N, D]``."""
        with self.stopwatch.measure("observations"):
            hosts = self.records.host_facts(self.task.budget)
            return self.layout.encode(hosts, self.records.slot_facts(self.hosts.slot_arrays()))

    def step(self, actions: NDArray[np.int64]) -> StepResult:
        """Act on each host, train it for an epoch, judge it and pay; see :mod:`rewards`.

        Args:
            actions: ``[N, H]`` choices of each head; an illegal combination is taken as wait.
        """
        require_choices(actions, self.n_hosts, self.head_sizes)
        records, is_running = self.records, ~self.records.is_over
        before = self._potential()
        score_before = records.score.copy()
        with self.stopwatch.measure("actions"):
            is_illegal, ops, refusals = self._act(actions, is_running)
        self._masks = None
        flops, interventions = self._train(is_running)
        records.n_steps += is_running
        is_last = self.hosts.is_finished | (records.epoch >= self.task.budget.n_epochs)
        ended = is_running & is_last
        account = StepAccount(
            score_change=records.score - score_before,
            flops=flops / records.reference_flops,
            added_parameters=self._added_parameters(is_running),
            was_restored=records.was_restored,
            potential_before=np.where(is_running, before, 0.0),
            potential_after=np.where(is_running, self._potential(), 0.0),
            is_end=ended,
            final_score=self._score_committed(ended),
        )
        terms = settle_step(account, records.account, self.task.budget, self.rewards)
        records.is_over |= ended
        return StepResult(
            was_running=is_running,
            terms=terms,
            terminated=ended,
            is_illegal=is_illegal,
            ops=ops,
            refusals=refusals,
            interventions=interventions,
            final_scores=account.final_score,
            slots=self.slot_outcome(),
        )

    def slot_outcome(self) -> SlotOutcome:
        """Return the current slots, as copies."""
        arrays = self.hosts.slot_arrays()
        return SlotOutcome(
            stage=arrays.stage.copy(),
            blueprint=arrays.blueprint.copy(),
            alpha=arrays.alpha.copy(),
            contribution=self.records.contribution.copy(),
            parameters=self.records.seed_parameters.copy(),
        )

    def plant(self, seeds: Mapping[int, Sequence[FirstSeed]]) -> None:
        """Let hosts, by number, start with committed seeds; see :meth:`Population.plant`."""
        for host, own in seeds.items():
            group, number = self.hosts.find(host)
            group.population.plant(number, own)
        self._masks = None
        self.records.seed_parameters[:] = self.hosts.seed_parameters()
        self._look(list(seeds))

    def judge_committed(self, hosts: Sequence[int], split: Split) -> Floats:
        """Return the scores of hosts with their committed seeds only; nobody pays for it."""
        with self.stopwatch.measure("evaluation"):
            return self.hosts.evaluate(hosts, split, committed_only=True).scores

    def stop(self, host: int) -> None:
        """End an episode from outside; the host learns no more."""
        self.records.is_over[host] = True
        self.hosts.finish(host)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next step depends on: tensors and plain values."""
        hosts = self.hosts.state_dict()
        tensors = {f"hosts/{name}": tensor for name, tensor in hosts["tensors"].items()}
        tensors |= {f"records/{n}": tensor for n, tensor in self.records.state_dict().items()}
        return {"tensors": tensors, "facts": {"hosts": hosts["facts"]}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where :meth:`state_dict` was called."""
        parts: dict[str, dict[str, torch.Tensor]] = {"hosts": {}, "records": {}}
        for name, tensor in state["tensors"].items():
            part, _, rest = name.partition("/")
            parts[part][rest] = tensor
        seeds: list[int] = parts["records"]["draw_seed"].numpy().tolist()
        for host, seed in enumerate(seeds):
            self._replace(host, seed)
        self.hosts.load_state_dict({"tensors": parts["hosts"], "facts": state["facts"]["hosts"]})
        self.records.load_state_dict(parts["records"])
        self._masks = None

    def _replace(self, host: int, seed: int) -> None:
        group, number = self.hosts.find(host)
        group.restart(number, seed)
        self._start_record(host, seed)

    def _start_record(self, host: int, seed: int) -> None:
        """Enter what is known of a host before its first step."""
        group, number = self.hosts.find(host)
        records, population = self.records, group.population
        costs = population.costs_of(number)
        records.clear(host)
        records.draw_seed[host] = seed
        records.n_classes[host] = group.draws[number].n_classes
        records.n_samples[host] = len(population.specs[number].data.train_inputs)
        records.learning_rate[host] = population.learning_rate(number)
        records.n_parameters[host] = costs.host_parameters
        records.enter_slots(host, costs.slot_sizes)
        epoch_flops = group.reference_epoch_flops(number)
        records.reference_flops[host] = self.task.budget.n_epochs * epoch_flops

    def _look(self, hosts: list[int]) -> None:
        """Score hosts that have not trained yet; this first look is free."""
        judged = self._evaluate(hosts)
        self.records.start_scores(hosts, judged.scores, judged.losses)

    def _act(
        self, actions: NDArray[np.int64], is_running: Flags
    ) -> tuple[Flags, NDArray[np.int64], dict[int, str]]:
        """Carry the actions out; return which were illegal, the ops done and the refusals."""
        is_legal = self.masks().are_legal(actions)
        ops = np.where(is_legal & is_running, actions[:, _OP], Op.WAIT)
        refusals: dict[int, str] = {}
        for host in np.flatnonzero(ops != Op.WAIT).tolist():
            outcome = self.hosts.apply(host, actions[host])
            if not outcome.was_done:
                refusals[host] = outcome.reason
                ops[host] = Op.WAIT
        self.records.last_op[is_running] = ops[is_running]
        self.records.was_refused[:] = False
        self.records.was_refused[list(refusals)] = True
        return ~is_legal & is_running, ops, refusals

    def _train(self, is_running: Flags) -> tuple[Floats, dict[int, str]]:
        """Train, judge and measure hosts; return what it cost and why the governor stepped in."""
        records, flops = self.records, np.zeros(self.n_hosts)
        running = np.flatnonzero(is_running & ~self.hosts.is_finished).tolist()
        records.is_measured[:] = False
        records.was_restored[:] = False
        interventions: dict[int, str] = {}
        if running:
            with self.stopwatch.measure("training"):
                report = self.hosts.train_epoch()
            interventions = {host: why.reason for host, why in report.interventions.items()}
            judged = self._evaluate(running)
            losses, norms = report.losses[running], report.gradient_norms[running]
            records.enter_epoch(running, judged.scores, judged.losses, losses, norms)
            records.seed_gradient_norm[running] = report.seed_gradient_norms[running]
            records.was_restored[list(interventions)] = True
            flops += report.flops
            flops[running] += judged.flops
        records.seed_parameters[:] = self.hosts.seed_parameters()
        records.contribution[self.hosts.slot_arrays().blueprint < 0] = 0.0
        if running:
            self._measure_seeds(flops)
        return flops, interventions

    def _potential(self) -> Floats:
        return potential(self.hosts.slot_arrays().stage, self.rewards)

    def _added_parameters(self, is_running: Flags) -> Floats:
        """Return the seeds' parameters that hosts trained with, as a share of the reference's."""
        has_trained = is_running & ~self.hosts.is_finished
        added = np.where(has_trained, self.records.seed_parameters.sum(1), 0)
        return added / self.hosts.reference_parameters

    def _measure_seeds(self, flops: Floats) -> None:
        """Measure what each held seed is worth: the score with it minus without."""
        records = self.records
        is_open = self.hosts.slot_arrays().stage == Stage.HOLDING
        is_open &= ~self.hosts.is_finished[:, None]
        records.is_measured[:] = is_open
        for slot in range(self.slot_config.max_slots):
            hosts = np.flatnonzero(is_open[:, slot]).tolist()
            if hosts:
                with self.stopwatch.measure("counterfactuals"):
                    without = self.hosts.evaluate(hosts, without_slot=slot)
                records.contribution[hosts, slot] = records.score[hosts] - without.scores
                flops[hosts] += without.flops

    def _score_committed(self, ended: Flags) -> Floats:
        """Remove uncommitted seeds and score what is left, on samples nobody has seen."""
        scores = np.full(self.n_hosts, np.nan)
        hosts = np.flatnonzero(ended).tolist()
        if hosts:
            for host in hosts:
                group, number = self.hosts.find(host)
                group.population.remove_uncommitted(number)
                group.population.finish(number)
            scores[hosts] = self._evaluate(hosts, "final").scores
            self.records.seed_parameters[:] = self.hosts.seed_parameters()
        return scores

    def _evaluate(self, hosts: list[int], split: Split = "validation") -> HostScores:
        with self.stopwatch.measure("evaluation"):
            return self.hosts.evaluate(hosts, split)


def require_choices(
    actions: NDArray[np.int64], n_hosts: int, head_sizes: NDArray[np.int64]
) -> None:
    """Refuse actions that are not one choice of each head, for each host.

    Args:
        actions: ``[N, H]`` if they are right.
        n_hosts: How many hosts there are.
        head_sizes: ``[H]`` how many choices each head has.
    """
    if actions.shape != (n_hosts, len(HEAD_NAMES)):
        raise ShapeError(
            f"actions have shape {actions.shape}; [{n_hosts}, {len(HEAD_NAMES)}] is "
            f"needed: a choice for each of {', '.join(HEAD_NAMES)}."
        )
    wrong = np.argwhere((actions < 0) | (actions >= head_sizes))
    if len(wrong):
        host, head = (int(index) for index in wrong[0])
        raise ActionSpecError(
            f"the action of environment {host} has choice {actions[host, head]} of head "
            f"{HEAD_NAMES[head]!r}; it has 0 to {head_sizes[head] - 1}."
        )

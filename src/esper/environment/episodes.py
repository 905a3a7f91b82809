"""Episodes of growth: hosts are acted on, trained, validated, and rewarded.

Shapes: N = hosts, S = slots, H = heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from esper.arrays import Flags, Floats, Integers
from esper.config.growth import RELATIVE_REWARDS, RewardConfig
from esper.environment.draws import FinalSplit
from esper.environment.hosts import Hosts, HostScores
from esper.environment.records import EpisodeRecords
from esper.environment.rewards import (
    RewardTerms,
    RivalAccount,
    StepAccount,
    potential,
    settle_step,
)
from esper.errors import ActionSpecError, ConfigError, ShapeError
from esper.lifecycle.factored_actions import HEAD_NAMES, Op, growth_action_spec
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.populations import EpochReport, FirstSeed, Population
from esper.populations.factory import Form
from esper.populations.host_data import HostState, Split
from esper.simic.stopwatch import Stopwatch
from esper.tamiyo.controllers.price_schedule import PriceSchedule
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tamiyo.policy.observations import ObservationLayout
from esper.tasks import Task, TaskDraw

_OP = HEAD_NAMES.index("op")


@dataclass(frozen=True, eq=False)
class SlotOutcome:
    """The slots after a step, ``[N, S]`` each.

    For hosts that ended, only the seeds of the epoch that counts, all of them fossilized.
    """

    stage: Integers
    blueprint: Integers
    """The blueprint head's choice, -1 without a seed."""
    alpha: Floats
    contribution: Floats
    """Score with the seed minus score without it, as last measured."""
    parameters: Integers
    """Parameters of the seed, 0 without one."""
    n_fossils: Integers
    """Number of seeds that have become part of the block."""
    fossil_parameters: Integers
    """Their parameters."""


@dataclass(frozen=True, eq=False)
class StepResult:
    """What a step did to each host, ``[N]``; hosts whose episode was over are unchanged."""

    was_running: Flags
    """Hosts whose episode was still running before the step."""
    terms: RewardTerms
    terminated: Flags
    """Episodes that terminated in this step."""
    is_illegal: Flags
    """Illegal actions, which were replaced by wait."""
    ops: Integers
    """The op that was carried out: wait if a gate refused it or the action was illegal."""
    refusals: dict[int, str]
    """Why a gate refused an action, by host."""
    interventions: dict[int, str]
    """Why the governor rolled a host back, by host."""
    final_scores: Floats
    """Score of the settled host where ``terminated``, else NaN."""
    slots: SlotOutcome
    """The slots after the step."""


class GrowthEpisodes:
    """Many hosts, each in an episode of its own; independent of Gymnasium."""

    def __init__(
        self,
        task: Task,
        draw_seeds: Sequence[int],
        *,
        form: Form = "auto",
        rewards: RewardConfig | None = None,
        final_split: FinalSplit = "validation",
    ) -> None:
        """Start an episode for each draw seed; the hosts of a task's variants come last.

        Args:
            task: The task.
            draw_seeds: The draw seed of each host.
            form: How hosts are trained; see :func:`esper.make_population`.
            rewards: Settings of the reward.
            final_split: What the final score is measured on.

        Raises:
            TaskError: If there are fewer seeds than designs, or the designs differ in slots or
                blueprints.
        """
        self.task = task
        self._form: Form = form
        self._final_split: FinalSplit = final_split
        self.rewards = rewards or RewardConfig()
        self.stopwatch = Stopwatch()
        self.hosts = Hosts(task, draw_seeds, form=form, final_split=final_split)
        self.slot_config: SlotConfig = self.hosts.slot_config
        """The slots of the task's own hosts; others may name theirs differently."""
        self.layout = ObservationLayout(self.slot_config)
        self._has_rivals = self.rewards.reward in RELATIVE_REWARDS
        if self._has_rivals and not task.draws_designs:
            raise ConfigError(
                f"reward is {self.rewards.reward!r} and task {task.name!r} trains all hosts of a "
                "design together; use 'dense' or 'sparse', or a task that draws designs, such as "
                "prior."
            )
        n_rival = task.budget.n_epochs + 1 if self._has_rivals else 0
        self.records = EpisodeRecords.blank(self.n_hosts, self.slot_config.max_slots, n_rival)
        self.head_sizes = np.array(growth_action_spec(self.slot_config).sizes)
        """``[H]`` number of choices of each head."""
        self._keeps_states = self._largest_counts = False
        self._settled_states: dict[int, tuple[HostState, bool]] = {}
        """The state after the epoch that counts, and whether its blended seeds are kept."""
        self._masks: ActionMasks | None = None
        """The current legal actions; None if the hosts have changed since they were computed."""
        for host, seed in enumerate(draw_seeds):
            self._start_record(host, seed)
        self._meet_rivals(list(range(self.n_hosts)), draw_seeds)
        self._score_untrained(list(range(self.n_hosts)))

    @property
    def n_hosts(self) -> int:
        """The number of hosts."""
        return self.hosts.n_hosts

    @property
    def draws(self) -> list[TaskDraw]:
        """The draw that each host learns from."""
        return self.hosts.draws

    @property
    def population(self) -> Population:
        """The population of a task with a single design."""
        return self.hosts.require_one_group().population

    def begin(self, hosts: Sequence[int], draw_seeds: Sequence[int]) -> None:
        """Replace hosts by those of new draw seeds, each at the start of an episode."""
        with self.stopwatch.measure("new hosts"):
            for host, seed in zip(hosts, draw_seeds, strict=True):
                self._replace(host, seed)
        self._meet_rivals(hosts, draw_seeds)
        self._masks = None
        self._score_untrained(list(hosts))

    def masks(self) -> ActionMasks:
        """Return the legal actions of each host."""
        if self._masks is None:
            with self.stopwatch.measure("masks"):
                self._masks = self.hosts.masks()
        return self._masks

    def observe(self) -> NDArray[np.float32]:
        """Return the observation of each host, ``[N, D]``."""
        with self.stopwatch.measure("observations"):
            hosts = self.records.host_facts()
            return self.layout.encode(hosts, self.records.slot_facts(self.hosts.slot_arrays()))

    def step(self, actions: Integers) -> StepResult:
        """Apply an action to each host, train an epoch, validate, measure seeds and reward.

        :mod:`esper.environment.rewards` defines the reward; :meth:`observe` follows a step.

        Args:
            actions: ``[N, H]`` choice of each head; an illegal combination counts as wait.
        """
        require_choices(actions, self.n_hosts, self.head_sizes)
        records = self.records
        is_running = ~records.is_over
        score_before, potential_before = records.score.copy(), self._potential()
        epoch_before = records.epoch.copy()

        is_illegal, ops, refusals = self._apply_actions(actions, is_running)
        is_training = is_running & ~self.hosts.is_finished
        training: list[int] = np.flatnonzero(is_training).tolist()
        epoch = self._train_epoch()
        flops = epoch.flops.copy()
        flops[training] += self._validate(training, epoch)
        self._measure_seeds(flops)
        self._settle(training, flops)
        records.n_steps += is_running

        ended = is_running & (self.hosts.is_finished | (records.epoch >= records.n_epochs))
        added_parameters = np.where(is_training, records.seed_parameters.sum(1), 0)
        potential_after = self._potential()
        final_scores = self._end(ended)
        account = StepAccount(
            score_change=records.score - score_before,
            flops=flops / records.reference_flops,
            added_parameters=added_parameters / self.hosts.reference_parameters,
            was_restored=records.was_restored,
            potential_before=np.where(is_running, potential_before, 0.0),
            potential_after=np.where(is_running, potential_after, 0.0),
            is_end=ended,
            final_score=final_scores,
            flop_price=records.flop_price,
            epoch_rent=self.task.budget.parameter_rent / records.n_epochs,
            rival=self._account_rivals(epoch_before, ended) if self._has_rivals else None,
        )
        terms = settle_step(account, records.account, self.rewards)
        records.is_over |= ended
        return StepResult(
            was_running=is_running,
            terms=terms,
            terminated=ended,
            is_illegal=is_illegal,
            ops=ops,
            refusals=refusals,
            interventions={host: why.reason for host, why in epoch.interventions.items()},
            final_scores=final_scores,
            slots=self.slot_outcome(),
        )

    def returns_if_stopped(self) -> Floats:
        """Return the return ``[N]`` of each episode if it stops now, without shaping."""
        records, price = self.records, self.records.flop_price
        returns = records.final_score - price * records.paid_flops
        if self._has_rivals:
            hosts = np.arange(self.n_hosts)
            rival_flops = records.rival_flops[hosts, records.n_epochs]
            returns -= records.rival_final_score - price * rival_flops
        return returns + records.paid_rent + records.paid_penalty

    def slot_outcome(self) -> SlotOutcome:
        """Return a copy of the current slots."""
        arrays, records = self.hosts.slot_arrays(), self.records
        over = records.is_over[:, None]
        stage = np.where(records.is_settled, Stage.FOSSILIZED, Stage.DORMANT)
        fossil_parameters = np.where(
            over, records.settled_fossil_parameters, arrays.fossil_parameters
        )
        parameters = np.where(over, records.settled_parameters, records.seed_parameters)
        return SlotOutcome(
            stage=np.where(over, stage, arrays.stage),
            blueprint=np.where(over, records.settled_blueprint, arrays.blueprint),
            alpha=np.where(over, records.settled_alpha, arrays.alpha),
            contribution=np.where(over & ~records.is_settled, 0.0, records.contribution),
            parameters=parameters - fossil_parameters,
            n_fossils=np.where(over, records.settled_fossils, arrays.n_fossils),
            fossil_parameters=fossil_parameters,
        )

    def plant(self, seeds: Mapping[int, Sequence[FirstSeed]]) -> None:
        """Let some hosts start with committed seeds; see :meth:`Population.plant`."""
        for host, first_seeds in seeds.items():
            group, number = self.hosts.locate(host)
            group.population.plant(number, first_seeds)
        self._masks = None
        self.records.seed_parameters[:] = self.hosts.seed_parameters()
        self._score_untrained(list(seeds))

    def keep_states(self, *, largest_counts: bool = False) -> None:
        """From now on, let a host that ends go back to the epoch that counts, to be exported.

        The scores are the same without, but the host is as the last epoch left it.

        Args:
            largest_counts: Whether an epoch counts only if no later one has more committed seeds,
                for growth to a size that was asked for.
        """
        self._keeps_states, self._largest_counts = True, largest_counts

    def stop(self, host: int) -> None:
        """Truncate an episode; its host trains no further."""
        self.records.is_over[host] = True
        self.hosts.finish(host)

    def state_dict(self) -> dict[str, Any]:
        """Return everything the next step depends on: tensors and plain values."""
        hosts = self.hosts.state_dict()
        tensors = {f"hosts/{name}": tensor for name, tensor in hosts["tensors"].items()}
        tensors |= {f"records/{n}": tensor for n, tensor in self.records.state_dict().items()}
        return {"tensors": tensors, "facts": {"hosts": hosts["facts"]}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
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

    def _account_rivals(self, epoch_before: Integers, ended: Flags) -> RivalAccount:
        """Return what the hosts' rivals did in this step."""
        records, hosts = self.records, np.arange(self.n_hosts)
        scores, flops = records.rival_scores, records.rival_flops
        until = np.where(ended, records.n_epochs, records.epoch)
        return RivalAccount(
            score_change=scores[hosts, records.epoch] - scores[hosts, epoch_before],
            flops=flops[hosts, until] - flops[hosts, epoch_before],
            final_score=records.rival_final_score,
        )

    def _meet_rivals(self, hosts: Sequence[int], draw_seeds: Sequence[int]) -> None:
        """Record how the rivals of new hosts do, if rewards are relative to them."""
        if self.rewards.reward == "paired":
            with self.stopwatch.measure("rivals"):
                for host in hosts:
                    self._train_alone(host)
        elif self.rewards.reward == "scheduled":
            with self.stopwatch.measure("rivals"):
                self._follow_schedule(hosts, draw_seeds)

    def _train_alone(self, host: int) -> None:
        """Record how a new host would do if it were left alone, and start it again."""
        records, (group, number) = self.records, self.hosts.locate(host)
        best, scores, n_epochs = -np.inf, records.rival_scores[host], records.n_epochs[host]
        for epoch in range(n_epochs + 1):
            if epoch:
                group.population.train_epoch()
            scores[epoch] = self.hosts.evaluate([host]).scores[0]
            if scores[epoch] > best:
                best = scores[epoch]
                records.rival_final_score[host] = self.hosts.evaluate([host], "final").scores[0]
        records.rival_flops[host, : n_epochs + 1] = np.arange(n_epochs + 1) / n_epochs
        group.start_again(number)

    def _follow_schedule(self, hosts: Sequence[int], draw_seeds: Sequence[int]) -> None:
        """Record how copies of new hosts do with the fixed schedule that suits their price."""
        copies = GrowthEpisodes(
            self.task,
            draw_seeds,
            form=self._form,
            rewards=RewardConfig(shaping=0.0),
            final_split=self._final_split,
        )
        records, copied = self.records, copies.records
        schedule = PriceSchedule(copies.layout)
        schedule.start(copies.n_hosts)
        starts = np.ones(copies.n_hosts, np.bool_)
        records.rival_scores[hosts] = copied.score[:, None]
        for epoch in range(1, int(copied.n_epochs.max()) + 1):
            copies.step(schedule.act(copies.observe(), copies.masks(), starts))
            records.rival_scores[hosts, epoch:] = copied.score[:, None]
            records.rival_flops[hosts, epoch:] = copied.paid_flops[:, None]
            starts = np.zeros(copies.n_hosts, np.bool_)
        records.rival_final_score[hosts] = copied.final_score

    def _replace(self, host: int, seed: int) -> None:
        self.hosts.restart(host, seed)
        self._start_record(host, seed)

    def _start_record(self, host: int, seed: int) -> None:
        """Record what is known about a host before its first step."""
        group, number = self.hosts.locate(host)
        records, population = self.records, group.population
        costs = population.costs_of(number)
        records.clear(host)
        records.draw_seed[host] = seed
        records.n_classes[host] = group.draws[number].n_classes
        records.n_samples[host] = len(population.specs[number].data.train_inputs)
        records.n_batches[host] = population.orders[number].n_batches
        records.n_parameters[host] = costs.host_parameters
        records.set_slot_sizes(host, costs.slot_sizes)
        records.n_epochs[host] = group.n_epochs(number)
        records.flop_price[host] = group.price(number)
        epoch_flops = group.reference_epoch_flops(number)
        records.reference_flops[host] = records.n_epochs[host] * epoch_flops

    def _score_untrained(self, hosts: list[int]) -> None:
        """Score hosts before their first epoch; this first evaluation is free of charge."""
        found = self._evaluate(hosts)
        self.records.start_scores(hosts, found.scores, found.losses)
        self.records.settled_score[hosts] = -np.inf
        self._settle(hosts, np.zeros(self.n_hosts))

    def _apply_actions(
        self, actions: Integers, is_running: Flags
    ) -> tuple[Flags, Integers, dict[int, str]]:
        """Carry out the actions; return which were illegal, the ops done, and the refusals."""
        is_legal = self.masks().are_legal(actions)
        ops = np.where(is_legal & is_running, actions[:, _OP], Op.WAIT)
        refusals: dict[int, str] = {}
        with self.stopwatch.measure("actions"):
            acting: list[int] = np.flatnonzero(ops != Op.WAIT).tolist()
            for host, choices in zip(acting, actions[acting].tolist(), strict=True):
                outcome = self.hosts.apply(host, choices)
                if not outcome.was_done:
                    refusals[host] = outcome.reason
                    ops[host] = Op.WAIT
        self.records.last_op[is_running] = ops[is_running]
        self.records.was_refused[:] = False
        self.records.was_refused[list(refusals)] = True
        self._masks = None
        return ~is_legal & is_running, ops, refusals

    def _train_epoch(self) -> EpochReport:
        """Train every unfinished host for one epoch, which also ticks its slots."""
        with self.stopwatch.measure("training"):
            report = self.hosts.train_epoch()
        self.records.was_restored[:] = False
        self.records.was_restored[list(report.interventions)] = True
        return report

    def _validate(self, hosts: list[int], epoch: EpochReport) -> Floats:
        """Validate hosts after an epoch and record both; return the FLOPs of the validation."""
        found = self._evaluate(hosts)
        losses, norms = epoch.losses[hosts], epoch.gradient_norms[hosts]
        self.records.add_epoch(hosts, found.scores, found.losses, losses, norms)
        self.records.seed_gradient_norm[hosts] = epoch.seed_gradient_norms[hosts]
        self.records.gradient_noise[hosts] = epoch.gradient_noise[hosts]
        return found.flops

    def _measure_seeds(self, flops: Floats) -> None:
        """Measure what each held seed contributes, and add what that costs to ``flops``."""
        records, slots = self.records, self.hosts.slot_arrays()
        records.seed_parameters[:] = self.hosts.seed_parameters()
        records.contribution[slots.blueprint < 0] = 0.0
        is_held = slots.stage == Stage.HOLDING
        is_held &= ~self.hosts.is_finished[:, None]
        records.is_measured[:] = is_held
        for slot in range(self.slot_config.max_slots):
            hosts = np.flatnonzero(is_held[:, slot]).tolist()
            if hosts:
                with self.stopwatch.measure("counterfactuals"):
                    without = self.hosts.evaluate(hosts, without_slot=slot)
                records.contribution[hosts, slot] = records.score[hosts] - without.scores
                flops[hosts] += without.flops

    def _settle(self, hosts: list[int], flops: Floats) -> None:
        """Score hosts whose validation score is the best so far as if training ended here.

        Blended seeds are kept if validation is at least as good with them as without them; what
        that comparison costs is added to ``flops``. The final scores are free of charge and reach
        no controller before the end.
        """
        records, arrays = self.records, self.hosts.slot_arrays()
        is_better = records.score > records.settled_score
        if self._largest_counts:
            n_before = (records.settled_fossils + records.is_settled).sum(1)
            is_better |= (arrays.n_fossils + (arrays.stage == Stage.FOSSILIZED)).sum(1) > n_before
        better = [host for host in hosts if is_better[host]]
        if not better:
            return
        scores, is_kept = records.score[better], np.ones(len(better), np.bool_)
        blended = np.flatnonzero(arrays.is_blended[better].any(1))
        if len(blended):
            chosen = [better[index] for index in blended]
            with self.stopwatch.measure("counterfactuals"):
                without = self.hosts.evaluate(chosen, committed_only=True)
            flops[chosen] += without.flops
            is_kept[blended] = scores[blended] >= without.scores
            scores[blended] = np.maximum(scores[blended], without.scores)
        final_scores = np.empty(len(better))
        for kept in (True, False):
            indices = np.flatnonzero(is_kept == kept)
            if len(indices):
                with self.stopwatch.measure("evaluation"):
                    found = self.hosts.evaluate(
                        [better[index] for index in indices], "final", committed_only=not kept
                    )
                final_scores[indices] = found.scores
        records.settle(better, is_kept, scores, final_scores, arrays)
        if self._keeps_states:
            for host, kept in zip(better, is_kept.tolist(), strict=True):
                group, number = self.hosts.locate(host)
                self._settled_states[host] = group.population.get_state(number), kept

    def _end(self, ended: Flags) -> Floats:
        """End the training of hosts and return their final scores, NaN for the others."""
        records = self.records
        for host in np.flatnonzero(ended).tolist():
            group, number = self.hosts.locate(host)
            if host in self._settled_states:
                state, is_kept = self._settled_states.pop(host)
                group.population.set_state(number, state)
                group.population.end_growth(number, keep=is_kept)
            group.population.finish(number)
        records.seed_parameters[ended] = records.settled_parameters[ended]
        return np.where(ended, records.final_score, np.nan)

    def _potential(self) -> Floats:
        arrays = self.hosts.slot_arrays()
        return potential(arrays.stage, arrays.n_fossils, self.rewards)

    def _evaluate(self, hosts: list[int], split: Split = "validation") -> HostScores:
        with self.stopwatch.measure("evaluation"):
            return self.hosts.evaluate(hosts, split)


def require_choices(actions: Integers, n_hosts: int, head_sizes: Integers) -> None:
    """Check that actions hold one valid choice of each head for each host.

    Args:
        actions: Must be ``[N, H]``.
        n_hosts: The number of hosts.
        head_sizes: ``[H]`` number of choices of each head.
    """
    if actions.shape != (n_hosts, len(HEAD_NAMES)):
        raise ShapeError(
            f"actions have shape {actions.shape}; expected [{n_hosts}, {len(HEAD_NAMES)}], one "
            f"choice for each of {', '.join(HEAD_NAMES)}."
        )
    wrong = np.argwhere((actions < 0) | (actions >= head_sizes))
    if len(wrong):
        host, head = (int(index) for index in wrong[0])
        raise ActionSpecError(
            f"the action of environment {host} has choice {actions[host, head]} of head "
            f"{HEAD_NAMES[head]!r}; valid choices are 0 to {head_sizes[head] - 1}."
        )

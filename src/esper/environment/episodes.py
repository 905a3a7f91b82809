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
from esper.environment.draws import FinalSplit, HostDrawer
from esper.environment.records import EpisodeRecords, SeedSizes
from esper.environment.rewards import RewardTerms, StepAccount, potential, settle_step
from esper.errors import ActionSpecError, ShapeError
from esper.lifecycle.factored_actions import (
    HEAD_NAMES,
    GrowthAction,
    Op,
    decode_action,
    growth_action_spec,
)
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.populations import (
    Evaluation,
    FirstSeed,
    Population,
    make_population,
)
from esper.populations.factory import Form
from esper.populations.host_data import Split
from esper.simic.stopwatch import Stopwatch
from esper.tamiyo.policy.action_masks import ActionMasks, compute_array_masks
from esper.tamiyo.policy.observations import ObservationLayout, clip
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
        """Start an episode for each of the numbers that decide them."""
        task.require_alone("a population")
        self.task = task
        self.rewards = rewards or RewardConfig()
        self.stopwatch = Stopwatch()
        self._drawer = HostDrawer(task, final_split)
        drawn = [self._drawer.draw(seed) for seed in draw_seeds]
        self.draws: list[TaskDraw] = [draw for draw, _ in drawn]
        specs = [spec for _, spec in drawn]
        self.population: Population = make_population(
            task.make_host,
            specs,
            task.training,
            form=form,
            objective=task.metric.objective,
            growth_config=task.growth,
        )
        self.slot_config: SlotConfig = self.population.slot_config
        self.layout = ObservationLayout(self.slot_config)
        self.records = EpisodeRecords.blank(len(specs), self.slot_config.max_slots)
        self.head_sizes = np.array(growth_action_spec(self.slot_config).sizes)
        """``[H]`` how many choices each head has."""
        self._masks: ActionMasks | None = None
        """The legal actions as they are now; None when the hosts have changed since."""
        self._seed_sizes = SeedSizes(self.population.costs, self.slot_config)
        for host, seed in enumerate(draw_seeds):
            self._start_record(host, seed)
        self._look(list(range(len(specs))))

    @property
    def n_hosts(self) -> int:
        """How many hosts there are."""
        return self.population.n_hosts

    def begin(self, hosts: Sequence[int], draw_seeds: Sequence[int]) -> None:
        """Put new hosts in the places of some, each at the start of an episode."""
        with self.stopwatch.measure("new hosts"):
            for host, seed in zip(hosts, draw_seeds, strict=True):
                self._replace(host, seed)
        self._masks = None
        self._look(list(hosts))

    def masks(self) -> ActionMasks:
        """Return the legal actions of each host, from the arrays of slot states."""
        if self._masks is None:
            with self.stopwatch.measure("masks"):
                arrays = self.population.slot_arrays()
                self._masks = compute_array_masks(
                    torch.from_numpy(arrays.stage),
                    torch.from_numpy(arrays.age_epochs),
                    torch.from_numpy(arrays.alpha_at_rest),
                    self.slot_config,
                )
        return self._masks

    def observe(self) -> NDArray[np.float32]:
        """Return what a controller sees of each host, ``[N, D]``."""
        with self.stopwatch.measure("observations"):
            hosts = self.records.host_facts(self.task.budget)
            return self.layout.encode(hosts, self.records.slot_facts(self.population.slot_arrays()))

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
        is_last = self.population.is_finished | (records.epoch >= self.task.budget.n_epochs)
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
        """Return how the slots are now, as copies."""
        arrays = self.population.slot_arrays()
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
            self.population.plant(host, own)
        self._masks = None
        self.records.seed_parameters[:] = self._seed_sizes.count(self.population.slot_arrays())
        self._look(list(seeds))

    def judge_committed(self, hosts: Sequence[int], split: Split) -> Floats:
        """Return the score of what hosts have committed on a split; nobody pays for it."""
        with self.stopwatch.measure("evaluation"):
            judged = self.population.evaluate(split, hosts=hosts, committed_only=True)
        return self._scores(judged)

    def stop(self, host: int) -> None:
        """End an episode from outside; the host learns no more."""
        self.records.is_over[host] = True
        self.population.finish(host)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next step depends on: tensors and plain values."""
        population = self.population.state_dict()
        tensors = {f"hosts/{name}": tensor for name, tensor in population["tensors"].items()}
        tensors |= {f"records/{n}": tensor for n, tensor in self.records.state_dict().items()}
        return {"tensors": tensors, "facts": {"hosts": population["facts"]}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where :meth:`state_dict` was called."""
        parts: dict[str, dict[str, torch.Tensor]] = {"hosts": {}, "records": {}}
        for name, tensor in state["tensors"].items():
            part, _, rest = name.partition("/")
            parts[part][rest] = tensor
        seeds: list[int] = parts["records"]["draw_seed"].numpy().tolist()
        for host, seed in enumerate(seeds):
            self._replace(host, seed)
        self.population.load_state_dict(
            {"tensors": parts["hosts"], "facts": state["facts"]["hosts"]}
        )
        self.records.load_state_dict(parts["records"])
        self._masks = None

    def _replace(self, host: int, seed: int) -> None:
        self.draws[host], spec = self._drawer.draw(seed)
        self.population.restart(host, spec)
        self._start_record(host, seed)

    def _start_record(self, host: int, seed: int) -> None:
        """Enter what is known of a host before it has done anything."""
        records, population, draw = self.records, self.population, self.draws[host]
        spec, order, costs = population.specs[host], population.orders[host], population.costs
        records.clear(host)
        records.draw_seed[host] = seed
        records.n_classes[host] = draw.n_classes
        records.n_samples[host] = len(spec.data.train_inputs)
        records.learning_rate[host] = population.learning_rate(host)
        records.n_parameters[host] = population.costs_of(host).host_parameters
        records.enter_slots(host, population.costs_of(host).slot_sizes)
        epoch_flops = (
            order.n_batches * order.batch_size * costs.host_training
            + len(spec.data.validation_inputs) * costs.host_forward
        )
        records.reference_flops[host] = self.task.budget.n_epochs * epoch_flops

    def _look(self, hosts: list[int]) -> None:
        """Judge hosts that have not trained yet; a first look is not paid for."""
        judged = self._evaluate(hosts)
        self.records.start_scores(hosts, self._scores(judged), judged.losses)

    def _act(
        self, actions: NDArray[np.int64], is_running: Flags
    ) -> tuple[Flags, NDArray[np.int64], dict[int, str]]:
        """Carry the actions out; return which were illegal, the ops done and the refusals."""
        is_legal = self.masks().are_legal(actions)
        ops = np.where(is_legal & is_running, actions[:, _OP], Op.WAIT)
        refusals: dict[int, str] = {}
        for host in np.flatnonzero(ops != Op.WAIT).tolist():
            action: GrowthAction = decode_action(actions[host], self.slot_config)
            outcome = self.population.apply(host, action)
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
        running = np.flatnonzero(is_running & ~self.population.is_finished).tolist()
        records.is_measured[:] = False
        records.was_restored[:] = False
        interventions: dict[int, str] = {}
        if running:
            with self.stopwatch.measure("training"):
                report = self.population.train_epoch()
            interventions = {host: why.reason for host, why in report.interventions.items()}
            judged = self._evaluate(running)
            losses, norms = report.losses[running], report.gradient_norms[running]
            records.enter_epoch(running, self._scores(judged), judged.losses, losses, norms)
            records.seed_gradient_norm[running] = report.seed_gradient_norms[running]
            records.was_restored[list(interventions)] = True
            flops += report.flops
            flops[running] += judged.flops
        arrays = self.population.slot_arrays()
        records.seed_parameters[:] = self._seed_sizes.count(arrays)
        records.contribution[arrays.blueprint < 0] = 0.0
        if running:
            self._measure_seeds(flops)
        return flops, interventions

    def _potential(self) -> Floats:
        return potential(self.population.slot_arrays().stage, self.rewards)

    def _added_parameters(self, is_running: Flags) -> Floats:
        """Return the seeds' parameters that hosts trained with, as a share of the reference's."""
        has_trained = is_running & ~self.population.is_finished
        added = np.where(has_trained, self.records.seed_parameters.sum(1), 0)
        return added / self.population.costs.host_parameters

    def _measure_seeds(self, flops: Floats) -> None:
        """Measure what each held seed is worth: the score with it minus without."""
        arrays, records = self.population.slot_arrays(), self.records
        is_open = arrays.stage == Stage.HOLDING
        is_open &= ~self.population.is_finished[:, None]
        records.is_measured[:] = is_open
        for column, slot in enumerate(self.slot_config.slot_ids):
            hosts = np.flatnonzero(is_open[:, column]).tolist()
            if hosts:
                with self.stopwatch.measure("counterfactuals"):
                    without = self.population.evaluate(hosts=hosts, without_slot=slot)
                worth = records.score[hosts] - self._scores(without)
                records.contribution[hosts, column] = worth
                flops[hosts] += without.flops

    def _score_committed(self, ended: Flags) -> Floats:
        """Remove what was not committed and score what is left, on samples nobody has seen."""
        scores = np.full(self.n_hosts, np.nan)
        hosts = np.flatnonzero(ended).tolist()
        if hosts:
            for host in hosts:
                self.population.remove_uncommitted(host)
                self.population.finish(host)
            judged = self._evaluate(hosts, "final")
            scores[hosts] = self._scores(judged)
            self.records.seed_parameters[:] = self._seed_sizes.count(self.population.slot_arrays())
        return scores

    def _scores(self, judged: Evaluation) -> Floats:
        """Return scores, at least -1: a host that is ruined is not paid for how badly."""
        scores = np.asarray(self.task.metric.score(judged.metrics), np.float64)
        return clip(scores, -1.0, 1.0, missing=-1.0)

    def _evaluate(self, hosts: list[int], split: Any = "validation") -> Evaluation:
        with self.stopwatch.measure("evaluation"):
            return self.population.evaluate(split, hosts=hosts)


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

"""Episodes of growth: hosts are acted on, trained, validated, and rewarded.

Shapes: N = hosts, S = slots, H = heads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from esper.arrays import Flags, Floats, Integers
from esper.config.growth import RELATIVE_REWARDS, RewardConfig
from esper.environment.draws import FinalSplit
from esper.environment.engine import Episodes
from esper.environment.hosts import Hosts, KnownDraws
from esper.environment.rewards import RewardTerms, potential, settle_step
from esper.errors import ActionSpecError, ConfigError, ShapeError
from esper.lifecycle.factored_actions import HEAD_NAMES, growth_action_spec
from esper.lifecycle.slot_arrays import SlotArrays
from esper.lifecycle.slot_config import SlotConfig
from esper.populations import FirstSeed, Form
from esper.tamiyo.controllers.price_schedule import PriceSchedule
from esper.tamiyo.policy.observations import ObservationLayout
from esper.tasks import Task, TaskDraw

_OP = HEAD_NAMES.index("op")


@dataclass(frozen=True, kw_only=True, eq=False)
class StepResult:
    """What a step did to each host, ``[N]``; hosts whose episode was over are unchanged.

    Fields named like a column of :class:`~esper.telemetry.records.StepRecord` are that column.
    """

    was_running: Flags
    """Hosts whose episode was still running before the step."""
    terminated: Flags
    """Episodes that terminated in this step."""
    epoch: Integers
    op_done: Integers
    """The op that was carried out: wait if a gate refused it or the action was illegal."""
    is_illegal: Flags
    """Illegal actions, which were replaced by wait."""
    refusals: dict[int, str]
    """Why a gate refused an action, by host."""
    interventions: dict[int, str]
    """Why the governor rolled a host back, by host."""
    terms: RewardTerms
    score: Floats
    flops: Floats
    """FLOPs spent so far, as a share of a reference run's."""
    final_score: Floats
    """Score of the settled host where ``terminated``, else NaN."""
    draw_seed: Integers
    slot_configs: list[SlotConfig]
    """The slots of each host."""
    slots_before: SlotArrays
    slots: SlotArrays
    """The slots after the step. For hosts that ended, only the seeds of the epoch that counts."""

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns of the step's records that the environment knows."""
        arrays = {
            "epoch": self.epoch,
            "op_done": self.op_done,
            "is_illegal": self.is_illegal,
            **self.terms.by_name(),
            "score": self.score,
            "flops": self.flops,
        }
        return {
            **{name: values.tolist() for name, values in arrays.items()},
            "refusal": [self.refusals.get(host) for host in range(len(self.epoch))],
            "slots": self.slots.as_text(),
        }


class GrowthEpisodes(Episodes[Hosts]):
    """Many hosts of a task, each in an episode of its own; independent of Gymnasium."""

    def __init__(
        self,
        task: Task,
        draw_seeds: Sequence[int],
        *,
        form: Form = "auto",
        rewards: RewardConfig | None = None,
        final_split: FinalSplit = "validation",
        draws: KnownDraws | None = None,
    ) -> None:
        """Start an episode for each draw seed.

        The arguments are those of :class:`~esper.environment.vector_env.GrowthVectorEnv`, and
        draws that other episodes of the task know already.

        Raises:
            TaskError: If the hosts differ in slots or blueprints.
        """
        self.task = task
        self._form: Form = form
        self.rewards = rewards or RewardConfig()
        hosts = Hosts(draws or KnownDraws(task, final_split), draw_seeds, form=form)
        self.slot_config: SlotConfig = hosts.shown_slots
        """The slots of the task's own hosts; others may name theirs differently."""
        self._has_baselines = self.rewards.reward in RELATIVE_REWARDS
        if self._has_baselines and not task.draws_designs:
            raise ConfigError(
                f"reward is {self.rewards.reward!r} and task {task.name!r} trains all hosts "
                "together; use 'dense' or 'sparse', or a task that draws designs, such as "
                "prior."
            )
        n_baseline = task.budget.n_epochs + 1 if self._has_baselines else 0
        super().__init__(hosts, ObservationLayout(self.slot_config), n_baseline)
        self.head_sizes = np.array(growth_action_spec(self.slot_config).sizes)
        """``[H]`` number of choices of each head."""
        for host, seed in enumerate(draw_seeds):
            self._start_record(host, seed)
        self._meet_baselines(list(range(self.n_hosts)), draw_seeds)
        self.start(list(range(self.n_hosts)))

    @property
    def draws(self) -> list[TaskDraw]:
        """The draw that each host learns from."""
        return self.hosts.draws

    def begin(self, hosts: Sequence[int], draw_seeds: Sequence[int]) -> None:
        """Replace hosts by those of new draw seeds, each at the start of an episode."""
        with self.stopwatch.measure("new hosts"):
            for host, seed in zip(hosts, draw_seeds, strict=True):
                self._replace(host, seed)
        self._meet_baselines(hosts, draw_seeds)
        self.start(list(hosts))

    def step(self, actions: Integers) -> StepResult:
        """Apply actions ``[N, H]``, train an epoch, validate, measure seeds and reward.

        An illegal combination of choices is treated as wait. :mod:`esper.environment.rewards`
        defines the reward; :meth:`observe` follows a step.
        """
        require_choices(actions, self.n_hosts, self.head_sizes)
        records = self.records
        is_running = ~records.is_over
        score_before, potential_before = records.score.copy(), self._potential()
        epoch_before, slots_before = records.epoch.copy(), records.slots_after_step()

        is_legal = self.masks().are_legal(actions)
        ops, refusals = self.act(actions, is_legal, is_running)
        is_training = is_running & ~self.hosts.is_finished
        with self.stopwatch.measure("training"):
            trained = self.hosts.train_epoch()
        flops = self.end_epoch(np.flatnonzero(is_training).tolist(), trained)
        records.n_steps[:] += is_running

        ended = is_running & (self.hosts.is_finished | (records.epoch >= records.n_epochs))
        spent = flops / records.reference_flops
        records.flops_used[:] += spent
        added = np.where(is_training, records.slots.grown_parameters.sum(1), 0)
        epoch_rent = self.task.budget.parameter_rent / records.n_epochs
        rent = -epoch_rent * (added / self.hosts.reference_parameters)
        potential_after = np.where(is_running & ~ended, self._potential(), 0.0)
        shaping = self.rewards.gamma * potential_after - np.where(is_running, potential_before, 0.0)
        final_scores = self._end(ended)
        progress, final = records.score - score_before, final_scores
        if self._has_baselines:
            baseline = self._baseline_step(epoch_before, ended)
            progress, spent, final = (
                progress - baseline[0],
                spent - baseline[1],
                final - baseline[2],
            )
        terms = settle_step(
            records,
            self.rewards,
            progress=progress,
            flops=spent,
            rent=rent,
            shaping=shaping,
            is_end=ended,
            final_score=final,
        )
        records.is_over[:] |= ended
        return StepResult(
            was_running=is_running,
            terminated=ended,
            epoch=records.epoch.copy(),
            op_done=ops,
            is_illegal=~is_legal & is_running,
            refusals=refusals,
            interventions={host: why.reason for host, why in trained.interventions.items()},
            terms=terms,
            score=records.score.copy(),
            flops=records.flops_used.copy(),
            final_score=final_scores,
            draw_seed=records.draw_seed.copy(),
            slot_configs=self.hosts.slot_configs(),
            slots_before=slots_before,
            slots=records.slots_after_step(),
        )

    def returns_if_stopped(self) -> Floats:
        """Return the return ``[N]`` of each episode if it stops now, without shaping."""
        records, price = self.records, self.records.flop_price
        returns = records.final_score - price * records.flops_used
        if self._has_baselines:
            hosts = np.arange(self.n_hosts)
            baseline_flops = records.baseline_flops[hosts, records.n_epochs]
            returns -= records.baseline_final_score - price * baseline_flops
        return returns + records.paid_rent + records.paid_penalty

    def describe(self, host: int) -> dict[str, Any]:
        """Return what was drawn for a host and how its baseline does, by column of its record."""
        records, draw = self.records, self.draws[host]
        n_epochs = int(records.n_epochs[host])
        scores: list[float] = records.baseline_scores[host, : n_epochs + 1].round(6).tolist()
        n_slots = int((records.slots.kind[host] >= 0).sum())
        columns: dict[str, Any] = {
            "title": draw.title or None,
            "facts": json.dumps(dict(draw.facts), default=float) if draw.facts else None,
            "slot_names": json.dumps(self.hosts.slot_configs()[host].slot_ids[:n_slots]),
            "budget_epochs": n_epochs,
            "flop_price": float(records.flop_price[host]),
        }
        for name, form in (("no_growth", "paired"), ("schedule", "scheduled")):
            is_baseline = self.rewards.reward == form
            final = float(records.baseline_final_score[host]) if is_baseline else None
            columns[f"{name}_scores"] = json.dumps(scores) if is_baseline else None
            columns[f"{name}_final_score"] = final
        return columns

    def plant(self, seeds: Mapping[int, Sequence[FirstSeed]]) -> None:
        """Let some hosts start with committed seeds; see :meth:`Population.plant`."""
        for host, first_seeds in seeds.items():
            self.hosts.plant(host, first_seeds)
        self.start(list(seeds))

    def keep_states(self, *, largest_counts: bool = False) -> None:
        """From now on, let a host that ends go back to the epoch that counts, to be exported.

        The scores are the same without, but the host is as the last epoch left it.

        Args:
            largest_counts: Whether an epoch is kept only if no later one has more committed seeds,
                for growth to a size that was asked for.
        """
        self.keeps_states, self.largest_counts = True, largest_counts

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
        hosts = {"tensors": parts["hosts"], "facts": state["facts"]["hosts"]}
        self.hosts.load_state_dict(hosts)
        self.records.load_state_dict(parts["records"])
        self._masks = None

    def _baseline_step(self, epoch_before: Integers, ended: Flags) -> tuple[Floats, Floats, Floats]:
        """Return progress, FLOPs and final score of the hosts' baselines in the same step.

        At the end of an episode, the FLOPs are all that are left to spend.
        """
        records, hosts = self.records, np.arange(self.n_hosts)
        scores, flops = records.baseline_scores, records.baseline_flops
        until = np.where(ended, records.n_epochs, records.epoch)
        return (
            scores[hosts, records.epoch] - scores[hosts, epoch_before],
            flops[hosts, until] - flops[hosts, epoch_before],
            records.baseline_final_score,
        )

    def _meet_baselines(self, hosts: Sequence[int], draw_seeds: Sequence[int]) -> None:
        """Record how the baselines of new hosts do, if rewards are relative to them."""
        if self.rewards.reward == "paired":
            with self.stopwatch.measure("baselines"):
                for host in hosts:
                    self._train_without_growing(host)
        elif self.rewards.reward == "scheduled":
            with self.stopwatch.measure("baselines"):
                self._follow_schedule(hosts, draw_seeds)

    def _train_without_growing(self, host: int) -> None:
        """Record how a new host would do with no growth, and start it again."""
        records, hosts = self.records, self.hosts
        best, scores, n_epochs = -np.inf, records.baseline_scores[host], records.n_epochs[host]
        for epoch in range(n_epochs + 1):
            if epoch:
                hosts.train_epoch([host])
            scores[epoch] = self.hosts.score([host]).scores[0]
            if scores[epoch] > best:
                best = scores[epoch]
                records.baseline_final_score[host] = self.hosts.score([host], "final").scores[0]
        records.baseline_flops[host, : n_epochs + 1] = np.arange(n_epochs + 1) / n_epochs
        hosts.restart(host, hosts.specs[host])

    def _follow_schedule(self, hosts: Sequence[int], draw_seeds: Sequence[int]) -> None:
        """Record how copies of new hosts do with the fixed schedule that suits their price."""
        copies = GrowthEpisodes(
            self.task,
            draw_seeds,
            form=self._form,
            rewards=RewardConfig(shaping=0.0),
            draws=self.hosts.known_draws,
        )
        records, copied = self.records, copies.records
        schedule = PriceSchedule(copies.layout)
        schedule.start(copies.n_hosts)
        starts = np.ones(copies.n_hosts, np.bool_)
        records.baseline_scores[hosts] = copied.score[:, None]
        for epoch in range(1, int(copied.n_epochs.max()) + 1):
            copies.step(schedule.act(copies.observe(), copies.masks(), starts))
            records.baseline_scores[hosts, epoch:] = copied.score[:, None]
            records.baseline_flops[hosts, epoch:] = copied.flops_used[:, None]
            starts = np.zeros(copies.n_hosts, np.bool_)
        records.baseline_final_score[hosts] = copied.final_score

    def _replace(self, host: int, seed: int) -> None:
        self.hosts.draw(host, seed)
        self._start_record(host, seed)

    def _start_record(self, host: int, seed: int) -> None:
        """Record what is known about a host before its first step."""
        records, hosts = self.records, self.hosts
        spec, costs = hosts.specs[host], hosts.costs_of(host)
        records.clear(host)
        records.draw_seed[host] = seed
        records.n_classes[host] = hosts.draws[host].n_classes
        records.n_samples[host] = len(spec.data.train_inputs)
        records.n_batches[host] = hosts.orders[host].n_batches
        records.n_parameters[host] = costs.host_parameters
        records.set_slot_sizes(host, costs.slot_sizes)
        records.n_epochs[host] = hosts.n_epochs(host)
        records.flop_price[host] = hosts.price(host)
        epoch_flops = hosts.reference_epoch_flops(host)
        records.reference_flops[host] = records.n_epochs[host] * epoch_flops

    def _end(self, ended: Flags) -> Floats:
        """End the training of hosts and return their final scores, NaN for the others."""
        for host in np.flatnonzero(ended).tolist():
            self.hosts.restore_kept(host)
            self.hosts.finish(host)
        return np.where(ended, self.records.final_score, np.nan)

    def _potential(self) -> Floats:
        slots = self.records.slots
        return potential(slots.stage, slots.n_fossils, self.rewards)


def require_choices(actions: Integers, n_hosts: int, head_sizes: Integers) -> None:
    """Raise unless actions ``[N, H]`` hold a choice of each head for each host."""
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

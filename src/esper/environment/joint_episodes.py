"""Episodes of hosts of several tasks side by side, one part of the hosts for each task.

Shapes: N = hosts of all parts, S = slots, H = heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Floats
from esper.config.growth import RewardConfig
from esper.environment.draws import FinalSplit
from esper.environment.episodes import (
    GrowthEpisodes,
    SlotOutcome,
    StepResult,
    require_choices,
)
from esper.environment.records import EpisodeRecords
from esper.environment.rewards import RewardTerms
from esper.errors import TaskError, UnsupportedEnvironmentError
from esper.populations import FirstSeed, Population
from esper.populations.factory import Form
from esper.populations.host_data import Split
from esper.simic.stopwatch import Stopwatch
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tamiyo.policy.joint_masks import JointActionMasks
from esper.tasks import Task, TaskDraw


class JointEpisodes:
    """Hosts of several tasks as one row of hosts, in the manner of :class:`GrowthEpisodes`.

    Each part has its own population, budget and blueprints; what is shared is who steers.
    """

    def __init__(self, parts: Sequence[GrowthEpisodes]) -> None:
        """Join hosts that have the same number of slots and the same blueprints."""
        first = parts[0]
        for part in parts[1:]:
            _require_alike(first, part)
        self.parts = tuple(parts)
        self.task = first.task
        self.slot_config, self.layout = first.slot_config, first.layout
        """Of the first part; the slots of others may have other names and take other blueprints."""
        self.head_sizes = first.head_sizes
        self._ends: list[int] = np.cumsum([part.n_hosts for part in parts]).tolist()
        self.records = EpisodeRecords.blank(self.n_hosts, self.slot_config.max_slots)
        self.stopwatch = Stopwatch()
        for start, part in self._places():
            views = self.records.rows(start, start + part.n_hosts)
            views.load_state_dict(part.records.state_dict())
            part.records, part.stopwatch = views, self.stopwatch
        self._masks: JointActionMasks | None = None

    @property
    def n_hosts(self) -> int:
        """How many hosts there are in all parts."""
        return self._ends[-1]

    @property
    def draws(self) -> list[TaskDraw]:
        """What each host learns from."""
        return [draw for part in self.parts for draw in part.draws]

    @property
    def population(self) -> Population:
        """Refused: each part has one of its own."""
        raise UnsupportedEnvironmentError(
            f"these environments grow hosts of {len(self.parts)} tasks side by side, each in a "
            "population of its own; use those of growth.parts, or environments of one task."
        )

    def begin(self, hosts: Sequence[int], draw_seeds: Sequence[int]) -> None:
        """Put new hosts in the places of some, each at the start of an episode."""
        seeds = dict(zip(hosts, draw_seeds, strict=True))
        for start, part in self._places():
            own = [host for host in hosts if start <= host < start + part.n_hosts]
            if own:
                part.begin([host - start for host in own], [seeds[host] for host in own])

    def masks(self) -> ActionMasks:
        """Return the legal actions of each host."""
        parts = tuple(part.masks() for part in self.parts)
        if self._masks is None or any(
            one is not other for one, other in zip(parts, self._masks.parts, strict=True)
        ):
            self._masks = JointActionMasks(parts)
        return self._masks

    def observe(self) -> NDArray[np.float32]:
        """Return what a controller sees of each host, ``[N, D]``."""
        return np.concatenate([part.observe() for part in self.parts])

    def step(self, actions: NDArray[np.int64]) -> StepResult:
        """Act on each host, train it for an epoch, judge it and pay.

        Args:
            actions: ``[N, H]`` choices of each head; an illegal combination is taken as wait.
        """
        require_choices(actions, self.n_hosts, self.head_sizes)
        rows = np.split(actions, self._ends[:-1])
        results = [part.step(own) for part, own in zip(self.parts, rows, strict=True)]
        return StepResult(
            was_running=np.concatenate([one.was_running for one in results]),
            terms=RewardTerms(**_concatenated([one.terms for one in results])),
            terminated=np.concatenate([one.terminated for one in results]),
            is_illegal=np.concatenate([one.is_illegal for one in results]),
            ops=np.concatenate([one.ops for one in results]),
            refusals=self._renumbered([one.refusals for one in results]),
            interventions=self._renumbered([one.interventions for one in results]),
            final_scores=np.concatenate([one.final_scores for one in results]),
            slots=SlotOutcome(**_concatenated([one.slots for one in results])),
        )

    def slot_outcome(self) -> SlotOutcome:
        """Return how the slots are now, as copies."""
        return SlotOutcome(**_concatenated([part.slot_outcome() for part in self.parts]))

    def plant(self, seeds: Mapping[int, Sequence[FirstSeed]]) -> None:
        """Let hosts, by number, start with committed seeds."""
        for start, part in self._places():
            own = {host - start: some for host, some in seeds.items()}
            own = {host: some for host, some in own.items() if 0 <= host < part.n_hosts}
            if own:
                part.plant(own)

    def judge_committed(self, hosts: Sequence[int], split: Split) -> Floats:
        """Return the score of what hosts have committed on a split; nobody pays for it."""
        scores = np.full(self.n_hosts, np.nan)
        for start, part in self._places():
            own = [host for host in hosts if start <= host < start + part.n_hosts]
            if own:
                scores[own] = part.judge_committed([host - start for host in own], split)
        return scores[list(hosts)]

    def stop(self, host: int) -> None:
        """End an episode from outside; the host learns no more."""
        for start, part in self._places():
            if start <= host < start + part.n_hosts:
                part.stop(host - start)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next step depends on: tensors and plain values."""
        states = [part.state_dict() for part in self.parts]
        tensors = {
            f"{number}/{name}": tensor
            for number, state in enumerate(states)
            for name, tensor in state["tensors"].items()
        }
        return {"tensors": tensors, "facts": {"hosts": [state["facts"] for state in states]}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where :meth:`state_dict` was called."""
        tensors: list[dict[str, Any]] = [{} for _ in self.parts]
        for name, tensor in state["tensors"].items():
            number, _, rest = name.partition("/")
            tensors[int(number)][rest] = tensor
        for part, own, facts in zip(self.parts, tensors, state["facts"]["hosts"], strict=True):
            part.load_state_dict({"tensors": own, "facts": facts})

    def _places(self) -> Iterator[tuple[int, GrowthEpisodes]]:
        """Return each part with the number of its first host."""
        return zip((first for first, _ in pairwise([0, *self._ends])), self.parts, strict=True)

    def _renumbered(self, reasons: Sequence[dict[int, str]]) -> dict[int, str]:
        """Return reasons by the hosts' numbers among all."""
        places = zip(self._places(), reasons, strict=True)
        return {start + host: why for (start, _), own in places for host, why in own.items()}


def make_episodes(
    task: Task,
    draw_seeds: Sequence[int],
    *,
    form: Form,
    rewards: RewardConfig,
    final_split: FinalSplit,
) -> GrowthEpisodes | JointEpisodes:
    """Return episodes of a task's hosts; those of tasks beside it are the last.

    Raises:
        TaskError: If there are fewer hosts than tasks, or the tasks' hosts cannot be steered by one
            controller.
    """
    if len(draw_seeds) < 1 + len(task.beside):
        raise TaskError(
            f"num_envs is {len(draw_seeds)} and task {task.name!r} has others beside it; at least "
            f"{1 + len(task.beside)} are needed, one for each task. For fewer make the task "
            "without others beside it: digits-family with host 'mlp' or 'cnn'."
        )
    parts, first = list[GrowthEpisodes](), 0
    for own, n_hosts in task.spread(len(draw_seeds)):
        seeds = draw_seeds[first : first + n_hosts]
        parts.append(
            GrowthEpisodes(own, seeds, form=form, rewards=rewards, final_split=final_split)
        )
        first += n_hosts
    return parts[0] if len(parts) == 1 else JointEpisodes(parts)


def _require_alike(first: GrowthEpisodes, other: GrowthEpisodes) -> None:
    """Refuse hosts that one controller could not steer beside others."""
    names = f"task {other.task.name!r}, which is beside {first.task.name!r},"
    n_slots, n_first = other.slot_config.max_slots, first.slot_config.max_slots
    if n_slots != n_first:
        raise TaskError(
            f"a host of {names} has {n_slots} slots; it must have {n_first}, as many as the hosts "
            "beside it."
        )
    if other.slot_config.blueprints != first.slot_config.blueprints:
        raise TaskError(
            f"a host of {names} offers the blueprints {', '.join(other.slot_config.blueprints)}; "
            f"they must be {', '.join(first.slot_config.blueprints)}, as of the hosts beside it."
        )


def _concatenated(parts: Sequence[Any]) -> dict[str, Any]:
    """Return the arrays of several dataclasses of one kind, joined along the hosts, by name."""
    return {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(parts[0])
    }

"""The shards of a run: some of its hosts, the policy that grows them, and their telemetry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from esper.config.run import RunConfig
from esper.environment import GrowthVectorEnv
from esper.simic.rollout import VectorCollector
from esper.simic.rollout.shards import Chunk, Position
from esper.simic.stopwatch import Stopwatch
from esper.storage.state import State, merge, split, to_nested
from esper.tamiyo.policy.slot_network import SlotPolicy
from esper.tasks import Task
from esper.telemetry.records import RecordColumns
from esper.training.records import RoundTally
from esper.training.setup import make_agent, make_task_of_worker, split_evenly, stream_seed
from esper.training.step_records import StepRecorder


@dataclass(frozen=True, kw_only=True)
class ShardSpec:
    """What a shard is made from."""

    config: RunConfig
    number: int
    """Number of the shard, from 0."""
    first: int
    """Number of its first environment."""
    n_envs: int
    design: int | None
    """Number of the task's design that its hosts have; None for hosts of all designs."""


@dataclass(frozen=True, eq=False)
class GrowthNotes:
    """What a shard says about some steps, besides the steps."""

    records: list[list[RecordColumns]]
    """The telemetry records of each step."""
    tally: RoundTally | None
    """The tally of the round, if it ended."""


def plan_shards(config: RunConfig, task: Task) -> list[ShardSpec]:
    """Return the shards of a run; each has hosts of one design, unless there is only one shard."""
    maximum = config.envs_per_shard
    if maximum is None or maximum >= config.envs:
        return [ShardSpec(config=config, number=0, first=0, n_envs=config.envs, design=None)]
    specs: list[ShardSpec] = []
    first = 0
    for design, count in enumerate(task.share_out(config.envs)):
        for size in split_evenly(count, maximum):
            specs.append(
                ShardSpec(config=config, number=len(specs), first=first, n_envs=size, design=design)
            )
            first += size
    return specs


def make_shard(spec: ShardSpec, task: Task | None = None) -> GrowthShard:
    """Return a shard at the start of its first episodes."""
    return GrowthShard(spec, make_task_of_worker(spec.config) if task is None else task)


class GrowthShard:
    """Some hosts of a run; see :class:`~esper.simic.rollout.shards.Shard`."""

    def __init__(self, spec: ShardSpec, task: Task) -> None:
        config = spec.config
        own = task if spec.design is None else task.designs[spec.design]
        self.envs = GrowthVectorEnv(own, spec.n_envs, reward=config.rewards, purpose="training")
        self._agent = make_agent(config, self.envs.slot_config, shard=spec.number)
        seed = stream_seed(config.seed, "episodes") + spec.first
        self._collector = VectorCollector(self.envs, self._agent, seed=seed)
        self._buffer = self._agent.make_buffer(spec.n_envs, config.n_steps)
        self._tally = RoundTally(spec.n_envs)
        policy = self._agent.policy
        assert isinstance(policy, SlotPolicy), "a run trains a policy for growth"
        self._recorder = StepRecorder(
            self.envs, policy, record_steps=config.telemetry.record_steps, first_env=spec.first
        )
        self._stopwatch = Stopwatch()

    def set_weights(self, weights: State) -> None:
        """Act with these weights from now on."""
        self._agent.load_weights(to_nested(weights))

    def collect(self, n_steps: int, position: Position, *, is_last: bool) -> Chunk:
        """Take steps; ``is_last`` says that the round ends with them."""
        before = self._seconds()
        self._buffer.reset()
        records = [
            self._step({"round": position.round, "step": position.step + number})
            for number in range(1, n_steps + 1)
        ]
        tally = None
        if is_last:
            self._collector.finish(self._buffer)
            tally = self._tally
            self._tally = tally.for_next_round()
        after = self._seconds()
        return Chunk(
            steps=self._buffer.state_dict(),
            notes=GrowthNotes(records, tally),
            seconds={part: after[part] - before.get(part, 0.0) for part in after},
        )

    def save(self) -> State:
        """Return everything that the next step depends on, except the weights."""
        envs = self.envs.state_dict()
        return merge(
            {
                "envs": State(envs["tensors"], envs["facts"]),
                "collector": State(self._collector.state_dict()),
                "tally": State(self._tally.state_dict()),
                "actions": State({"generator": self._agent.generator.get_state()}),
            }
        )

    def load(self, state: State) -> None:
        """Continue from what :meth:`save` returned."""
        parts = split(state)
        envs: dict[str, Any] = vars(parts["envs"])
        self.envs.load_state_dict(envs)
        self._tally.load_state_dict(parts["tally"].tensors)
        self._collector.load_state_dict(parts["collector"].tensors)
        generator: Tensor = parts["actions"].tensors["generator"]
        self._agent.generator.set_state(generator)

    def _step(self, position: dict[str, int]) -> list[RecordColumns]:
        """Take one step and return its records."""
        step = self._collector.step(self._buffer)
        with self._stopwatch.measure("telemetry"):
            self._tally.add(step)
            records = self._recorder.records(position, step, self._tally)
            self._tally.end_episodes(step.dones)
        return records

    def _seconds(self) -> dict[str, float]:
        """Return the seconds spent so far, by part."""
        own = self._collector.stopwatch.seconds, self._stopwatch.seconds
        return {part: s for parts in (self.envs.seconds, *own) for part, s in parts.items()}


def join_tallies(notes: Sequence[GrowthNotes]) -> RoundTally:
    """Return the tally of a round over all shards."""
    tallies = [note.tally for note in notes if note.tally is not None]
    assert len(tallies) == len(notes), "the round has ended in every shard"
    return tallies[0] if len(tallies) == 1 else RoundTally.join(tallies)

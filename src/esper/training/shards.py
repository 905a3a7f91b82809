"""The shards of a run: fixed parts of its hosts, which any process can collect to the same bits.

What a shard collects is a function of the shard, the weights and its state, so the number and size
of shards decide the results, and the number of workers only where they are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter

from torch import Tensor

from esper.config.run import RunConfig
from esper.environment import GrowthVectorEnv
from esper.simic.rollout import VectorCollector
from esper.stopwatch import Stopwatch
from esper.storage.state import State, from_bytes, to_bytes
from esper.tamiyo.policy.slot_network import SlotPolicy
from esper.tasks import Task
from esper.telemetry.records import RecordColumns
from esper.training.records import RoundTally
from esper.training.setup import make_agent, make_task_of_worker, split_evenly, stream_seed
from esper.training.step_records import StepRecorder
from esper.training.worker_pool import Job, OnShare, Pool

CHUNK_SECONDS = 1.0
"""About how long workers collect before they report; a stop takes effect after that."""


@dataclass(frozen=True, kw_only=True)
class ShardSpec:
    """What a shard is made from."""

    config: RunConfig
    number: int
    """Number of the shard, from 0."""
    first: int
    """Number of its first environment."""
    n_envs: int


@dataclass(frozen=True)
class Position:
    """Where a shard stands."""

    round: int
    """The current round, from 1."""
    step: int
    """Steps taken so far."""


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some steps of one shard."""

    steps: dict[str, Tensor]
    """As a rollout buffer saves them."""
    records: list[list[RecordColumns]]
    """The telemetry records of each step."""
    tally: RoundTally | None
    """The tally of the round, if it ended."""
    seconds: dict[str, float]
    """Seconds by part."""


def plan_shards(config: RunConfig) -> list[ShardSpec]:
    """Return the shards of a run."""
    sizes = split_evenly(config.envs, config.envs_per_shard or config.envs)
    firsts = accumulate(sizes, initial=0)
    return [
        ShardSpec(config=config, number=number, first=first, n_envs=size)
        for number, (first, size) in enumerate(zip(firsts, sizes, strict=False))
    ]


class GrowthShard:
    """Some hosts of a run, the policy that grows them, and their telemetry."""

    def __init__(self, spec: ShardSpec, task: Task) -> None:
        """Make the shard, at the start of its first episodes."""
        config = spec.config
        self.envs = GrowthVectorEnv(task, spec.n_envs, reward=config.rewards, purpose="training")
        self.envs.ablate(config.ablation)
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
        self._agent.load_weights(dict(weights))

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
            records=records,
            tally=tally,
            seconds={part: after[part] - before.get(part, 0.0) for part in after},
        )

    def save(self) -> State:
        """Return everything that the next step depends on, except the weights."""
        return {
            "envs": self.envs.state_dict(),
            "collector": self._collector.state_dict(),
            "tally": self._tally.state_dict(),
            "generator": self._agent.generator.get_state(),
        }

    def load(self, state: State) -> None:
        """Continue from what :meth:`save` returned."""
        self.envs.load_state_dict(state["envs"])
        self._tally.load_state_dict(state["tally"])
        self._collector.load_state_dict(state["collector"])
        self._agent.generator.set_state(state["generator"])

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


@dataclass
class _Held:
    """A shard that a worker remembers, with what it was given or returned last."""

    spec: ShardSpec
    shard: GrowthShard
    state: bytes | None = None
    weights: bytes = b""


_held: dict[int, _Held] = {}
"""The shards that this worker remembers, by number: it need not load a state that they have."""


def _collect(
    _: OnShare,
    spec: ShardSpec,
    state: bytes | None,
    weights: bytes,
    n_steps: int,
    position: Position,
    is_last: bool,
) -> tuple[bytes, Chunk]:
    """Collect steps of a shard from a state, None for its start; return its state after them."""
    held = _held.pop(spec.number, None)  # not remembered if anything fails
    if held is None or held.spec != spec or (state is None and held.state is not None):
        held = _Held(spec, GrowthShard(spec, make_task_of_worker(spec.config)))
    if state is not None and state != held.state:
        held.shard.load(from_bytes(state))
    if weights != held.weights:
        held.shard.set_weights(from_bytes(weights))
    chunk = held.shard.collect(n_steps, position, is_last=is_last)
    held.state, held.weights = to_bytes(held.shard.save()), weights
    _held[spec.number] = held
    return held.state, chunk


class ShardedRollout:
    """Collects the steps of all shards together.

    A pool in this process leaves the shards here. From other processes every chunk brings its state
    along, so a dead worker costs one chunk.
    """

    def __init__(
        self,
        pool: Pool,
        specs: Sequence[ShardSpec],
        task: Task,
        *,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Describe the shards.

        Args:
            pool: Computes the steps.
            specs: The specification of each shard.
            task: Task of the run; other processes make their own copy.
            check: Called while workers are busy; what it raises ends the collection.
        """
        self._pool, self._specs, self._check = pool, list(specs), check
        self._shards = [GrowthShard(spec, task) for spec in specs] if pool.is_local else []
        self._states: list[bytes | None] = [None] * len(self._specs)
        self._weights = b""
        self._step_seconds: float | None = None

    def chunk_steps(self, n_steps: int) -> int:
        """Return how many of some steps to collect at once.

        So few that this process can do something else about each second, in chunks of about the
        same size, as each brings its state along. The results do not depend on it.
        """
        if self._pool.is_local or not self._step_seconds:
            return 1
        n_chunks = max(1, round(n_steps * self._step_seconds / CHUNK_SECONDS))
        return math.ceil(n_steps / n_chunks)

    def set_weights(self, weights: State) -> None:
        """Act with these weights from now on."""
        for shard in self._shards:
            shard.set_weights(weights)
        self._weights = b"" if self._shards else to_bytes(weights)

    def collect(self, n_steps: int, position: Position, *, is_last: bool) -> list[Chunk]:
        """Take steps in all shards; return a chunk for each."""
        if self._pool.is_local:
            return [shard.collect(n_steps, position, is_last=is_last) for shard in self._shards]
        start = perf_counter()
        chunks = self._run(n_steps, position, is_last=is_last)
        self._step_seconds = (perf_counter() - start) / n_steps
        return chunks

    def save(self) -> list[State]:
        """Return the state of each shard."""
        if self._pool.is_local:
            return [shard.save() for shard in self._shards]
        if None in self._states:
            self._run(0, Position(1, 0))
        return [from_bytes(state) for state in self._states if state is not None]

    def load(self, states: Sequence[State], position: Position) -> None:
        """Continue from what :meth:`save` returned.

        Args:
            states: The state of each shard.
            position: Where the shards stood.
        """
        if self._pool.is_local:
            for shard, state in zip(self._shards, states, strict=True):
                shard.load(state)
            return
        self._states = [to_bytes(state) for state in states]
        self._run(0, position)

    def _run(self, n_steps: int, position: Position, *, is_last: bool = False) -> list[Chunk]:
        """Let workers take steps, and hold the states of their shards."""
        rest = self._weights, n_steps, position, is_last
        jobs = [
            Job(f"shard {spec.number + 1} of {len(self._specs)}", _collect, (spec, state, *rest))
            for spec, state in zip(self._specs, self._states, strict=True)
        ]
        results: list[tuple[bytes, Chunk]] = self._pool.run(jobs, check=self._check)
        self._states = [state for state, _ in results]
        return [chunk for _, chunk in results]


def join_tallies(chunks: Sequence[Chunk]) -> RoundTally:
    """Return the tally of a round over all shards."""
    tallies = [chunk.tally for chunk in chunks if chunk.tally is not None]
    assert len(tallies) == len(chunks), "the round has ended in every shard"
    return tallies[0] if len(tallies) == 1 else RoundTally.join(tallies)

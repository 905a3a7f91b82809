"""Rollouts of environments in shards, which any process can collect to the same bits.

A shard is a fixed part of the environments with random numbers of its own. What it collects is a
function of the shard, the weights and its state, so the number and size of shards decide the
results, and the number of workers only where they are computed.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from torch import Tensor

from esper.simic.rollout.jobs import Job, Payload, Payloads, Pool, Result, WorkerContext
from esper.storage.state import State

CHUNK_SECONDS = 1.0
"""About how long workers collect before they report; a stop takes effect after that."""


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
    notes: Any
    """What else is to be known about them."""
    seconds: dict[str, float]
    """Seconds by part."""


class Shard(Protocol):
    """Some environments and the policy that acts in them."""

    def set_weights(self, weights: State) -> None:
        """Act with these weights from now on."""
        ...

    def collect(self, n_steps: int, position: Position, *, is_last: bool) -> Chunk:
        """Take steps; ``is_last`` says that the round ends with them."""
        ...

    def save(self) -> State:
        """Return everything that the next step depends on, except the weights."""
        ...

    def load(self, state: State) -> None:
        """Continue from what :meth:`save` returned."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Request:
    """What a worker is asked to collect, and from where."""

    make: Callable[[Any], Shard]
    spec: Any
    key: str
    """What a worker remembers the shard by."""
    rollout: str
    """Tells the shards of other rollouts apart."""
    position: Position
    weights: int
    """Number of the weights; equal numbers mean equal weights."""
    n_steps: int
    is_last: bool
    wants_state: bool


@dataclass
class _Held:
    """A shard that a worker remembers."""

    shard: Shard
    rollout: str
    step: int
    """Steps it has taken; -1 if its state is not known."""
    weights: int = -1
    """Number of its weights; -1 for none yet."""


def _collect(
    context: WorkerContext, request: _Request, payloads: Payloads
) -> tuple[Any, dict[str, Payload]]:
    """Collect steps of a shard; a worker that has been at this point does not load its state."""
    step = request.position.step
    held = context.held.get(request.key)
    if held is None or held.rollout != request.rollout:
        first = 0 if "state" not in payloads else -1
        held = _Held(request.make(request.spec), request.rollout, first)
        context.held[request.key] = held
    if held.step != step:
        held.step = -1  # until it is loaded
        held.shard.load(payloads["state"].state)
    chunk = None
    if request.n_steps:
        if held.weights != request.weights:
            held.shard.set_weights(payloads["weights"].state)
            held.weights = request.weights
        held.step = -1  # until the steps are taken
        chunk = held.shard.collect(request.n_steps, request.position, is_last=request.is_last)
    held.step = step + request.n_steps
    made = {"state": Payload(held.shard.save())} if request.wants_state else {}
    if chunk is None:
        return None, made
    made["steps"] = Payload(State(chunk.steps))
    return (chunk.notes, chunk.seconds), made


class ShardedRollout:
    """Collects the steps of all shards together, and holds their states.

    A pool in this process keeps the shards themselves; their states are taken when they are needed.
    From other processes every chunk brings its state along, so a dead worker costs one chunk.
    """

    def __init__(
        self,
        pool: Pool,
        make: Callable[[Any], Shard],
        specs: Sequence[Any],
        *,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Describe the shards; they are made with the first steps.

        Args:
            pool: Computes the steps.
            make: Makes a shard from its specification; it must be importable by name.
            specs: The specification of each shard, whose text must be unique.
            check: Called while workers are busy; what it raises ends the collection.
        """
        self._pool, self._make, self._specs, self._check = pool, make, list(specs), check
        self._id = uuid.uuid4().hex
        self._position = Position(1, 0)
        self._states: list[Payload] | None = None
        """The state of each shard at the position; None at the start and if this process has
        them."""
        self._weights, self._weights_number = Payload(State()), 0
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
        self._weights, self._weights_number = Payload(weights), self._weights_number + 1

    def collect(self, n_steps: int, position: Position, *, is_last: bool) -> list[Chunk]:
        """Take steps in all shards; return a chunk for each."""
        self._position = position
        start = perf_counter()
        results = self._run(n_steps, is_last=is_last, wants_state=not self._pool.is_local)
        self._step_seconds = (perf_counter() - start) / n_steps
        self._position = Position(position.round, position.step + n_steps)
        if not self._pool.is_local:
            self._keep([result.payloads["state"] for result in results])
        return [Chunk(result.payloads["steps"].state.tensors, *result.value) for result in results]

    def save(self) -> list[State]:
        """Return the state of each shard."""
        states = self._states
        if states is None:
            states = [result.payloads["state"] for result in self._run(0, wants_state=True)]
            self._keep(states)
        return [payload.state for payload in states]

    def load(self, states: Sequence[State], position: Position) -> None:
        """Continue from what :meth:`save` returned.

        Args:
            states: The state of each shard.
            position: Where the shards stood.
        """
        self._id = uuid.uuid4().hex
        self._position = position
        self._states = [Payload(state) for state in states]
        self._run(0)
        self._keep(self._states)

    def _keep(self, states: list[Payload]) -> None:
        """Hold the states of shards that other processes have, and may lose."""
        self._states = None if self._pool.is_local else states

    def _run(
        self, n_steps: int, *, is_last: bool = False, wants_state: bool = False
    ) -> list[Result]:
        jobs: list[Job] = []
        for number, spec in enumerate(self._specs):
            payloads = {"weights": self._weights} if n_steps else {}
            if self._states is not None:
                payloads["state"] = self._states[number]
            key = f"shard {number}"
            request = _Request(
                make=self._make,
                spec=spec,
                key=key,
                rollout=self._id,
                position=self._position,
                weights=self._weights_number,
                n_steps=n_steps,
                is_last=is_last,
                wants_state=wants_state,
            )
            name = f"shard {number + 1} of {len(self._specs)}"
            jobs.append(
                Job(function=_collect, request=request, payloads=payloads, key=key, name=name)
            )
        return self._pool.run(jobs, check=self._check)

"""Jobs that any process can compute, and the pool that computes them in this one.

A job is a function of its arguments and payloads alone, so it has the same result wherever and
however often it is computed. A worker may remember what it made for a job's key, to be faster the
next time; what it remembers must not change the result.
"""

from __future__ import annotations

import importlib
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from esper.errors import EsperError, summarize_error
from esper.storage.state import State, from_bytes, to_bytes


class Payload:
    """A state on its way between processes: as an object, as bytes, or still to be fetched."""

    def __init__(self, content: State | bytes | Callable[[], bytes]) -> None:
        self._state = content if isinstance(content, State) else None
        self._bytes = content if isinstance(content, bytes) else None
        self._fetch = content if callable(content) else None
        self.address: Any = None
        """Where others can fetch it, if it was put anywhere."""

    @property
    def state(self) -> State:
        """The state."""
        if self._state is None:
            self._state = from_bytes(self.bytes)
        return self._state

    @property
    def bytes(self) -> bytes:
        """The state as bytes."""
        if self._bytes is None and self._fetch is not None:
            self._bytes = self._fetch()
        if self._bytes is None:
            assert self._state is not None, "a payload has some content"
            self._bytes = to_bytes(self._state)
        return self._bytes


Payloads = Mapping[str, Payload]


@dataclass
class WorkerContext:
    """What a worker has while it computes a job."""

    held: dict[str, Any] = field(default_factory=dict[str, Any])
    """What it remembers, by key."""
    report: Callable[[float], None] = lambda _: None
    """Reports the share of the job that is done."""
    check: Callable[[], None] = lambda: None
    """Raises an exception if the job should not be continued."""


def prepare_worker(threads: int, warm_up: str) -> None:
    """Make this process a worker.

    Args:
        threads: Threads that PyTorch may use.
        warm_up: A module to import before the first job; empty for none.
    """
    warnings.simplefilter("ignore")  # the first process warns of the same things itself
    torch.set_num_threads(threads)
    if warm_up:
        importlib.import_module(warm_up)


def failure_of(error: Exception) -> Exception:
    """Return an exception of a job as it can travel to another process."""
    if isinstance(error, EsperError):
        return error
    failure = RuntimeError(f"a worker raised {summarize_error(error)}")
    failure.add_note("".join(traceback.format_exception(error)))
    return failure


@dataclass(frozen=True, kw_only=True)
class Job:
    """A call of a function that can be imported: ``function(context, request, payloads)``.

    It returns a small value and payloads.
    """

    function: Callable[[WorkerContext, Any, Payloads], tuple[Any, dict[str, Payload]]]
    request: Any
    """A small value that says what to compute."""
    payloads: Payloads = field(default_factory=dict[str, Payload])
    key: str = ""
    """Jobs with the same key go to the same worker if they can."""
    name: str = "a job"
    """What it is called in messages."""


@dataclass(frozen=True)
class Result:
    """What a job returned."""

    value: Any
    payloads: Payloads


@dataclass(frozen=True)
class PoolStatus:
    """How the workers of a pool are."""

    alive: int
    """Workers that can compute, without spares."""
    restarted: int
    """Workers that were replaced so far, because they died."""
    waited: float
    """Seconds so far that workers had nothing to do while others were busy, all together."""


OnShare = Callable[[int, float], None]
"""Called with the number of a job and the share of it that is done."""


def total_share(sizes: Sequence[int], on_total: Callable[[float], None]) -> OnShare:
    """Return what adds up the shares of jobs of these sizes and passes on their growing total."""
    shares, shown = np.zeros(len(sizes)), -1.0

    def add(job: int, share: float) -> None:
        nonlocal shown
        shares[job] = share * sizes[job] / sum(sizes)
        if (total := float(shares.sum())) > shown:  # all jobs begin at 0
            shown = total
            on_total(total)

    return add


class Pool(Protocol):
    """Computes jobs."""

    is_local: bool
    """Whether jobs are computed in this process, which then keeps everything they made."""
    n_workers: int

    def run(
        self,
        jobs: Sequence[Job],
        *,
        check: Callable[[], None] = lambda: None,
        on_share: OnShare = lambda job, share: None,
    ) -> list[Result]:
        """Compute jobs and return their results in the same order.

        Args:
            jobs: The jobs.
            check: Called often; what it raises ends all jobs.
            on_share: Called with the progress of each job.

        Raises:
            WorkerError: If a worker died each time that it computed a certain job.
        """
        ...

    def start(self) -> None:
        """Start the workers, so that they are ready sooner; the first jobs do so too."""
        ...

    def status(self) -> PoolStatus:
        """Return how the workers are."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...


class InlinePool:
    """Computes jobs in this process, one after another."""

    is_local = True
    n_workers = 1

    def __init__(self) -> None:
        self._context = WorkerContext()

    def run(
        self,
        jobs: Sequence[Job],
        *,
        check: Callable[[], None] = lambda: None,
        on_share: OnShare = lambda job, share: None,
    ) -> list[Result]:
        """Compute jobs and return their results in the same order."""
        results: list[Result] = []
        context = self._context
        for number, job in enumerate(jobs):
            context.check = check
            context.report = lambda share, number=number: on_share(number, share)
            results.append(Result(*job.function(context, job.request, job.payloads)))
            on_share(number, 1.0)
        return results

    def start(self) -> None:
        """Do nothing; there are no workers."""

    def status(self) -> PoolStatus:
        """Return that this process is alive."""
        return PoolStatus(alive=1, restarted=0, waited=0.0)

    def close(self) -> None:
        """Forget what jobs made."""
        self._context.held.clear()

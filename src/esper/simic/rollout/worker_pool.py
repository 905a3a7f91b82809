"""Sharing jobs out among workers: the same worker for the same key, and others if one dies."""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol

from esper.errors import WorkerError
from esper.simic.rollout.jobs import Job, OnShare, PoolStatus, Result

MAX_TRIES = 3
"""Workers that may die of the same job before the jobs are given up."""
MAX_FAILED_STARTS = 10
"""Workers that may die before they are ready, until a job succeeds, before that."""
WAIT_SECONDS = 0.2
"""Longest wait between two checks."""
SLOW_FACTOR, SLOW_SECONDS = 3.0, 2.0
"""A worker is slow if a job takes it this much longer than is usual, and at least this long."""
START_SECONDS = 60.0
"""How long a new worker may take for its first job before it is slow."""
N_RECENT = 64
"""Durations of jobs that tell what is usual."""


class WorkerDied(Exception):  # noqa: N818 - not an error of the user; the pool replaces the worker
    """Raised where a worker is found dead; the message says how it ended."""


@dataclass(frozen=True)
class Progress:
    """A message of a worker: the share of its job that is done."""

    share: float


@dataclass(frozen=True)
class Failed:
    """A message of a worker: its job raised an exception."""

    error: Exception


Message = Progress | Failed | Result


class Worker(Protocol):
    """Another process that computes one job at a time."""

    @property
    def is_ready(self) -> bool:
        """Whether it has started and can begin a job, as far as is known."""
        ...

    def submit(self, job: Job) -> None:
        """Start a job.

        Raises:
            WorkerDied: If the worker is dead.
        """
        ...

    def receive(self) -> Message | None:
        """Return the next message; None if there is none yet.

        Raises:
            WorkerDied: If the worker is dead.
        """
        ...

    def end(self) -> None:
        """End the worker, whatever it is doing."""
        ...


class WorkerPool(ABC):
    """A pool of workers, each another process. A dead one is replaced, and its job repeated."""

    is_local = False

    def __init__(self, n_workers: int) -> None:
        self.n_workers = n_workers
        self._workers: list[Worker] = []
        self._spares: list[Worker] = []
        self._owner: dict[str, Worker] = {}
        """The worker that was last given a job of a key."""
        self._proven: set[Worker] = set()
        """Workers that have returned a result, and so are done with starting."""
        self._seconds: deque[float] = deque(maxlen=N_RECENT)
        self._restarted, self._waited, self._failed_starts = 0, 0.0, 0

    @abstractmethod
    def make_worker(self) -> Worker:
        """Start a worker, without waiting until it is ready."""

    @abstractmethod
    def wait(self, busy: Sequence[Any], seconds: float) -> None:
        """Wait until one of these workers has a message or is dead, or for some seconds."""

    def status(self) -> PoolStatus:
        """Return how the workers are."""
        return PoolStatus(alive=len(self._workers), restarted=self._restarted, waited=self._waited)

    def run(
        self,
        jobs: Sequence[Job],
        *,
        check: Callable[[], None] = lambda: None,
        on_share: OnShare = lambda job, share: None,
    ) -> list[Result]:
        """Compute jobs and return their results in the same order."""
        self._fill_up()
        work = _Work(jobs)
        try:
            while len(work.results) < len(jobs):
                check()
                self._assign(work)
                start = monotonic()
                self.wait(list(work.running), WAIT_SECONDS)
                n_idle = len(self._workers) - len(work.running)
                self._waited += n_idle * (monotonic() - start)
                for worker in list(work.running):
                    self._listen(worker, work, on_share)
        finally:
            # After an exception, or if a slow worker was overtaken. What it would still send
            # belongs to these jobs.
            for worker in work.running:
                self._dismiss(worker)
        return [work.results[number] for number in range(len(jobs))]

    def close(self) -> None:
        """End all workers."""
        for worker in (*self._workers, *self._spares):
            worker.end()
        self._workers.clear()
        self._spares.clear()
        self._owner.clear()
        self._proven.clear()

    def start(self) -> None:
        """Start the workers, without waiting until they are ready."""
        self._fill_up()

    def _fill_up(self) -> None:
        """Replace workers that are gone, and keep one in reserve that is ready at once."""
        while len(self._workers) < self.n_workers:
            self._workers.append(self._spares.pop() if self._spares else self.make_worker())
        # Not while the others are starting, which would take them longer then.
        if not self._spares and self._proven.issuperset(self._workers):
            self._spares.append(self.make_worker())

    def _dismiss(self, worker: Worker) -> None:
        worker.end()
        self._workers.remove(worker)
        self._proven.discard(worker)
        self._owner = {key: owner for key, owner in self._owner.items() if owner is not worker}

    def _assign(self, work: _Work) -> None:
        """Give jobs to idle workers."""
        for worker in list(self._workers):
            if worker in work.running:
                continue
            number = self._choose(worker, work)
            if number is None:
                continue
            job = work.jobs[number]
            try:
                worker.submit(job)
            except WorkerDied as death:
                self._replace(worker, work, death)
                continue
            work.start(number, worker)
            if job.key:
                self._owner[job.key] = worker

    def _choose(self, worker: Worker, work: _Work) -> int | None:
        """Return the job that an idle worker should do: its own before one of a slow worker.

        A worker gets no more keys than its share, or the first one to be ready would get all.
        """
        n_owned = sum(self._owner.get(key) is worker for key in work.keys)
        has_share = n_owned >= math.ceil(len(work.keys) / self.n_workers)
        for number in work.waiting:
            key = work.jobs[number].key
            owner = self._owner.get(key)
            if owner is worker or (owner is None and not (key and has_share)):
                return number
        slow = [other for other in work.running if self._is_slow(other, work)]
        for number in work.waiting if slow else ():
            if self._owner.get(work.jobs[number].key) in (None, *slow):
                return number
        # What a slow worker has begun is also begun by another: whoever is first, counts.
        doubled = Counter(work.running.values())
        return next((n for w in slow if doubled[n := work.running[w]] == 1), None)

    def _is_slow(self, worker: Worker, work: _Work) -> bool:
        usual = statistics.median(self._seconds) if self._seconds else math.inf
        minimum = SLOW_SECONDS if worker in self._proven else START_SECONDS
        return monotonic() - work.started[worker] > max(minimum, SLOW_FACTOR * usual)

    def _listen(self, worker: Worker, work: _Work, on_share: OnShare) -> None:
        """Take the messages of a worker."""
        number = work.running[worker]
        while True:
            try:
                message = worker.receive()
            except WorkerDied as death:
                self._replace(worker, work, death)
                return
            match message:
                case None:
                    return
                case Progress(share):
                    on_share(number, share)
                case Failed(error):
                    del work.running[worker]  # it can go on with other jobs
                    raise error
                case Result():
                    if worker in self._proven:
                        self._seconds.append(monotonic() - work.started[worker])
                    self._proven.add(worker)
                    self._failed_starts = 0
                    del work.running[worker]
                    if number not in work.results:
                        work.results[number] = message
                        on_share(number, 1.0)
                    return

    def _replace(self, worker: Worker, work: _Work, death: WorkerDied) -> None:
        """Let another worker take the place and the job of a dead one."""
        self._dismiss(worker)
        self._restarted += 1
        number = work.running.pop(worker, None)
        if not worker.is_ready:
            self._failed_starts += 1
            if self._failed_starts == MAX_FAILED_STARTS:
                raise WorkerError(
                    f"{MAX_FAILED_STARTS} workers ended while they were starting, the last by "
                    f"{death}; there may be too little memory: use fewer workers."
                )
        if number is not None:
            work.tries[number] += worker.is_ready
            if work.tries[number] == MAX_TRIES:
                raise WorkerError(
                    f"{work.jobs[number].name} ended {MAX_TRIES} workers in a row, the last by "
                    f"{death}; a task that crashes or needs too much memory does that."
                )
            if number not in work.results and number not in work.running.values():
                work.waiting.appendleft(number)
        self._fill_up()


class _Work:
    """The state of some jobs."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.keys = {job.key for job in jobs if job.key}
        self.waiting: deque[int] = deque(range(len(jobs)))
        self.running: dict[Worker, int] = {}
        self.started: dict[Worker, float] = {}
        self.tries: Counter[int] = Counter()
        self.results: dict[int, Result] = {}

    def start(self, number: int, worker: Worker) -> None:
        """Note that a worker has begun a job."""
        if number in self.waiting:
            self.waiting.remove(number)
        self.running[worker], self.started[worker] = number, monotonic()

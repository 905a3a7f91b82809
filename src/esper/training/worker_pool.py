"""Pools that compute jobs: in this process, or in worker processes on this machine.

A job has the same result wherever and however often it is computed. No port is opened.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import resource_tracker
from time import monotonic
from types import ModuleType
from typing import Any, Protocol

from esper.errors import EsperError, EsperWarning, WorkerError, summarize_error

MAX_DEATHS = 3
"""Workers that may die of the same job before the jobs are given up."""
WAIT_SECONDS = 0.2
"""Longest wait between two checks."""
HANG_SECONDS, HANG_FACTOR = 60.0, 10.0
"""A worker hangs if it makes no progress for so long, and for so many times the longest job."""
BEAT_SECONDS = 1.0
"""Time between two signs that a worker process gives of running."""
PR_SET_PDEATHSIG = 1
"""Linux's code for the signal that a process gets when its parent ends."""

OnShare = Callable[[float], None]
"""Called with the share of the work that is done, often; what it raises ends the work."""


class WorkerWarning(EsperWarning):
    """A worker was replaced because it made no progress."""


FULL_COLLECTION = 50
"""Collections of young garbage in a worker between two of all; Python's default is 10."""


@dataclass(frozen=True)
class Job:
    """A call of a function that can be imported: ``function(on_share, *arguments)``."""

    name: str
    """What it is called in messages."""
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    size: int = 1
    """How much work it is, compared with other jobs."""


@dataclass(frozen=True)
class PoolStatus:
    """How the workers of a pool are."""

    alive: int
    """Workers that can compute."""
    restarted: int
    """Workers that were replaced so far, because they died or hung."""
    waited: float
    """Seconds so far that workers had nothing to do while others were busy, all together."""


class Pool:
    """Computes jobs in this process, one after another."""

    is_local = True
    """Whether jobs are computed in this process."""

    def __init__(self, n_workers: int = 1) -> None:
        self.n_workers = n_workers

    def run(
        self,
        jobs: Sequence[Job],
        *,
        check: Callable[[], None] = lambda: None,
        on_share: OnShare = lambda _: None,
    ) -> list[Any]:
        """Compute jobs and return their results in the same order.

        Args:
            jobs: The jobs.
            check: Called often; what it raises ends all jobs.
            on_share: Called with the share of all jobs that is done.

        Raises:
            WorkerError: If a worker died each time that it computed a certain job.
        """
        tasks = [_Task(number, job) for number, job in enumerate(jobs)]
        show = _show_progress(tasks, on_share)
        check()
        show()
        for task in tasks:

            def report(share: float, task: _Task = task) -> None:
                check()
                task.share = share
                show()

            task.result = task.job.function(report, *task.job.arguments)
            task.share = 1.0
            show()
        return [task.result for task in tasks]

    def start(self) -> None:
        """Start the workers, so that they are ready sooner; the first jobs do so too."""

    def status(self) -> PoolStatus:
        """Return how the workers are."""
        return PoolStatus(alive=self.n_workers, restarted=0, waited=0.0)

    def close(self) -> None:
        """End all workers."""


@dataclass
class _Task:
    """The state of a job."""

    number: int
    job: Job
    result: Any = None
    share: float = 0.0
    """The share of it that is done."""
    deaths: int = 0
    """Workers that died of it."""
    began: float = 0.0
    heard: float = 0.0
    """When its share last grew; for the first job of a function, when its worker last ran."""
    beats: float = 0.0


def _show_progress(tasks: Sequence[_Task], on_share: OnShare) -> Callable[[], None]:
    """Return what shows the share of all jobs that is done, whenever it has grown."""
    total, shown = sum(task.job.size for task in tasks), -1.0

    def show() -> None:
        nonlocal shown
        share = math.fsum(task.share * task.job.size for task in tasks) / total
        if share > shown:
            shown = share
            on_share(share)

    return show


class Worker(Protocol):
    """Another process that computes one job at a time."""

    def submit(self, job: bytes) -> Future[bytes]:
        """Let it :func:`compute` a job."""
        ...

    def share(self) -> float:
        """Return the share of the current job that is done, as far as is known."""
        ...

    def beats(self) -> float:
        """Return a number that grows for as long as the worker runs, whatever it computes."""
        ...

    def end(self) -> str:
        """End the worker, whatever it is doing; return how it ended, if that is known."""
        ...


class WorkerPool(Pool, ABC):
    """Computes jobs in other processes. A dead worker is replaced, and its job repeated."""

    is_local = False
    deaths: tuple[type[Exception], ...] = (BrokenExecutor,)
    """What the future of a job raises if its worker is dead."""

    def __init__(self, n_workers: int) -> None:
        super().__init__(n_workers)
        self._workers: dict[int, Worker] = {}
        self._busy: dict[int, tuple[_Task, Future[bytes]]] = {}
        """What each busy worker computes."""
        self._longest: dict[Callable[..., Any], float] = {}
        """Seconds that the longest job of each function took."""
        self._restarted, self._waited = 0, 0.0

    @abstractmethod
    def make_worker(self) -> Worker:
        """Start a worker, without waiting until it is ready."""

    def start(self) -> None:
        """Start the workers that are missing, without waiting until they are ready."""
        for place in range(self.n_workers):
            if place not in self._workers:
                self._workers[place] = self.make_worker()

    def status(self) -> PoolStatus:
        """Return how the workers are."""
        return PoolStatus(len(self._workers), self._restarted, self._waited)

    def close(self) -> None:
        """End all workers."""
        while self._workers:
            self._workers.popitem()[1].end()

    def run(
        self,
        jobs: Sequence[Job],
        *,
        check: Callable[[], None] = lambda: None,
        on_share: OnShare = lambda _: None,
    ) -> list[Any]:
        """Compute jobs and return their results in the same order."""
        tasks = [_Task(number, job) for number, job in enumerate(jobs)]
        waiting, show = list(tasks), _show_progress(tasks, on_share)
        show()
        try:
            while waiting or self._busy:
                check()
                self._assign(waiting)
                start, futures = monotonic(), [future for _, future in self._busy.values()]
                wait(futures, WAIT_SECONDS, FIRST_COMPLETED)
                self._waited += (self.n_workers - len(futures)) * (monotonic() - start)
                waiting[:0] = [task for place in list(self._busy) for task in self._look(place)]
                show()
        finally:
            for place in self._busy:  # after an exception: they would go on with these jobs
                self._workers.pop(place).end()
            self._busy.clear()
        return [task.result for task in tasks]

    def _assign(self, waiting: list[_Task]) -> None:
        """Give jobs to idle workers, those of a number to the same one if it is idle."""
        self.start()
        for place in self._workers:  # those that have just been started come last
            if place in self._busy or not waiting:
                continue
            task = min(waiting, key=lambda one: one.number % self.n_workers != place)
            # Not pickled by the executor, which would share the memory of tensors.
            job = pickle.dumps((task.job.function, task.job.arguments))
            self._busy[place] = task, self._workers[place].submit(job)
            task.share, task.began, task.heard = 0.0, monotonic(), monotonic()
            waiting.remove(task)

    def _look(self, place: int) -> list[_Task]:
        """Take the result of a worker if it is done; return a job that must be repeated."""
        (task, future), worker = self._busy[place], self._workers[place]
        longest = self._longest.get(task.job.function)
        if not future.done():
            if (share := worker.share()) > task.share:
                task.share, task.heard = share, monotonic()
            # How long a first job may take is unknown, but a worker that is stopped never ends.
            if longest is None and (beats := worker.beats()) != task.beats:
                task.beats, task.heard = beats, monotonic()
            limit = max(HANG_SECONDS, HANG_FACTOR * (longest or 0.0)) * 2**task.deaths
            if monotonic() - task.heard < limit:
                return []
            how = f"making no progress for {limit:.0f} s"
            warnings.warn(f"{task.job.name} is repeated after {how}", WorkerWarning, stacklevel=3)
            return self._replace(place, how)
        try:
            answer = future.result()
        except self.deaths:
            return self._replace(place)
        del self._busy[place]
        task.result, failure = pickle.loads(answer)
        if failure is not None:
            raise failure
        task.share = 1.0
        self._longest[task.job.function] = max(longest or 0.0, monotonic() - task.began)
        return []

    def _replace(self, place: int, how: str = "") -> list[_Task]:
        """End a worker; return its job, which must be repeated."""
        task, _ = self._busy.pop(place)
        ended = self._workers.pop(place).end()
        self._restarted += 1
        task.deaths += 1
        if task.deaths == MAX_DEATHS:
            raise WorkerError(
                f"{task.job.name} ended {MAX_DEATHS} workers in a row, the last by {how or ended}; "
                "a task that crashes or needs too much memory does that."
            )
        return [task]


def prepare_worker(threads: int, warm_up: str) -> None:
    """Make this process ready for jobs.

    Args:
        threads: Threads that PyTorch may use.
        warm_up: A module to import before the first job; empty for none.
    """
    import torch  # for seconds, and a worker must be bound to the first process before that

    # Hosts are made of cycles; walking over all of torch's objects took a tenth of the time.
    gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTION)
    warnings.simplefilter("ignore")  # the first process warns of the same things itself
    torch.set_num_threads(threads)
    if warm_up:
        importlib.import_module(warm_up)


def compute(job: bytes, on_share: OnShare) -> bytes:
    """Compute a job in a worker; return its result, or what it raised."""
    try:
        function, arguments = pickle.loads(job)
        return pickle.dumps((function(on_share, *arguments), None))
    except EsperError as error:
        return pickle.dumps((None, error))
    except Exception as error:
        failure = RuntimeError(f"a worker raised {summarize_error(error)}")
        failure.add_note("".join(traceback.format_exception(error)))
        return pickle.dumps((None, failure))


class ProcessPool(WorkerPool):
    """Computes jobs in worker processes on this machine."""

    def __init__(self, n_workers: int, *, threads: int = 1, warm_up: str = "") -> None:
        """Prepare a pool; its workers start with :meth:`start` or the first jobs.

        Args:
            n_workers: Number of workers.
            threads: Threads that PyTorch may use in each.
            warm_up: A module that workers import before their first job, to be ready sooner.
        """
        super().__init__(n_workers)
        self._threads, self._warm_up = threads, warm_up

    def make_worker(self) -> ProcessWorker:
        """Start a worker process."""
        return ProcessWorker(self._threads, self._warm_up)


class ProcessWorker:
    """A worker process: an executor of its own, so that its death ends no other job."""

    def __init__(self, threads: int, warm_up: str) -> None:
        context = multiprocessing.get_context("spawn")
        try:
            with _isolated_start():
                self._share = context.RawArray("d", 2)  # of the job, and the beats
                self._executor = ProcessPoolExecutor(
                    1, context, _begin_process, (self._share, threads, warm_up)
                )
                self._executor.submit(os.getpid)  # starts the process
        except OSError as error:
            raise WorkerError(f"a worker process cannot be started: {error}.") from error
        (self.process,) = self._executor._processes.values()  # pyright: ignore[reportPrivateUsage]

    def submit(self, job: bytes) -> Future[bytes]:
        """Let the process compute a job."""
        self._share[0] = 0.0
        try:
            return self._executor.submit(_compute_in_process, job)
        except BrokenExecutor as error:
            failed = Future[bytes]()
            failed.set_exception(error)
            return failed

    def share(self) -> float:
        """Return the share of the current job that is done."""
        return self._share[0]

    def beats(self) -> float:
        """Return the seconds for which the process has run."""
        return self._share[1]

    def end(self) -> str:
        """Kill the process, which may be stopped or busy; return how it ended."""
        self.process.kill()
        self._executor.shutdown(cancel_futures=True)
        code = self.process.exitcode or 0
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


@contextlib.contextmanager
def _isolated_start() -> Generator[None]:
    """Start processes that import nothing of the current folder and the user's script.

    They also keep SIGINT blocked: Ctrl-C in a terminal is for the first process alone.
    """
    safe, main = os.environ.get("PYTHONSAFEPATH"), sys.modules["__main__"]
    os.environ["PYTHONSAFEPATH"], sys.modules["__main__"] = "1", ModuleType("__main__")
    resource_tracker.ensure_running()  # first, because it unblocks SIGINT
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        del os.environ["PYTHONSAFEPATH"]
        if safe is not None:
            os.environ["PYTHONSAFEPATH"] = safe
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


_share: Any = None
"""In a worker process, the share of its job that is done and its beats, which the first reads."""


def _begin_process(share: Any, threads: int, warm_up: str) -> None:
    """Begin a worker process, in a session of its own that ends with the first process."""
    global _share
    _share = share
    if sys.platform == "linux":  # a process that is stopped goes too
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # the results of a command go there
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare_worker(threads, warm_up)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a worker is started by another process"
    while parent.is_alive():
        parent.join(BEAT_SECONDS)
        _share[1] += BEAT_SECONDS
    os._exit(1)


def _compute_in_process(job: bytes) -> bytes:
    def report(share: float) -> None:
        _share[0] = share

    return compute(job, report)

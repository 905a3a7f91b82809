"""Worker processes on this machine.

Small messages go through a pipe. Payloads go through two nameless files in memory, one for each
direction, which vanish with the last process that has them open. No port is opened.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from esper.errors import WorkerError
from esper.simic.rollout.jobs import Job, Payload, Result, WorkerContext, failure_of, prepare_worker
from esper.simic.rollout.worker_pool import Failed, Message, Progress, WorkerDied, WorkerPool

_START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from esper.simic.rollout.processes import serve
serve(*map(int, sys.argv[2:]))
"""
"""What a worker runs. It imports nothing of the user's script, which needs no guard therefore."""
END_SECONDS = 5.0
"""How long a worker may take to end before it is killed."""


class SharedFile:
    """A nameless file that two processes read and write, in memory where the system allows it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None

    @classmethod
    def create(cls) -> SharedFile:
        """Make an empty file."""
        memory = Path("/dev/shm")
        with tempfile.TemporaryFile(dir=memory if memory.is_dir() else None) as file:
            return cls(os.dup(file.fileno()))

    def write(self, payloads: Mapping[str, Payload]) -> dict[str, int]:
        """Write payloads one after another; return their sizes.

        Raises:
            WorkerError: If there is no room.
        """
        contents = {name: payload.bytes for name, payload in payloads.items()}
        sizes = {name: len(content) for name, content in contents.items()}
        total = sum(sizes.values())
        if total:
            self._reserve(total)
            target, start = self._mapped(total), 0
            for content in contents.values():
                target[start : start + len(content)] = content
                start += len(content)
        return sizes

    def read(self, sizes: Mapping[str, int]) -> dict[str, Payload]:
        """Return a copy of what :meth:`write` wrote."""
        if not (total := sum(sizes.values())):
            return {}
        source, start, payloads = self._mapped(total), 0, dict[str, Payload]()
        for name, size in sizes.items():
            payloads[name] = Payload(source[start : start + size])
            start += size
        return payloads

    def close(self) -> None:
        """Give the file up."""
        if self._map is not None:
            self._map.close()
        os.close(self.descriptor)

    def _reserve(self, size: int) -> None:
        """Make the file large enough. Memory that is only promised would end the process later."""
        held = os.fstat(self.descriptor).st_size
        if size <= held:
            return
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.descriptor, 0, size)
            else:
                os.ftruncate(self.descriptor, size)
        except OSError as error:
            raise WorkerError(
                f"{size:,} bytes of shared memory cannot be reserved for a worker: "
                f"{error.strerror}; use fewer workers or a smaller envs_per_shard, or give "
                "/dev/shm more room."
            ) from error

    def _mapped(self, size: int) -> mmap.mmap:
        if self._map is None or len(self._map) < size:
            if self._map is not None:
                self._map.close()
            self._map = mmap.mmap(self.descriptor, os.fstat(self.descriptor).st_size)
        return self._map


class ProcessWorker:
    """A worker process, seen from the process that gives it jobs."""

    def __init__(self, threads: int, warm_up: str) -> None:
        """Start the process, without waiting for it.

        Args:
            threads: Threads that PyTorch may use.
            warm_up: A module that it imports before its first job.
        """
        self._outgoing, self._incoming = SharedFile.create(), SharedFile.create()
        self.connection, theirs = Pipe()
        inherited = theirs.fileno(), self._outgoing.descriptor, self._incoming.descriptor
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(sys.path), *map(str, inherited)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # the results of a command go there
                pass_fds=inherited,
                start_new_session=True,  # Ctrl-C in a terminal is for the first process alone
            )
        except OSError as error:
            raise WorkerError(f"a worker process cannot be started: {error}.") from error
        theirs.close()
        self._is_ready = False
        self.connection.send((threads, warm_up))

    @property
    def pid(self) -> int:
        """The process ID."""
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether it has started and can begin a job, as far as is known."""
        return self._is_ready

    def submit(self, job: Job) -> None:
        """Start a job."""
        sizes = self._outgoing.write(job.payloads)
        try:
            self.connection.send((job.function, job.request, sizes))
        except OSError:
            raise WorkerDied(self._how_it_ended()) from None

    def receive(self) -> Message | None:
        """Return the next message; None if there is none yet."""
        try:
            if not self.connection.poll():
                return None
            kind, value, sizes = self.connection.recv()
        except (EOFError, OSError):
            raise WorkerDied(self._how_it_ended()) from None
        if kind == "ready":
            self._is_ready = True
            return self.receive()
        if kind == "progress":
            return Progress(value)
        if kind == "failed":
            return Failed(value)
        return Result(value, self._incoming.read(sizes))

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self.connection.close()
        self._process.kill()
        self._process.wait()
        self._outgoing.close()
        self._incoming.close()

    def _how_it_ended(self) -> str:
        """Return how the process ended, in words."""
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return "closing its pipe"
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
        return f"exit code {code}"


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

    def wait(self, busy: Sequence[Any], seconds: float) -> None:
        """Wait until one of these workers has a message or is dead, or for some seconds."""
        wait([worker.connection for worker in busy], seconds)


def serve(connection: int, payloads_in: int, payloads_out: int) -> None:
    """Compute jobs until the process that wants them is gone. This is all that a worker does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the first process decides when to stop
    pipe = Connection(connection)
    incoming, outgoing = SharedFile(payloads_in), SharedFile(payloads_out)
    # Ending without a traceback if the pipe is closed: there is nobody left to read it.
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        threads, warm_up = pipe.recv()
        prepare_worker(threads, warm_up)
        pipe.send(("ready", None, {}))
        context = WorkerContext(report=lambda share: pipe.send(("progress", share, {})))
        while True:
            function, request, sizes = pipe.recv()
            pipe.send(_compute(function, context, request, incoming.read(sizes), outgoing))


def _compute(
    function: Callable[..., Any],
    context: WorkerContext,
    request: Any,
    payloads: dict[str, Payload],
    outgoing: SharedFile,
) -> tuple[str, Any, dict[str, int]]:
    """Return the message about a job: its result, or what it raised."""
    try:
        value, made = function(context, request, payloads)
        return "done", value, outgoing.write(made)
    except Exception as error:
        return "failed", failure_of(error), {}

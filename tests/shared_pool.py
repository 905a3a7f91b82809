"""Worker processes that the tests of a module share, because they take seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from esper.training.worker_pool import ProcessPool, ProcessWorker


class SharedPool(ProcessPool):
    """A pool that stays open when it is closed, and counts."""

    n_jobs = n_closed = 0

    def run(self, jobs: Any, **options: Any) -> Any:
        """Compute jobs, and count them."""
        self.n_jobs += len(jobs)
        return super().run(jobs, **options)

    def close(self) -> None:
        """Leave the workers to the next test."""
        self.n_closed += 1

    def lend(self, n_workers: int) -> SharedPool:
        """Return the pool with so many workers."""
        self.n_jobs = self.n_closed = 0
        self.n_workers = n_workers
        for place in [place for place in self._workers if place >= n_workers]:
            self._workers.pop(place).end()
        return self

    def pids(self) -> list[int]:
        """Return the process IDs of the workers."""
        workers = [self._workers[place] for place in sorted(self._workers)]
        return [w.process.pid or 0 for w in workers if isinstance(w, ProcessWorker)]


@contextmanager
def shared_pool(warm_up: str) -> Iterator[SharedPool]:
    """Provide a pool of two workers, and end them."""
    pool = SharedPool(2, warm_up=warm_up)
    try:
        yield pool
    finally:
        ProcessPool.close(pool)

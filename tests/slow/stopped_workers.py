"""Workers stopped by SIGSTOP, in every subset; a script of its test that prints what happened.

The workers are forks of this process, which would take seconds to start otherwise.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
import warnings
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from esper.training import worker_pool
from esper.training.worker_pool import Job, OnShare, ProcessPool

N_WORKERS = 3
SUBSETS = [chosen for n in range(1, N_WORKERS + 1) for chosen in combinations(range(N_WORKERS), n)]


def double(on_share: OnShare, number: int) -> int:
    for tenth in range(10):
        time.sleep(0.05)
        on_share(tenth / 10)
    return 2 * number


def jobs_of(n: int) -> list[Job]:
    from tests.slow.stopped_workers import double  # workers have no __main__

    return [Job(f"job {k}", double, (k,)) for k in range(n)]


def run_and_stop(subset: tuple[int, ...], jobs: list[Job], told: Any = None) -> list[Any]:
    """Compute jobs while some workers are stopped; tell the ids of all workers."""
    pool, start, stopped = ProcessPool(N_WORKERS), time.monotonic(), list[int]()

    def stop() -> None:
        if not stopped and len(pool._busy) == N_WORKERS and time.monotonic() - start > 0.2:
            pids = [pool._workers[place].process.pid for place in range(N_WORKERS)]  # type: ignore[attr-defined]
            stopped.extend(pids[place] for place in subset)
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            if told is not None:
                os.write(told, json.dumps(pids).encode())

    try:
        return pool.run(jobs, check=stop)
    finally:
        pool.close()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # nobody may be there to ask how it ended


def kill_driver(subset: tuple[int, ...]) -> list[int]:
    """Kill a process some of whose workers are stopped; return the workers that are left."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        run_and_stop(subset, jobs_of(100), writer)
        os._exit(1)
    pids = json.loads(os.read(reader, 1000))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    end = time.monotonic() + 20.0
    while any(map(is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return [pid for pid in pids if is_alive(pid)]


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    worker_pool.multiprocessing = SimpleNamespace(  # type: ignore[assignment]
        **vars(multiprocessing) | {"get_context": lambda _: fork}
    )
    worker_pool.HANG_SECONDS, worker_pool.HANG_FACTOR = 3.0, 1.0
    found: dict[str, Any] = {"wrong": [], "silent": [], "orphans": []}
    for subset in SUBSETS:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if run_and_stop(subset, jobs_of(6)) != [2 * k for k in range(6)]:
                found["wrong"].append(subset)
        lines = [str(each.message) for each in caught if "no progress" in str(each.message)]
        if len(lines) < len(subset):
            found["silent"].append([subset, lines])
        found["orphans"] += kill_driver(subset)
    print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)

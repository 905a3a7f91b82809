"""Save checkpoints in processes that are killed; run as a script by test_kills.

Each killed process is a fork of this one, which has already imported torch.

    killed_saves.py calls FOLDER STRIDE   a process for each n-th system call, killed there
    killed_saves.py times FOLDER          processes that save in a loop, killed at random times
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from esper.storage.checkpoint_folder import CheckpointFolder
from tests.storage.states import exact, state_of

START = [(1, 0), (3, 0)]
PLAN = [(4, 0), (4, 1), (5, 0)]
"""Saves as (step, version): the second replaces a checkpoint."""

CALLS = ["mkdir", "open", "write", "fsync", "close", "rename", "replace", "unlink", "rmdir"]


def save_all(folder: CheckpointFolder, saves: list[tuple[int, int]]) -> None:
    """Save checkpoints, and append a byte to a file next to the folder after each."""
    write, opened = os.write, os.open
    done = opened(folder.path.with_suffix(".done"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for step, version in saves:
        folder.save(state_of(10 * step + version), step=step)
        write(done, b"x")


def die_at(moment: int) -> None:
    """Make this process kill itself before its n-th system call, or halfway through a write.

    Killing it after a call is the same as before the next one.
    """
    passed = -1

    def is_due() -> bool:
        nonlocal passed
        passed += 1
        return passed == moment

    def watch(call: Callable[..., Any], is_write: bool) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            if is_due():
                os.kill(os.getpid(), signal.SIGKILL)
            if is_write and is_due():
                call(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return watched

    for name in CALLS:
        setattr(os, name, watch(getattr(os, name), name == "write"))


def run_forked(job: Callable[[], None]) -> int:
    """Run a job in a forked process and return its id."""
    child = os.fork()
    if child == 0:
        try:
            job()
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    return child


def kill_at_calls(path: Path, stride: str) -> int:
    """Kill processes at every possible moment, or each n-th; return the first beyond the last."""
    moment = 0
    while True:
        folder = CheckpointFolder(path / f"{moment:04d}", keep_last=1)
        save_all(folder, START)

        def job(folder: CheckpointFolder = folder, moment: int = moment) -> None:
            die_at(moment)
            save_all(folder, PLAN)

        _, status = os.waitpid(run_forked(job), 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            return moment
        assert os.WTERMSIG(status) == signal.SIGKILL
        moment += int(stride)


def kill_at_random_times(path: Path, *, n_kills: int = 15) -> int:
    """Kill processes that continue from each other; return how many checkpoints they saved."""
    folder, chance = CheckpointFolder(path / "run", keep_last=1), random.Random(0)
    done = 0

    def job(first: int, writer: int) -> None:
        for step in range(first, 10**6):
            folder.save(state_of(step, numel=200_000), step=step)
            os.write(writer, step.to_bytes(4, "little"))

    for _ in range(n_kills):
        reader, writer = os.pipe()
        child = run_forked(partial(job, done + 1, writer))
        os.close(writer)
        first = os.read(reader, 4)
        time.sleep(0.03 * chance.random())
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the process ended by itself"
        acknowledged = int.from_bytes((first + os.read(reader, 10**6))[-4:], "little")
        os.close(reader)
        loaded = folder.latest()
        assert loaded.step in (acknowledged, acknowledged + 1), (loaded.step, acknowledged)
        assert exact(loaded.state) == exact(state_of(loaded.step, numel=200_000))
        done = loaded.step
    return done


if __name__ == "__main__":
    warnings.simplefilter("error")
    kind = {"calls": kill_at_calls, "times": kill_at_random_times}[sys.argv[1]]
    print(kind(Path(sys.argv[2]), *sys.argv[3:]))

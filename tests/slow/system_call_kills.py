"""Runs of ``esper train`` killed at system calls and resumed; a script of its test.

    system_call_kills.py FOLDER N_KILLS N_WORKERS

Every process is a fork of this one, which has loaded PyTorch and the library that kills; so are
the worker processes of the runs, which would take seconds to start otherwise. Runs with workers
are resumed with any number of them, and compared with one that has none. Prints what happened as
JSON.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo  # imported once here instead of in every process
from tests.training.tiny import liveliness, run_digests

import esper.training.trials  # as workers do before their first job
from esper.cli.main import main
from esper.training import worker_pool

_OPTIONS = (
    "--task spirals --task-options batches_per_epoch=1 --rounds 2 --envs 2 --n-steps 4 "
    "--budget.n-epochs 3 --policy.feature-size 4 --policy.lstm-size 2 --ppo.n-epochs 1 "
    "--ppo.n-minibatches 1 --checkpoints.save-freq 3 --evaluation.eval-freq 1 "
    "--evaluation.n-eval-episodes 1 --evaluation.n-final-episodes 2 --quiet"
)
OPTIONS = _OPTIONS.split()
SHARDS = ["--envs-per-shard", "1"]
assert esper.training.trials


def fork_workers() -> None:
    """Let the workers of this process be forks of it, which are not killed at calls."""
    fork, begin = multiprocessing.get_context("fork"), worker_pool._begin_process

    def begin_fork(*arguments: Any) -> None:
        ctypes.CDLL(None).kill_at_call(ctypes.c_long(0))
        begin(*arguments)

    worker_pool.multiprocessing = SimpleNamespace(
        **vars(multiprocessing) | {"get_context": lambda _: fork}
    )
    worker_pool._begin_process = begin_fork


def run(words: Sequence[str], fatal_call: int = 0) -> tuple[int, int]:
    """Run a command in a fork; return its exit code, or minus the signal, and its calls."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        library = ctypes.CDLL(None)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        code = 99
        fork_workers()
        try:
            library.kill_at_call(ctypes.c_long(fatal_call))
            with liveliness():
                code = main(list(words))
            os.write(writer, str(library.kill_calls()).encode())
        finally:
            os._exit(code)
    os.close(writer)
    _, status = os.waitpid(child, 0)
    told = os.read(reader, 100)
    os.close(reader)
    return os.waitstatus_to_exitcode(status), int(told or 0)


def train(folder: Path, options: Sequence[str], fatal_call: int = 0) -> tuple[int, int]:
    return run(["train", *OPTIONS, *options, "--run-dir", str(folder)], fatal_call)


def carry_out(place: Path, n_kills: int, n_workers: int) -> dict[str, Any]:
    """Kill runs at random calls, resume them, and compare them with one that was left alone."""
    # A run records the name of its folder, so all folders have the same name.
    reference = place / "reference" / "run"
    shards = SHARDS if n_workers else []
    code, n_calls = train(reference, shards)
    assert code == 0, code
    expected = run_digests(reference)
    chance, other_chance = random.Random(0), random.Random(1)
    options = [*shards, "--workers", str(n_workers)]
    found: dict[str, Any] = {"calls": n_calls, "kills": 0, "started_again": 0, "different": []}
    points = chance.sample(range(1, n_calls + 1), n_calls)
    while found["kills"] < n_kills:
        call = points.pop()
        folder = place / str(call) / "run"
        resume = ["resume", str(folder), "--quiet", "--workers"]
        resume.append(str(other_chance.randint(0, n_workers)))
        code, _ = train(folder, options, call)
        if code == -signal.SIGKILL:
            found["kills"] += 1
        else:  # telemetry is written by another thread, so the number of calls differs a little
            assert code == 0, (call, code)
        if not (folder / "config.toml").exists():
            found["started_again"] += 1
            code, _ = train(folder, options)
        elif code != 0 and found["kills"] % 4 == 0:  # once more, while it is being resumed
            code, _ = run(resume, chance.randint(1, 40))
            found["kills"] += code == -signal.SIGKILL
        if code != 0:
            code, _ = run(resume)
        if code != 0 or run_digests(folder) != expected:
            found["different"].append([call, code])
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(carry_out(Path(sys.argv[1]), *map(int, sys.argv[2:]))))

"""Runs of ``esper train`` killed at system calls and resumed; a script of its test.

    system_call_kills.py FOLDER kills N_KILLS N_WORKERS
    system_call_kills.py FOLDER full N_CALLS             the disk is full from a call on

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
    "--ppo.n-minibatches 1 --first-policy cautious --checkpoints.save-freq 3 "
    "--evaluation.eval-freq 1 --evaluation.n-eval-episodes 1 --evaluation.n-final-episodes 2 "
    "--quiet"
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
    code, n_calls, _ = run_told(words, fatal_call)
    return code, n_calls


def run_told(
    words: Sequence[str], call: int = 0, attack: str = "kill_at_call"
) -> tuple[int, int, str]:
    """Return what :func:`run` returns, and what the command wrote on stderr."""
    reader, writer = os.pipe()
    errors, told_errors = os.pipe()
    child = os.fork()
    if child == 0:
        library = ctypes.CDLL(None)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(told_errors, 2)
        code = 99
        fork_workers()
        try:
            getattr(library, attack)(ctypes.c_long(call))
            with liveliness():
                code = main(list(words))
            os.write(writer, str(library.kill_calls()).encode())
        finally:
            os._exit(code)
    os.close(writer)
    os.close(told_errors)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader) as counted, os.fdopen(errors, errors="replace") as lines:
        n_calls, text = int(counted.read() or 0), lines.read()
    return os.waitstatus_to_exitcode(status), n_calls, text


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


def fill_disk(place: Path, n_fills: int) -> dict[str, Any]:
    """Let the disk be full from some call on, then resume the runs with room."""
    reference = place / "reference" / "run"
    code, n_calls = train(reference, [])
    assert code == 0, code
    expected = run_digests(reference)
    found: dict[str, Any] = {"calls": n_calls, "fills": 0, "unnoticed": 0, "wrong": []}
    for call in random.Random(2).sample(range(1, n_calls + 1), min(n_fills, n_calls)):
        folder = place / f"full-{call}" / "run"
        words = ["train", *OPTIONS, "--run-dir", str(folder)]
        code, _, told = run_told(words, call, "fill_disk_at_call")
        found["fills"] += 1
        errors = [line for line in told.splitlines() if line.startswith("esper: error: ")]
        if code == 0:  # only what does not matter was left to write
            found["unnoticed"] += 1
        elif code != 1 or len(errors) != 1 or "Traceback" in told:
            found["wrong"].append([call, code, told[-500:]])
        again = ["resume", str(folder), "--quiet"] if (folder / "config.toml").exists() else words
        code, _ = run(again) if code != 0 else (0, 0)
        if code != 0 or run_digests(folder) != expected:
            found["wrong"].append([call, code])
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    attacks = {"kills": carry_out, "full": fill_disk}
    numbers = map(int, sys.argv[3:])
    print(json.dumps(attacks[sys.argv[2]](Path(sys.argv[1]), *numbers)))

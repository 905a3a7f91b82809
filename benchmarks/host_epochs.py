"""Host-epochs per second on ``digits-family``: what each part of training a controller costs.

CNNs are compared with the same hosts trained by torch, one after another.

Figures are CPU time, which other load on the machine affects less than wall time. Two processes in
parallel are measured in wall time as well.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter, process_time

import torch

from environment import EpisodeDriver
from esper.config.toml import load_preset
from esper.environment import GrowthVectorEnv
from esper.populations import Population, vector_hosts
from esper.storage.checkpoint_folder import CheckpointFolder
from esper.tasks import make_task
from esper.telemetry import TelemetryWriter
from esper.training.output import RecordOutput
from esper.training.signals import StopRequest
from esper.training.trainer import Trainer
from rows import Ratio, Row
from stacked_pilot import StackedPilot
from timing import Effort, Spread
from training import Rounds

GROUP = "host_epochs"
TASK = "digits-family"
N_HOSTS = 64
EPOCHS = 16
"""Epochs per sample: the length of an episode, so that every host is replaced once."""
ROUNDS = 8
WARM_UP = 2
PILOT = "hand-written stacked pilot"
PILOT_RATE = 1200.0
"""Host-epochs per second of the design's pilot on one core."""
LEARNING = ("update", "telemetry", "checkpoint")
"""Parts of a round other than collection."""
TARGET = 2.0
CNN_PARTS = {
    "environment, no growth": "no-growth",
    "growth by the heuristic": "heuristic",
    "growth at random, all ops": "random",
}
"""What is measured of CNNs, and the controller that does it."""
CNN_ROUNDS = 3
CNN_TARGET = 2.0

Call = Callable[[], object]


def run(effort: Effort) -> list[Row]:
    """Measure every part together with all parts before it."""
    n_rounds = min(ROUNDS, effort.rounds)
    calls = _calls()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(n_rounds):
        for name, call in calls.items():
            samples[name].append(_cpu_seconds(call) / EPOCHS / N_HOSTS)
    samples |= _measure_rounds(n_rounds)
    rows = [_row(name, PILOT, samples[name], samples[PILOT]) for name in samples if name != PILOT]
    rows += [_side_by_side(what, n_rounds) for what in ("CPU time", "wall time")]
    return rows + [_cnn_row(name, min(CNN_ROUNDS, effort.rounds)) for name in CNN_PARTS]


def _calls() -> dict[str, Call]:
    """Return calls that train all hosts for an episode, each with one more part than the last."""
    population = _make_population()
    training = population.config
    assert training.batches_per_epoch is not None
    pilot = StackedPilot(population.specs, training.batch_size, training.batches_per_epoch)

    def validate() -> None:
        population.train_epoch()
        population.evaluate()

    return {
        PILOT: _repeated(pilot.train_epoch),
        "training alone": _repeated(population.train_epoch),
        "+ validation in each epoch": _repeated(validate),
        "+ environment: rewards, records, new hosts": EpisodeDriver("no-growth", N_HOSTS),
        "+ growth by the heuristic": EpisodeDriver("heuristic", N_HOSTS),
        "+ growth at random, all ops": EpisodeDriver("random", N_HOSTS),
    }


def _cnn_row(name: str, n_rounds: int) -> Row:
    """Compare episodes of CNNs with the compiled kernel and without."""
    task, controller = make_task(TASK, host="cnn"), CNN_PARTS[name]
    kernel = vector_hosts._kernel
    drivers = [EpisodeDriver(controller, N_HOSTS, task) for _ in range(2)]
    samples: list[list[float]] = [[], []]
    try:
        for _ in range(n_rounds):
            for own, driver, used in zip(samples, drivers, (kernel, None), strict=True):
                vector_hosts._kernel = used
                own.append(_cpu_seconds(driver) / EPOCHS / N_HOSTS)
    finally:
        vector_hosts._kernel = kernel
    return _row(f"CNNs, {name}", "torch, one by one", *samples, limit=CNN_TARGET)


def _make_population() -> Population:
    envs = GrowthVectorEnv(TASK, N_HOSTS)
    envs.reset(seed=0)
    population = envs.growth.hosts
    population.train_epoch()
    return population


def _repeated(call: Call) -> Call:
    def repeat() -> None:
        for _ in range(EPOCHS):
            call()

    return repeat


def _cpu_seconds(call: Call) -> float:
    start = process_time()
    call()
    return process_time() - start


def _measure_rounds(n_rounds: int) -> dict[str, list[float]]:
    """Return CPU seconds per host-epoch in rounds of PPO, without and with learning."""
    config = load_preset("quick")
    config = replace(
        config,
        rounds=WARM_UP + n_rounds,
        evaluation=replace(config.evaluation, eval_freq=10**6),
    )
    rounds, ends = Rounds(), list[float]()
    note = rounds.write

    def write(record: object) -> None:
        n_before = len(rounds.seconds)
        note(record)  # type: ignore[arg-type]
        if len(rounds.seconds) > n_before:
            ends.append(process_time())

    rounds.write = write  # type: ignore[method-assign]
    with (
        tempfile.TemporaryDirectory() as folder,
        TelemetryWriter(Path(folder) / "telemetry.sqlite") as writer,
    ):
        output = RecordOutput(writer, [rounds])
        checkpoints = CheckpointFolder(Path(folder) / "checkpoints")
        Trainer(config, output=output, checkpoints=checkpoints, stop=StopRequest()).run()
    n_steps = config.envs * config.n_steps
    whole = [(b - a) / n_steps for a, b in pairwise(ends)][WARM_UP - 1 :]
    shares = [
        sum(one.get(part, 0.0) for part in LEARNING) / one["total"] for one in rounds.seconds
    ][WARM_UP:]
    collecting = [s * (1.0 - share) for s, share in zip(whole, shares, strict=False)]
    return {"+ a policy that acts": collecting, "+ PPO, telemetry, checkpoints": whole}


def _train_for_a_while(n_epochs: int, ready: object, results: object) -> None:
    """Train hosts in a separate process; report CPU and wall time."""
    torch.set_num_threads(1)
    population = _make_population()
    ready.wait()  # type: ignore[attr-defined]
    wall_start, cpu_start = perf_counter(), process_time()
    for _ in range(n_epochs):
        population.train_epoch()
    results.put((process_time() - cpu_start, perf_counter() - wall_start))  # type: ignore[attr-defined]


def _side_by_side(what: str, n_rounds: int) -> Row:
    """Train in two processes at once and compare their total rate with the design's pilot."""
    context, n_epochs = multiprocessing.get_context("spawn"), EPOCHS * n_rounds
    ready, results = context.Barrier(2), context.Queue()
    workers = [
        context.Process(target=_train_for_a_while, args=(n_epochs, ready, results))
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    times = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    column = 0 if what == "CPU time" else 1
    seconds = [pair[column] / n_epochs / N_HOSTS / 2 for pair in times]
    name = f"training alone, two processes together, {what}"
    limit = TARGET if what == "wall time" else None
    return _row(name, "the design's pilot, 1,200 /s", seconds, [1.0 / PILOT_RATE] * 2, limit)


def _row(
    name: str, other: str, ours: list[float], others: list[float], limit: float | None = None
) -> Row:
    pairs = list(zip(ours, others, strict=False))
    return Row(
        group=GROUP,
        what=f"{TASK}, {N_HOSTS} hosts: {name}",
        other=other,
        kind=Ratio.SPEEDUP,
        ours_seconds=statistics.median(ours),
        other_seconds=statistics.median(others),
        ratio=Spread.of([b / a for a, b in pairs]),
        per_call=1,
        samples=len(pairs),
        limit=limit,
    )

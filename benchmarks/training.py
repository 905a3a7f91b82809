"""The time of each part of a training round of the quick preset, and its speed with workers."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from esper.config.run import RunConfig
from esper.config.toml import load_preset
from esper.simic.agent import TamiyoRolloutBuffer
from esper.storage.checkpoint_folder import CheckpointFolder
from esper.telemetry import TelemetryWriter
from esper.telemetry.records import Record, RoundRecord
from esper.training.output import RecordOutput
from esper.training.setup import make_run_task
from esper.training.signals import StopRequest
from esper.training.trainer import Trainer
from esper.training.workers import make_pool
from rows import Ratio, Row
from timing import Effort, Spread

GROUP = "training"
PRESET = "quick"
WARM_UP = 2
"""Rounds before the first measurement: the first use of a blueprint counts and stacks it."""
ROUNDS = 20
BLOCK = 5
"""Rounds between checkpoints."""
WORKERS = 2
"""Worker processes of the last row, as many as the quick preset has shards."""
LIMITS = {"not training or evaluating": 0.20, "telemetry": 0.03}
"""Targets for the share of a round."""
HOST_WORK = ("training", "evaluation", "counterfactuals")
PARTS = (
    *HOST_WORK,
    "new hosts",
    "actions",
    "observations",
    "masks",
    "acting",
    "storing",
    "advantages",
    "update",
    "telemetry",
    "checkpoint",
)


class Rounds:
    """Keeps the seconds of each round, by part."""

    def __init__(self) -> None:
        self.seconds: list[dict[str, float]] = []
        self.advantages = 0.0

    def write(self, record: Record) -> None:
        """Store the seconds of a round."""
        if isinstance(record, RoundRecord):
            parts = json.loads(record.seconds_by_part)
            parts["advantages"], self.advantages = self.advantages, 0.0
            parts["update"] -= parts["advantages"]  # the update computes them
            self.seconds.append({**parts, "total": record.seconds})

    def watch_step(self, step: int) -> None:
        """Ignore a step."""

    def close(self) -> None:
        """Do nothing; there is nothing to close."""


@contextmanager
def trained_rounds(config: RunConfig, rounds: Any, n_workers: int = 0) -> Generator[Trainer]:
    """Train in a temporary folder, with ``rounds`` as a sink of all records.

    Inside the context the trainer's hosts are still there.
    """
    task = make_run_task(config)
    with (
        tempfile.TemporaryDirectory() as folder,
        TelemetryWriter(Path(folder) / "telemetry.sqlite") as writer,
        closing(make_pool(config, task, workers=n_workers)) as pool,
    ):
        trainer = Trainer(
            config,
            task=task,
            output=RecordOutput(writer, [rounds]),
            checkpoints=CheckpointFolder(Path(folder) / "checkpoints"),
            stop=StopRequest(),
            pool=pool,
        )
        trainer.run()
        yield trainer


@contextmanager
def timed_advantages(rounds: Rounds) -> Generator[None]:
    """Measure the time spent on advantages inside the context."""
    original: Callable[..., Any] = TamiyoRolloutBuffer.compute_advantages_and_returns

    def timed(*arguments: Any, **options: Any) -> None:
        start = perf_counter()
        original(*arguments, **options)
        rounds.advantages += perf_counter() - start

    TamiyoRolloutBuffer.compute_advantages_and_returns = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        TamiyoRolloutBuffer.compute_advantages_and_returns = original  # type: ignore[method-assign]


def run(effort: Effort) -> list[Row]:
    """Train for some rounds and return the share of each part."""
    n_rounds = WARM_UP + min(ROUNDS, effort.rounds)
    config = load_preset(PRESET)
    # Evaluations run between rounds and are not measured.
    config = replace(
        config, rounds=n_rounds, evaluation=replace(config.evaluation, eval_freq=10**6)
    )
    rounds, shared = Rounds(), Rounds()
    with timed_advantages(rounds), trained_rounds(config, rounds):
        pass
    with trained_rounds(config, shared, WORKERS):
        pass
    return [
        *_rows(rounds.seconds[WARM_UP:]),
        _workers_row(rounds.seconds[WARM_UP:], shared.seconds[WARM_UP:]),
    ]


def _rows(seconds: list[dict[str, float]]) -> list[Row]:
    """Return a row for each part of a round, and one for everything but work on hosts.

    Shares are formed over blocks of the rounds between two checkpoints.
    """
    blocks = [seconds[i : i + BLOCK] for i in range(0, len(seconds) - BLOCK + 1, BLOCK)] or [
        seconds
    ]
    totals = [sum(one["total"] for one in block) for block in blocks]
    shares: dict[str, list[float]] = {
        part: [
            sum(one.get(part, 0.0) for one in block) / total
            for block, total in zip(blocks, totals, strict=True)
        ]
        for part in PARTS
    }
    shares["everything else"] = [1.0 - sum(column) for column in zip(*shares.values(), strict=True)]
    shares["not training or evaluating"] = [
        1.0 - sum(column) for column in zip(*(shares[part] for part in HOST_WORK), strict=True)
    ]
    whole = statistics.median(totals) / len(blocks[0])
    return [
        Row(
            group=GROUP,
            what=f"{PRESET} preset, a round: {part}",
            other="the whole round",
            kind=Ratio.COST,
            ours_seconds=statistics.median(values) * whole,
            other_seconds=whole,
            ratio=Spread.of(values),
            samples=len(values),
            limit=LIMITS.get(part),
        )
        for part, values in shares.items()
    ]


def _workers_row(alone: list[dict[str, float]], shared: list[dict[str, float]]) -> Row:
    """Return the speed of a round with worker processes against one process, round by round."""
    pairs = [(one["total"], two["total"]) for one, two in zip(alone, shared, strict=True)]
    return Row(
        group=GROUP,
        what=f"{PRESET} preset, a round with {WORKERS} workers",
        other="one process",
        kind=Ratio.SPEEDUP,
        ours_seconds=statistics.median(two for _, two in pairs),
        other_seconds=statistics.median(one for one, _ in pairs),
        ratio=Spread.of([one / two for one, two in pairs]),
        samples=len(pairs),
        limit=None,
    )

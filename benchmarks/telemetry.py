"""Telemetry: writing steps until they are acknowledged, against a bare SQLite insert."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from time import process_time
from typing import Any

from esper.telemetry import TelemetryWriter
from esper.telemetry.records import StepRecord
from esper.telemetry.schema import create_tables, insert_sql
from rows import Ratio, Row, compare
from timing import Effort, Spread, time_side_by_side

GROUP = "telemetry"
N_ROWS, N_ENVS = 9_984, 64
ROUNDS = 16
TARGET_PER_SECOND = 10_000
MAX_SHARE = 0.03
"""Target for the share of a core that writing a thousand rows per second takes."""

OURS = f"{N_ROWS:,} steps, {N_ENVS} a call"
AT_ONCE = f"{N_ROWS:,} steps, one call in all"
BOUND = "executemany of prepared rows in one transaction"


def step_values(number: int) -> dict[str, Any]:
    """Return the field values of one step."""
    return {
        "round": number // 1024,
        "step": number // 64,
        "env": number % 64,
        "episode": number // 1024,
        "epoch": number // 64 % 16,
        "slot": number % 3,
        "blueprint": number % 5,
        "style": number % 4,
        "tempo": number % 3,
        "alpha_target": number % 3,
        "alpha_speed": number % 4,
        "alpha_curve": number % 5,
        "op": number % 7,
        "op_done": number % 7,
        "is_illegal": False,
        "refusal": None,
        "reward": number / 7,
        "progress": number / 11,
        "settlement": 0.0,
        "flops_cost": -number / 13,
        "rent": -number / 17,
        "penalty": 0.0,
        "shaping": 0.0,
        "score": number / 19,
        "flops": number / 23,
        "value": number / 29,
        "log_prob": -number / 31,
        "slots": "[[0, -1, 0.0, 0.0], [4, 2, 0.7, 0.0123], [0, -1, 0.0, 0.0]]",
        "probabilities": bytes(2 * 46),  # two bytes for every choice of the eight heads
    }


class StepWriter:
    """Writes the same steps through a ``TelemetryWriter`` and through a bare connection."""

    def __init__(self, folder: Path) -> None:
        self.values = [step_values(number) for number in range(N_ROWS)]
        assert list(self.values[0]) == [field.name for field in fields(StepRecord)]
        self.writer = TelemetryWriter(folder / "ours.sqlite")
        self.connection = sqlite3.connect(folder / "bound.sqlite", isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        create_tables(self.connection)
        self.last = 0

    def by_step(self) -> None:
        """Create and write the records of a step of all environments at a time."""
        for first in range(0, N_ROWS, N_ENVS):
            self.writer.write_many(
                [StepRecord(**values) for values in self.values[first : first + N_ENVS]]
            )
        self.writer.flush()

    def at_once(self) -> None:
        """Create all records, then write them in one call."""
        self.writer.write_many([StepRecord(**values) for values in self.values])
        self.writer.flush()

    def bound(self) -> Callable[[], None]:
        """Return a call that inserts prepared rows; only their row numbers are made in it."""
        rows = [tuple(values.values()) for values in self.values]

        def insert() -> None:
            first = self.last + 1
            self.last += N_ROWS
            self.connection.execute("BEGIN IMMEDIATE")
            self.connection.executemany(
                insert_sql(StepRecord), ((first + i, *row) for i, row in enumerate(rows))
            )
            self.connection.execute("COMMIT")

        return insert

    def close(self) -> None:
        """Close both."""
        self.writer.close()
        self.connection.close()


def run(effort: Effort) -> list[Row]:
    """Measure both ways of writing, and the CPU time of a thousand rows."""
    effort = replace(effort, rounds=min(effort.rounds, ROUNDS))
    with tempfile.TemporaryDirectory() as folder:
        steps = StepWriter(Path(folder))
        calls = {OURS: steps.by_step, AT_ONCE: steps.at_once, BOUND: steps.bound()}
        timings = time_side_by_side(calls, effort)
        shares = [busy_share(steps) for _ in range(effort.rounds)]
        steps.close()
    speedup = Spread.of([N_ROWS / TARGET_PER_SECOND / timings.seconds(OURS)])
    return [
        Row(
            group=GROUP,
            what=OURS,
            other=f"{TARGET_PER_SECOND:,} rows per second",
            kind=Ratio.SPEEDUP,
            ours_seconds=timings.seconds(OURS),
            other_seconds=N_ROWS / TARGET_PER_SECOND,
            ratio=speedup,
            samples=timings.n_samples(OURS),
            limit=1.0,
            per_call=N_ROWS,
        ),
        *(
            compare(timings, ours, BOUND, group=GROUP, kind=Ratio.COST, per_call=N_ROWS)
            for ours in (OURS, AT_ONCE)
        ),
        Row(
            group=GROUP,
            what="CPU time of 1,000 steps, all threads",
            other="one second",
            kind=Ratio.COST,
            ours_seconds=Spread.of(shares).median,
            other_seconds=1.0,
            ratio=Spread.of(shares),
            samples=len(shares),
            limit=MAX_SHARE,
        ),
    ]


def busy_share(steps: StepWriter) -> float:
    """Return CPU seconds per thousand rows, over all threads.

    At a thousand rows per second the training thread cannot lose more than this, even if none of
    the writer's work ran in parallel.
    """
    start = process_time()
    steps.at_once()
    return (process_time() - start) / (N_ROWS / 1000)

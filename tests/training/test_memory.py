"""Memory and open files do not grow with the length of a run."""

import os
from pathlib import Path

import numpy as np
import pytest

from esper.telemetry.records import Record, RoundRecord
from esper.training.runs import train
from tests.training.tiny import liveliness, tiny_config


class OpenFiles:
    """Counts the open files at the end of each round."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def write(self, record: Record) -> None:
        if isinstance(record, RoundRecord):
            self.counts.append(len(os.listdir("/proc/self/fd")))

    def close(self) -> None:
        pass


MAX_GROWTH = 40_000
"""Bytes that a round may add: 8 MB over 200 rounds, less than the allocator's own noise."""


@pytest.mark.slow
def test_memory_and_open_files_are_flat_over_200_rounds(tmp_path: Path) -> None:
    watcher = OpenFiles()
    config = tiny_config(
        rounds=200,
        n_steps=4,
        budget__n_epochs=4,
        evaluation__eval_freq=20,
        checkpoints__save_freq=8,
    )
    with liveliness():
        run = train(config, run_dir=tmp_path / "run", watchers=[watcher])
    with run.telemetry() as telemetry:
        used = np.array([record.rss_bytes for record in telemetry.rows(RoundRecord)], float)
    slope = np.polyfit(np.arange(50, 200), used[50:], 1)[0]
    print(f"{slope:.0f} bytes a round; {used[-1] / 2**20:.0f} MB, {watcher.counts[-1]} files")
    assert slope < MAX_GROWTH
    assert max(watcher.counts[50:]) <= max(watcher.counts[:50])

"""Folders of simulated runs."""

from __future__ import annotations

from pathlib import Path

from esper.config.run import RunConfig
from esper.storage.run_folder import RunFolder
from esper.telemetry import TelemetryWriter
from tests.dashboard.views.simulation import Simulation


def make_run(path: Path, *, rounds: int = 4, seed: int = 0, is_over: bool = True) -> RunFolder:
    """Write a simulated run, whose session is still open unless it is over."""
    folder = RunFolder.create(path, RunConfig(task="spirals", rounds=9))
    made = Simulation(seed)
    with TelemetryWriter(folder.telemetry_file) as writer:
        writer.start_session(first_round=1, threads=1, torch_version="0")
        writer.write_many(made.first())
        for number in range(1, rounds + 1):
            writer.write_many(made.round(number))
        if is_over:
            writer.end_session("done")
    return folder

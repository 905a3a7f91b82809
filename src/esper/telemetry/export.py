"""Exporting a run's telemetry as CSV: one file per table."""

from __future__ import annotations

import csv
import os
from pathlib import Path

from esper.storage.files import make_folder, replacing, storage_errors
from esper.telemetry.reader import open_run
from esper.telemetry.records import TABLES
from esper.telemetry.schema import all_columns_of


def export_csv(run_dir: str | os.PathLike[str], folder: str | os.PathLike[str]) -> list[Path]:
    """Write every table of a run to ``<table>.csv`` in a folder, and return the files.

    All tables are as of the same moment, also while the run is writing. Missing values are empty
    fields. Floats are written so that they read back exactly, bytes as hexadecimal digits.

    Raises:
        TelemetryError: If the run has no readable telemetry.
        StorageError: If a file cannot be written.
    """
    place = Path(folder)
    paths = [place / f"{name}.csv" for name in TABLES]
    with open_run(run_dir) as telemetry, telemetry.snapshot():
        with storage_errors(place):
            make_folder(place)
        for kind, path in zip(TABLES.values(), paths, strict=True):
            with (
                storage_errors(path),
                replacing(path) as temporary,
                temporary.open("w", encoding="utf-8", newline="") as file,
            ):
                writer = csv.writer(file)
                writer.writerow(column.name for column in all_columns_of(kind))
                writer.writerows(
                    [one.hex() if isinstance(one, bytes) else one for one in row]
                    for row in telemetry.stream_values(kind)
                )
    return paths

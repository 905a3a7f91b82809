"""Exporting a run's telemetry as CSV or Parquet: one file per table."""

from __future__ import annotations

import csv
import importlib
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from esper.errors import ConfigError, StorageError
from esper.storage.files import replacing
from esper.telemetry.reader import RunTelemetry, open_run
from esper.telemetry.records import TABLES
from esper.telemetry.schema import RecordType, all_columns_of

BATCH_ROWS = 50_000
"""Rows held in memory at a time."""


def export_csv(run_dir: str | os.PathLike[str], folder: str | os.PathLike[str]) -> list[Path]:
    """Write every table of a run to ``<table>.csv`` in a folder, and return the files.

    Missing values are empty fields. Floats are written so that they read back exactly, bytes as
    hexadecimal digits.

    Raises:
        TelemetryError: If the run has no readable telemetry.
        StorageError: If a file cannot be written.
    """

    def write(telemetry: RunTelemetry, kind: RecordType, path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(column.name for column in all_columns_of(kind))
            writer.writerows(map(_as_text, telemetry.stream_values(kind)))

    return _export(run_dir, Path(folder), "csv", write)


def export_parquet(run_dir: str | os.PathLike[str], folder: str | os.PathLike[str]) -> list[Path]:
    """Write every table of a run to ``<table>.parquet`` in a folder, and return the files.

    Raises:
        ConfigError: If pyarrow is not installed.
        TelemetryError: If the run has no readable telemetry.
        StorageError: If a file cannot be written.
    """
    try:
        pa: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"Parquet needs {error.name}, which is not installed; run: pip install "
            '"esper-lite[parquet]"'
        ) from error
    types = {
        int: pa.int64(),
        float: pa.float64(),
        bool: pa.bool_(),
        str: pa.string(),
        bytes: pa.binary(),
    }

    def write(telemetry: RunTelemetry, kind: RecordType, path: Path) -> None:
        columns = all_columns_of(kind)
        schema = pa.schema([pa.field(c.name, types[c.kind], c.is_optional) for c in columns])
        with parquet.ParquetWriter(path, schema) as writer:
            for rows in _batches(telemetry.stream_values(kind)):
                arrays = [
                    pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)
                ]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))

    return _export(run_dir, Path(folder), "parquet", write)


def _export(
    run_dir: str | os.PathLike[str],
    folder: Path,
    suffix: str,
    write: Callable[[RunTelemetry, RecordType, Path], None],
) -> list[Path]:
    """Write all tables as of the same moment, also while the run is writing."""
    paths: list[Path] = []
    with open_run(run_dir, verify=True) as telemetry, telemetry.snapshot():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, kind in TABLES.items():
                paths.append(folder / f"{name}.{suffix}")
                with replacing(paths[-1]) as temporary:
                    write(telemetry, kind, temporary)
        except OSError as error:
            raise StorageError(
                f"{paths[-1] if paths else folder} cannot be written ({error.strerror or error}); "
                "name a writable folder on a disk with free space."
            ) from error
    return paths


def _as_text(values: list[Any]) -> list[Any]:
    return [value.hex() if isinstance(value, bytes) else value for value in values]


def _batches(rows: Iterator[list[Any]]) -> Iterator[list[list[Any]]]:
    while batch := list(islice(rows, BATCH_ROWS)):
        yield batch

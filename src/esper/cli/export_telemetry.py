"""The command ``esper export-telemetry``: everything that happened in a run, as files of tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from esper.cli.parsing import UsageError, parse
from esper.training.run import load_run


@dataclass(frozen=True, kw_only=True)
class Options:
    """Write a run's telemetry to a file for each table."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder, or its name in the runs folder."""

    csv: bool = False
    """As CSV."""

    parquet: bool = False
    """As Parquet; needs pyarrow."""

    out: str | None = None
    """The folder for the files; by default one named tables in the run's folder."""


def run(words: Sequence[str]) -> int:
    """Write the tables and print the files."""
    options = parse(Options, words, command="export-telemetry")
    if options.csv and options.parquet:
        raise UsageError("--csv and --parquet are both given; choose one of them.")
    if not options.csv and not options.parquet:
        raise UsageError("one of --csv and --parquet is needed.")
    found = load_run(options.run)
    folder = Path(options.out) if options.out else found.path / "tables"
    from esper.telemetry.export import export_csv, export_parquet

    export = export_csv if options.csv else export_parquet
    for path in export(found.path, folder):
        print(path)
    return 0

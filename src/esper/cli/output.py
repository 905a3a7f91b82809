"""Printing lists and facts: aligned columns for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any


def print_json(value: Any) -> None:
    """Print a value as JSON, indented."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in aligned columns; on a terminal the last column is wrapped to fit."""
    if sys.stdout.isatty():
        _print_wrapped(rows)
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


def _print_wrapped(rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for index in range(len(rows[0])):
        table.add_column(no_wrap=index < len(rows[0]) - 1, style="bold" if index == 0 else "")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)

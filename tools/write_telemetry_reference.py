"""Rewrite the generated tables of docs/reference/telemetry.md and docs/reference/metrics.md."""

from __future__ import annotations

import inspect
from pathlib import Path

from esper.telemetry import METRICS
from esper.telemetry.records import SCHEMA_VERSION, TABLES
from esper.telemetry.schema import all_columns_of

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
START = "<!-- The tables below are written by tools/write_telemetry_reference.py. -->\n\n"


def telemetry_tables() -> str:
    """Return every table of the database with its columns and indexes."""
    lines = [f"Schema version {SCHEMA_VERSION}.", ""]
    for name, kind in TABLES.items():
        about = " ".join((inspect.getdoc(kind) or "").split())
        indexes = ", ".join(f"({', '.join(index)})" for index in kind.indexes)
        lines += [f"### `{name}`", "", f"`{kind.__name__}`. {about}", ""]
        lines += [f"Indexes: {indexes}.", ""] if indexes else []
        lines += ["| column | type | description |", "|---|---|---|"]
        for column in all_columns_of(kind):
            type_name = column.kind.__name__ + (" or none" if column.is_optional else "")
            star = "\\*" if column.is_clock else ""
            lines.append(f"| `{column.name}`{star} | {type_name} | {column.about} |")
        lines.append("")
    return "\n".join(lines)


def metric_table() -> str:
    """Return every metric with its description."""
    rows = (f"| `{name}` | {about} |" for name, about in METRICS.items())
    return "\n".join(("| metric | description |", "|---|---|", *rows, ""))


PAGES = {"telemetry.md": telemetry_tables, "metrics.md": metric_table}


def page(name: str) -> str:
    """Return a page as it should be: its own text, then the generated tables."""
    text, _, _ = (REFERENCE / name).read_text(encoding="utf-8").partition(START)
    return text + START + PAGES[name]()


if __name__ == "__main__":
    for one in PAGES:
        (REFERENCE / one).write_text(page(one), encoding="utf-8")

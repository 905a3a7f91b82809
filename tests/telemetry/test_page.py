"""The page on telemetry describes the tables as they are, and what it shows works."""

from __future__ import annotations

import ast
import inspect
import re
import sqlite3
import textwrap
from pathlib import Path
from typing import Any

import pytest

from esper.telemetry import TelemetryWriter
from esper.telemetry.records import RECORD_TYPES, SCHEMA_VERSION, TABLES, RunRecord
from esper.telemetry.schema import columns_of, key_of
from tests.telemetry.samples import FILE, example, step

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "telemetry.md"


def field_docs(kind: type[Any]) -> dict[str, str]:
    """Return the docstring under each field of a record type, in one line."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(after, ast.Expr):
            assert isinstance(statement.target, ast.Name)
            assert isinstance(after.value, ast.Constant)
            found[statement.target.id] = " ".join(str(after.value.value).split())
    return found


def schema_tables() -> str:
    """Return the section of the page that lists every table and column."""
    lines: list[str] = []
    for name, kind in TABLES.items():
        docs = field_docs(kind)
        about = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
        lines += [f"### `{name}`", "", f"`{kind.__name__}`. {about}", ""]
        lines += ["| column | type | what it is |", "|---|---|---|"]
        key = "The session's number." if key_of(kind) == "id" else "The row's number in the run."
        lines.append(f"| `{key_of(kind)}` | int | {key} |")
        for column in columns_of(kind):
            kind_name = column.kind.__name__ + (" or none" if column.is_optional else "")
            star = "\\*" if column.is_clock else ""
            about = docs[column.name].replace("``", "`")
            lines.append(f"| `{column.name}`{star} | {kind_name} | {about} |")
        lines.append("")
    return "\n".join(lines)


def test_the_page_lists_every_table_and_column_with_its_docstring() -> None:
    text = PAGE.read_text()
    assert schema_tables().strip() in text
    assert f"schema version {SCHEMA_VERSION}" in text


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "runs" / "my-run"
    folder.mkdir(parents=True)
    with TelemetryWriter(folder / FILE) as writer:
        writer.write(example(RunRecord, ops='["wait", "germinate"]'))
        writer.write_many([example(kind) for kind in RECORD_TYPES if kind is not RunRecord])
        writer.write_many([step(number) for number in range(100)])
    monkeypatch.chdir(tmp_path)
    return folder


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_every_query_of_the_page_runs(run: Path) -> None:
    queries = [query for block in blocks("sql") for query in block.split(";") if query.strip()]
    assert len(queries) >= 5
    connection = sqlite3.connect(run / FILE)
    for query in queries:
        assert connection.execute(query).fetchall(), query
    connection.close()


def test_every_program_of_the_page_runs(run: Path) -> None:
    programs = blocks("python")
    assert len(programs) >= 2
    for program in programs:
        exec(compile(program, str(PAGE), "exec"), {})
    assert (run / "csv" / "steps.csv").exists()

"""The reference pages on telemetry and metrics are up to date, and their queries run."""

from __future__ import annotations

import importlib.util
import re
import sqlite3
from pathlib import Path

from esper.telemetry import TelemetryWriter
from esper.telemetry.records import RECORD_TYPES, RunRecord
from tests.telemetry.samples import FILE, example, step

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "telemetry.md"


def test_the_generated_tables_are_up_to_date() -> None:
    path = PAGE.parents[2] / "tools" / "write_telemetry_reference.py"
    spec = importlib.util.spec_from_file_location("tool", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    for name in ("telemetry.md", "metrics.md"):
        text = PAGE.with_name(name).read_text(encoding="utf-8")
        assert text == tool.page(name), "run tools/write_telemetry_reference.py"


def test_every_query_of_the_page_runs(tmp_path: Path) -> None:
    with TelemetryWriter(tmp_path / FILE) as writer:
        writer.write(example(RunRecord, ops='["wait", "germinate"]'))
        writer.write_many([example(kind) for kind in RECORD_TYPES if kind is not RunRecord])
        writer.write_many([step(number) for number in range(100)])
    blocks = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    queries = [query for block in blocks for query in block.split(";") if query.strip()]
    assert len(queries) >= 5
    connection = sqlite3.connect(tmp_path / FILE)
    for query in queries:
        assert connection.execute(query).fetchall(), query
    connection.close()

"""Databases that someone made to harm whoever reads them; each keeps the marks of telemetry."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

PAGE = 4096
INTERIOR, LEAF = 5, 13


def run_sql(path: Path, *statements: str) -> None:
    """Execute statements on a database."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def add_trigger(path: Path) -> None:
    """Let every new round delete all episodes."""
    act = "BEGIN DELETE FROM episodes; END"
    run_sql(path, f"CREATE TRIGGER quiet AFTER INSERT ON rounds {act}")


def add_view_bomb(path: Path) -> None:
    """Replace a table by a view of more rows than can ever be read."""
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100000)"
    with closing(sqlite3.connect(path)) as connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(rounds)")]
    columns = ", ".join(f'a.i AS "{name}"' for name in names)
    run_sql(
        path,
        "DROP TABLE rounds",
        f"CREATE VIEW rounds AS {numbers} SELECT {columns} FROM n a, n b, n c, n d",
    )


def add_virtual_table(path: Path) -> None:
    run_sql(path, "CREATE VIRTUAL TABLE t USING fts5(a)")


def add_expression_index(path: Path) -> None:
    run_sql(path, "CREATE INDEX slow ON rounds (abs(round))")


def change_definition(path: Path) -> None:
    """Add a constraint to a table, which every written row would evaluate."""
    change = "UPDATE sqlite_master SET sql = replace(sql, 'seq INTEGER', 'seq  INTEGER')"
    run_sql(path, "PRAGMA writable_schema = ON", f"{change} WHERE name = 'rounds'")


def nest_pages(path: Path) -> None:
    """Let the pages of the episodes contain each other, so that they have rows without end."""
    run_sql(
        path,
        "PRAGMA wal_checkpoint(TRUNCATE)",
        *["INSERT INTO episodes SELECT seq + (SELECT max(seq) FROM episodes), "
          + _columns(path, "episodes") + " FROM episodes"] * 7,
        "PRAGMA journal_mode = DELETE",
    )  # fmt: skip
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'episodes'"
        (root,) = connection.execute(query).fetchone()
    content = bytearray(path.read_bytes())

    def children(page: int) -> list[int]:
        start = (page - 1) * PAGE
        (n_cells,) = struct.unpack_from(">H", content, start + 3)
        cells = struct.unpack_from(f">{n_cells}H", content, start + 12)
        return [start + cell for cell in cells] + [start + 8]  # where their numbers are

    assert content[(root - 1) * PAGE] == INTERIOR
    levels = [struct.unpack_from(">I", content, at)[0] for at in children(root)[1:6]]
    below = struct.unpack_from(">I", content, children(root)[0])[0]
    while content[(below - 1) * PAGE] == INTERIOR:  # a leaf at last
        below = struct.unpack_from(">I", content, children(below)[0])[0]
    for page in (*levels, root):
        start = (page - 1) * PAGE
        content[start : start + PAGE] = content[(root - 1) * PAGE : root * PAGE]
        for at in children(page):
            struct.pack_into(">I", content, at, below)
        below = page
    path.write_bytes(bytes(content))


def _columns(path: Path, table: str) -> str:
    with closing(sqlite3.connect(path)) as connection:
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    return ", ".join(f'"{name}"' for name in names[1:])


BY_SCHEMA: list[Callable[[Path], None]] = [
    add_trigger,
    add_view_bomb,
    add_virtual_table,
    add_expression_index,
    change_definition,
]
"""What harms by definitions of its own."""

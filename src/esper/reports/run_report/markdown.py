"""A report as Markdown, with tables in place of drawings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from esper.evidence.text import Table
from esper.reports.run_report.blocks import (
    Block,
    Code,
    Document,
    Facts,
    Items,
    Mount,
    Rows,
    Section,
    Text,
)

MARK = "<!-- esper report -->"
"""The first line of every Markdown report, which identifies it."""

_SPECIAL = re.compile(r"([\\`*<>|~])|\](?=[(\[:])|!(?=\[)|(?<![^\W_])(_)|(_)(?![^\W_])")
"""Characters with a meaning in Markdown: underscores only at the edge of a word, and brackets only
where a link could follow."""
_STARTS = re.compile(r"^(\d*)([#=+\-](?!\d)|[.)](?:\s|$))")


def to_markdown(document: Document) -> str:
    """Return a report as Markdown."""
    parts = [MARK, f"# {escaped(document.title)}", *_blocks(document.blocks)]
    for section in document.sections:
        parts += _section(section, 2)
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Return a text in one line that Markdown shows verbatim."""
    # These would start a heading, a rule or a list item.
    return _STARTS.sub(r"\1\\\2", _escape_inline(text))


def _escape_inline(text: str) -> str:
    plain = " ".join(text.split()).replace("&", "&amp;")
    return _SPECIAL.sub(lambda found: f"\\{found[0]}", plain)


def _section(section: Section, level: int) -> Iterator[str]:
    yield f"{'#' * level} {escaped(section.title)}"
    yield from _blocks(section.blocks)
    for inner in section.sections:
        yield from _section(inner, level + 1)


def _blocks(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        yield from _block(block)


def _block(block: Block) -> Iterator[str]:
    match block:
        case Text():
            yield f"**{escaped(block.text)}**" if block.is_verdict else escaped(block.text)
        case Items():
            if block.lines:
                yield "\n".join(f"- {escaped(line)}" for line in block.lines)
        case Rows():
            yield _escaped_table(block.table).to_markdown()
        case Facts():
            table = Table(headers=("", ""), rows=block.pairs, n_left=2)
            yield _escaped_table(table).to_markdown()
        case Code():
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block.text)), default=0))
            yield f"{fence}{block.language}\n{block.text.rstrip()}\n{fence}"
        case Mount():
            yield from _blocks(block.instead)


def _escaped_table(table: Table) -> Table:
    # Table.to_markdown() escapes the bars between its cells.
    return replace(
        table,
        headers=tuple(_cell(cell) for cell in table.headers),
        rows=tuple(tuple(_cell(cell) for cell in row) for row in table.rows),
    )


def _cell(text: str) -> str:
    return _escape_inline(text).replace("\\|", "|")

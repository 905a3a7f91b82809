"""The parts of a report, independent of its format: sections of text, tables and drawings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from esper.evidence.text import Table

Drawing = Literal["differences", "arms", "charts", "episode", "learned", "health"]
"""What the HTML page draws from the report's data."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """A paragraph."""

    text: str
    is_verdict: bool = False
    """Whether to emphasize it."""


@dataclass(frozen=True, kw_only=True)
class Items:
    """A list of sentences."""

    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A table."""

    table: Table


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Names with their values."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Code:
    """A command or a file, shown verbatim."""

    text: str
    language: str = ""
    is_long: bool = False
    """Whether the HTML page collapses it."""


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A place where the HTML page draws."""

    drawing: Drawing
    run: int | None = None
    """Index of the run; None to draw all runs together."""
    episode: int | None = None
    """Index of the episode among those of the run."""
    evaluation: int | None = None
    """Index of the evaluation whose arms are drawn."""
    instead: tuple[Block, ...] = ()
    """Blocks with the same content, for formats without drawings."""


Block = Text | Items | Rows | Facts | Code | Mount


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading with its content."""

    title: str
    anchor: str
    """Target of links, unique in the document."""
    blocks: tuple[Block, ...] = ()
    sections: tuple[Section, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Document:
    """A whole report."""

    title: str
    blocks: tuple[Block, ...] = ()
    """Content before the first section."""
    sections: tuple[Section, ...] = ()

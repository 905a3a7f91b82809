"""What a report is made of, whatever it is written as: sections of words, tables and drawings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from esper.evidence.text import Table

Drawing = Literal["charts", "episode", "learned", "health"]
"""What the page draws from the report's data."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """A paragraph."""

    text: str
    is_verdict: bool = False
    """Whether it is what a reader should see first."""


@dataclass(frozen=True, kw_only=True)
class Items:
    """Sentences that stand one below the other."""

    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A table."""

    table: Table


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Names and what they stand for."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Code:
    """Text that is shown letter by letter, such as a command or a file."""

    text: str
    language: str = ""
    is_long: bool = False
    """Whether a page shows it only when it is asked for."""


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A place where a page draws; elsewhere its words stand there instead."""

    drawing: Drawing
    run: int | None = None
    """The number of the run; None for all of them in one drawing."""
    episode: int | None = None
    """The number of the episode among those of the run."""
    instead: tuple[Block, ...] = ()
    """What says the same where nothing can be drawn."""


Block = Text | Items | Rows | Facts | Code | Mount


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and what is below it."""

    title: str
    anchor: str
    """A word that a link can lead to, of its own in a document."""
    blocks: tuple[Block, ...] = ()
    sections: tuple[Section, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Document:
    """A whole report."""

    title: str
    blocks: tuple[Block, ...] = ()
    """What is said before the first section."""
    sections: tuple[Section, ...] = ()

"""Writing to the terminal: columns, wrapped text, JSON, and output that cannot be written."""

from __future__ import annotations

import codecs
import io
import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from esper.errors import StorageError, escape_controls, escape_for_data

if TYPE_CHECKING:
    from esper.progress import ProgressBar

_ESCAPE_UNENCODABLE = "esper_escape_unencodable"


def command_progress(title: str, *, quiet: bool = False) -> ProgressBar:
    """Return the progress bar of a command, on stderr; in a file, a line now and then."""
    from esper.progress import ProgressBar

    return ProgressBar(not quiet, title=title, delay=0.0, stream=raw_stream(sys.stderr))


def prepare_streams() -> bool:
    """Let stdout escape characters it cannot encode; return False if stdout is closed.

    Closed standard descriptors are opened on the null device. Otherwise the next file opened would
    get their number and receive what is meant for the terminal.
    """
    has_output = sys.stdout is not None
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - open until the process ends
    codecs.register_error(_ESCAPE_UNENCODABLE, _escape_character)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_ESCAPE_UNENCODABLE)
    return has_output


class EscapedStream:
    """A text stream that shows control characters instead of passing them to the terminal.

    Commands print strings of runs, controllers and tasks, which others may have written.
    """

    def __init__(self, raw: TextIO) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        """Write a text with its control characters escaped."""
        self.raw.write(escape_controls(text))
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def raw_stream(stream: Any) -> TextIO:
    """Return the stream behind an escaped one, for output that moves the cursor."""
    return stream.raw if isinstance(stream, EscapedStream) else stream


@contextmanager
def escaped_output() -> Generator[None]:
    """Escape control characters in everything that is printed within the context."""
    kept = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, EscapedStream(raw_stream(one))) for one in kept)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = kept


def flush_or_discard_output() -> None:
    """Flush stdout, or discard what is buffered if that fails."""
    try:
        sys.stdout.flush()
    except OSError:
        discard_output()


def is_output_broken() -> bool:
    """Return whether writing to stdout fails."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        return True
    return False


def discard_output() -> None:
    """Redirect stdout to the null device, so that the interpreter does not fail when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def can_encode(text: str) -> bool:
    """Return whether stdout's encoding has all characters of a text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _escape_character(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return a backslash escape for a character; undecoded bytes of a file name are kept."""
    assert isinstance(error, UnicodeEncodeError), "registered for output only"
    character = UnicodeEncodeError(
        error.encoding, error.object, error.start, error.start + 1, error.reason
    )
    is_undecoded_byte = 0xDC80 <= ord(error.object[error.start]) <= 0xDCFF
    handler = "surrogateescape" if is_undecoded_byte else "backslashreplace"
    return codecs.lookup_error(handler)(character)


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(json_text(value, indent=2))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON, in ASCII if stdout cannot encode it otherwise."""
    text = json.dumps(finite(value), indent=indent, ensure_ascii=False)
    return escape_for_data(text if can_encode(text) else json.dumps(finite(value), indent=indent))


def finite(value: Any) -> Any:
    """Return a value with None in place of numbers that are not finite, which JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in cast("Sequence[Any]", value)]
    return value


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in aligned columns; on a terminal the last column is wrapped to fit.

    Where the other columns leave too little room, the last cell goes on a line of its own.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    room = line_width()
    indent = sum(widths[:-1]) + 2 * (len(widths) - 1)
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        start = "  ".join([*cells, ""])
        if room is None or indent + len(row[-1]) <= room:
            print(f"{start}{row[-1]}".rstrip())
        elif room - indent >= _MIN_ROOM:
            lines = _wrap(row[-1], room - indent)
            print(f"{start}{lines[0]}".rstrip())
            for line in lines[1:]:
                print(f"{'':{indent}}{line}")
        else:
            print(start.rstrip())
            print_wrapped(row[-1], indent="    ")


def print_table(rows: Sequence[Sequence[str]], *, n_left: int = 1) -> None:
    """Print a heading and rows: a name, words, and numbers, which are aligned on the right.

    On a terminal, a name that leaves too little room goes on a line of its own.

    Args:
        rows: The heading and the rows.
        n_left: Number of columns that are names or words.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room, numbers = line_width(), sum(widths[1:]) + 2 * (len(widths) - 1)
    if room is not None and widths[0] + numbers > room:
        maximum = max(room - numbers, 0)
        widths[0] = max((len(row[0]) for row in rows if len(row[0]) <= maximum), default=0)
    for name, *cells in rows:
        if len(name) > widths[0]:
            print(name)
            name = ""
        aligned = [
            cell.ljust(width) if column < n_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths[1:], strict=True), start=1)
        ]
        print("  ".join([name.ljust(widths[0]), *aligned]).rstrip())


def one_line(text: object) -> str:
    """Return a text or the message of an error without line breaks and control characters."""
    return escape_controls(" ".join(str(text).split()))


def print_wrapped(text: str, *, indent: str = "", first: str | None = None) -> None:
    """Print a paragraph, wrapped between words to the terminal, or to 80 columns without one.

    Args:
        text: The paragraph.
        indent: Precedes each line.
        first: Precedes the first line instead, if given.
    """
    start, room = indent if first is None else first, shutil.get_terminal_size().columns
    print("\n".join(_wrap(f"{start}{escape_controls(text)}", room, indent)))


def existing_folder(path: Path) -> Path:
    """Return a path, or its nearest parent that exists."""
    absolute = path.expanduser().absolute()
    return next(place for place in (absolute, *absolute.parents) if os.path.exists(place))


def require_writable(folder: Path) -> None:
    """Check that a folder can be created and written to before any work is done.

    Raises:
        StorageError: If it cannot.
    """
    place = existing_folder(folder)
    if not os.path.isdir(place):
        raise StorageError(f"--out is {str(folder)!r}, but {place} is not a folder.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise StorageError(f"cannot write to {place}; choose another folder with --out.")


def line_width() -> int | None:
    """Return the width of the terminal, or None if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


_MIN_ROOM = 16


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Return the lines of a wrapped text; words are not broken, so that paths can be copied."""
    lines = textwrap.wrap(
        text,
        max(width, 20),
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return lines or [""]

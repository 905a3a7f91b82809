"""The output of the process: what it can show, and what becomes of a command that it fails."""

from __future__ import annotations

import codecs
import io
import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from esper.errors import StorageError

_UNSHOWN = "esper_unshown"


def prepare_streams() -> bool:
    """Make the output ready for any text; return whether there is an output at all.

    Descriptors that are closed are given to a file that takes everything: the next file that is
    opened would get their number otherwise, and with it what is meant for the terminal.
    """
    has_output = sys.stdout is not None
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - it lasts as the process does
    codecs.register_error(_UNSHOWN, _replace)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_UNSHOWN)
    return has_output


def settle_output() -> None:
    """Write what is left of the output, or forget it where that fails."""
    try:
        sys.stdout.flush()
    except OSError:
        forget_output()


def is_output_broken() -> bool:
    """Return whether it is the output that cannot be written, after something could not."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        return True
    return False


def forget_output() -> None:
    """Let nothing be written any more, also not when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


def shows(text: str) -> bool:
    """Return whether the output has these letters; that of a terminal in ASCII has few."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _replace(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return an escape for a letter that the output lacks; bytes of a file's name stay as is."""
    assert isinstance(error, UnicodeEncodeError), "only output is replaced"
    letter = UnicodeEncodeError(
        error.encoding, error.object, error.start, error.start + 1, error.reason
    )
    if 0xDC80 <= ord(error.object[error.start]) <= 0xDCFF:
        return codecs.lookup_error("surrogateescape")(letter)
    return codecs.lookup_error("backslashreplace")(letter)


def print_json(value: Any) -> None:
    """Print a value as JSON, indented."""
    print(json_text(value, indent=2))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON, with escapes where the output does not have a letter."""
    text = json.dumps(finite(value), indent=indent, ensure_ascii=False)
    return text if shows(text) else json.dumps(finite(value), indent=indent)


def finite(value: Any) -> Any:
    """Return a value as JSON can hold it: a number that is not finite is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in cast("Sequence[Any]", value)]
    return value


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in aligned columns; on a terminal the last column is wrapped to fit.

    Where the other columns leave too little room for that, the last one gets a line of its own:
    nothing is ever cut off.
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
        elif room - indent >= _LEAST_ROOM:
            lines = _wrap(row[-1], room - indent)
            print(f"{start}{lines[0]}".rstrip())
            for line in lines[1:]:
                print(f"{'':{indent}}{line}")
        else:
            print(start.rstrip())
            print_wrapped(row[-1], indent="    ")


def one_line(text: object) -> str:
    """Return a text, or the message of an error, without line breaks."""
    return " ".join(str(text).split())


def print_wrapped(text: str, *, indent: str = "", first: str | None = None) -> None:
    """Print a paragraph; on a terminal wrapped between words.

    Args:
        text: The paragraph.
        indent: Before each line.
        first: Before the first line, if that differs.
    """
    start, room = indent if first is None else first, line_width()
    if room is None:
        print(f"{start}{text}")
    else:
        lines = _wrap(f"{start}{text}", room, indent)
        print("\n".join(lines))


def existing_folder(path: Path) -> Path:
    """Return a path, or the nearest one above it that there is."""
    absolute = path.expanduser().absolute()
    return next(place for place in (absolute, *absolute.parents) if place.exists())


def require_writable(folder: Path) -> None:
    """Refuse a folder that nothing can be saved in, before anything is grown.

    Raises:
        StorageError: If it cannot be made or written.
    """
    place = existing_folder(folder)
    if not place.is_dir():
        raise StorageError(f"--out is {str(folder)!r}, and {place} is no folder; choose another.")
    if not os.access(place, os.W_OK | os.X_OK):
        raise StorageError(f"{place} cannot be written; choose another folder with --out.")


def line_width() -> int | None:
    """Return the letters of a line of the terminal; None if the output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


_LEAST_ROOM = 16


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Return a text in lines; words are left whole, so that paths can be copied."""
    lines = textwrap.wrap(
        text,
        max(width, 20),
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return lines or [""]

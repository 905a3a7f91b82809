"""The output of the process: what it can show, and what becomes of a command that it fails."""

from __future__ import annotations

import codecs
import io
import os
import sys

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

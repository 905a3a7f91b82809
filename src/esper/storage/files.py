"""Writing files so that whoever reads them never meets half of one."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

from esper.errors import StorageError


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, text in UTF-8, so that it is there whole or as it was."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


_ADVICE = {
    "ENOSPC": "free some space",
    "EDQUOT": "free some space, the quota is used up",
    "EFBIG": "raise the limit on the size of files",
    "EROFS": "choose a folder that can be written to",
    "EACCES": "choose a folder that can be written to",
    "EPERM": "choose a folder that can be written to",
    "ENOTDIR": "choose another folder, a file is in the way",
    "EEXIST": "choose another folder, a file is in the way",
}


@contextmanager
def storage_errors(doing: str, path: Path) -> Generator[None]:
    """Turn what the operating system refuses into a StorageError that says what to do."""
    try:
        yield
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, "")
        advice = _ADVICE.get(code, "look at the disk")
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise StorageError(
            f"{doing} {path} failed: {reason}; {advice}. Older checkpoints are as they were."
        ) from error


def write_file(path: Path, pieces: Iterable[memoryview]) -> None:
    """Make a file of these pieces and wait until they are on the disk."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for piece in pieces:
            while piece:
                piece = piece[os.write(handle, piece) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_folder(path: Path) -> None:
    """Wait until a folder's list of names is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, where they are missing, and wait until they are there."""
    if path.is_dir():
        return
    make_folder(path.parent)
    os.mkdir(path)
    flush_folder(path.parent)


def holds_only(path: Path, names: tuple[str, ...]) -> bool:
    """Tell whether a folder is a real one without anything in it but files of these names."""
    return not path.is_symlink() and set(os.listdir(path)) <= set(names)


def remove_folder(path: Path, names: tuple[str, ...]) -> None:
    """Remove a folder with the files of these names; with others in it, it stays as it is."""
    if holds_only(path, names):
        for name in os.listdir(path):
            os.unlink(path / name)
        os.rmdir(path)

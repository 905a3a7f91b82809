"""Files on disk: written atomically, read strictly."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from esper.errors import StorageError


def write_atomic(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Write a file, text as UTF-8; a crash leaves either the old file or the new one.

    The file is on disk when this returns.

    Args:
        path: The file; its folder must exist.
        content: What the file is to hold.
        mode: The permissions of the file.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
        flush_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def read_json(path: Path, *, allow_nan: bool = False) -> Any:
    """Return the value in a JSON file.

    Args:
        path: The file.
        allow_nan: Whether ``NaN`` and ``Infinity`` are accepted.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is not valid JSON, or an object has a key twice.
    """
    return parse_json(path.read_bytes(), allow_nan=allow_nan)


def parse_json(content: str | bytes, *, allow_nan: bool = False) -> Any:
    """Return the value of a JSON text; see :func:`read_json`."""

    def reject(constant: str) -> Any:
        raise ValueError(f"{constant} is not a finite number")

    try:
        return json.loads(
            content, parse_constant=None if allow_nan else reject, object_pairs_hook=_unique_keys
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated!r} appears twice")
    return found


_ADVICE = {
    "ENOSPC": "free some space",
    "EDQUOT": "free some space, the quota is used up",
    "EFBIG": "raise the limit on file sizes",
    "EROFS": "choose a writable folder",
    "EACCES": "choose a writable folder",
    "EPERM": "choose a writable folder",
    "ENOTDIR": "choose another folder, a file is in the way",
    "EEXIST": "choose another folder, a file is in the way",
}


@contextmanager
def storage_errors(doing: str, path: Path) -> Generator[None]:
    """Turn an error of the operating system into a StorageError that says what to do."""
    try:
        yield
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, "")
        advice = _ADVICE.get(code, "check the disk")
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise StorageError(
            f"{doing} {path} failed: {reason}; {advice}. Earlier checkpoints are unchanged."
        ) from error


def write_file(path: Path, pieces: Iterable[memoryview]) -> None:
    """Create a file from consecutive pieces and flush it to disk."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for piece in pieces:
            while piece:
                piece = piece[os.write(handle, piece) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_folder(path: Path) -> None:
    """Flush a folder's list of entries to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, and flush them to disk."""
    if path.is_dir():
        return
    make_folder(path.parent)
    os.mkdir(path)
    flush_folder(path.parent)


def holds_only(path: Path, names: tuple[str, ...]) -> bool:
    """Return whether a folder is not a link and holds no entries but these."""
    return not path.is_symlink() and set(os.listdir(path)) <= set(names)


def remove_folder(path: Path, names: tuple[str, ...]) -> None:
    """Remove a folder that holds only files of these names; leave any other untouched."""
    if holds_only(path, names):
        for name in os.listdir(path):
            os.unlink(path / name)
        os.rmdir(path)

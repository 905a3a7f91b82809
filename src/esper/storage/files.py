"""Files on disk: written atomically, read strictly."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from esper.errors import StorageError, message_of


def write_atomic(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Write a file, text as UTF-8; a crash leaves either the old file or the new one.

    The file is on disk when this returns.

    Args:
        path: The file; its folder must exist.
        content: What the file is to hold.
        mode: The permissions of the file.
    """
    with replacing(path, mode=mode) as temporary, temporary.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path, *, mode: int = 0o644) -> Generator[Path]:
    """Yield a temporary file to write, which replaces a file when the context ends well.

    A link in the file's place is replaced too, not followed. A process that is killed leaves its
    temporary file behind; the next one to write the same file removes it.

    Args:
        path: The file; its folder must exist.
        mode: The permissions of the file.
    """
    remove_stale(path)
    handle, temporary = _make_temporary(path)
    try:
        yield temporary
        os.fsync(handle)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
        flush_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(handle)


def remove_stale(path: Path) -> int:
    """Remove the temporary files of a file whose processes are dead; return how many.

    A process locks its temporary file, so one that can be locked belongs to nobody.
    """
    pattern = re.compile(re.escape(f".{path.name}-") + "[a-z0-9_]{8}")
    n_removed = 0
    with suppress(FileNotFoundError), os.scandir(path.parent) as entries:
        found = [entry.path for entry in entries if pattern.fullmatch(entry.name)]
        for place in found:
            with suppress(OSError):  # locked, or another process was faster, or not ours
                handle = os.open(place, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(place)
                    n_removed += 1
                finally:
                    os.close(handle)
    return n_removed


def _make_temporary(path: Path) -> tuple[int, Path]:
    """Create a temporary file for a file, locked while its handle is open."""
    while True:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.lexists(temporary):
            return handle, Path(temporary)
        os.close(handle)  # removed as stale before it was locked


def read_json(path: Path, *, allow_nan: bool = False) -> Any:
    """Return the value in a JSON file.

    Args:
        path: The file.
        allow_nan: Whether ``NaN`` and ``Infinity`` are accepted.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is not valid JSON, or an object has a key twice; the message calls the
            file "it".
    """
    return parse_json(path.read_bytes(), allow_nan=allow_nan)


def parse_json(content: str | bytes, *, allow_nan: bool = False) -> Any:
    """Return the value of a JSON text; see :func:`read_json`."""

    def reject(constant: str) -> Any:
        raise ValueError(f"it holds {constant}, which is not a finite number")

    try:
        return json.loads(
            content, parse_constant=None if allow_nan else reject, object_pairs_hook=_unique_keys
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"it is not valid JSON ({place})") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error
    except ValueError as error:
        if "integer string conversion" not in str(error):
            raise
        raise ValueError("it has a number of thousands of digits") from error


def plain_reason(error: Exception) -> str:
    """Return why values from a file cannot be used, without the words of Python's exceptions."""
    if isinstance(error, KeyError) and error.args:
        return f"it has no {error.args[0]!r}"
    if isinstance(error, (TypeError, LookupError, AttributeError)):
        return "it has a value of the wrong type or length"
    return message_of(error)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has the key {repeated!r} twice")
    return found


CHECKSUM = "checksum"
"""The key of a JSON object's checksum."""


def checksum_of(values: Mapping[str, Any]) -> str:
    """Return a hash of JSON values, which does not depend on their order or on white space."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def with_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a JSON object with their checksum, which :func:`verified` checks."""
    return {**values, CHECKSUM: checksum_of(values)}


def verified(values: Any, *, may_lack: bool = False) -> dict[str, Any]:
    """Return the values of a JSON object without their checksum, if it matches.

    Args:
        values: As read from a file.
        may_lack: Whether there may be no checksum, as in files of older versions.

    Raises:
        ValueError: If the checksum is missing or does not match.
    """
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")
    found = dict(cast("dict[str, Any]", values))
    if CHECKSUM not in found and may_lack:
        return found
    if found.pop(CHECKSUM, None) != checksum_of(found):
        raise ValueError("it does not match its checksum")
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

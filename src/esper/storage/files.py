"""Files on disk: written atomically, read strictly."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

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
        flush(path.parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(handle)


def remove_stale(path: Path, ending: str = "") -> int:
    """Remove the temporary files of a path whose processes are dead; return how many.

    A process locks its temporary file, so one that can be locked belongs to nobody.

    Args:
        path: The file or folder that they were to become.
        ending: How their names end.
    """
    pattern = re.compile(re.escape(f".{path.name}-") + "[a-z0-9_]{8}" + re.escape(ending))
    n_removed = 0
    with suppress(FileNotFoundError), os.scandir(path.parent) as entries:
        found = [entry.path for entry in entries if pattern.fullmatch(entry.name)]
        for place in found:
            with suppress(OSError):  # locked, or another process was faster, or not ours
                handle = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    (shutil.rmtree if os.path.isdir(place) else os.unlink)(place)
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


def read_file(path: Path, *, max_bytes: int | None = None) -> bytes:
    """Return the content of a file without waiting for a pipe or reading a device.

    Args:
        path: The file, or a link to it.
        max_bytes: The largest content to read; None for any.

    Raises:
        OSError: If it cannot be read or is not a file.
        ValueError: If it is larger.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a file", str(path))
        if max_bytes is not None and status.st_size > max_bytes:
            raise ValueError(f"{path.name} has {status.st_size} bytes, more than {max_bytes}")
        return file.read()


def write_hashed(path: Path, text: str) -> None:
    """Write a file for people to read and pass on, with its hash beside it in ``NAME.sha256``.

    The hash comes first, in the form of ``sha256sum``: a crash leaves no file without its hash.
    """
    content = text.encode()
    write_atomic(_hash_file(path), f"{hashlib.sha256(content).hexdigest()}  {path.name}\n")
    write_atomic(path, content)


def read_hashed(path: Path) -> bytes:
    """Return the content of a file that :func:`write_hashed` wrote, or of a copy without its hash.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is not the content that was written.
    """
    content = read_file(path)
    with suppress(FileNotFoundError):
        line = f"{hashlib.sha256(content).hexdigest()}  {path.name}\n"
        if read_file(_hash_file(path)) != line.encode():
            raise ValueError(f"it does not match {_hash_file(path).name}")
    return content


def _hash_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def other_version(what: str, version: object, expected: int) -> str:
    """Return the message about a file of another version."""
    return (
        f"{what} was made by another version of Esper (format {version!r}, not {expected}); use "
        "that version."
    )


def parse_json(content: str | bytes, *, allow_nan: bool = False) -> Any:
    """Return the value of a JSON text.

    Args:
        content: The text, or its bytes.
        allow_nan: Whether ``NaN`` and ``Infinity`` are accepted.

    Raises:
        ValueError: If it is not valid JSON, or an object has a key twice; the message calls the
            text "it".
    """

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
def storage_errors(path: Path) -> Generator[None]:
    """Turn an error of the operating system into a StorageError that says what to do."""
    try:
        yield
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, "")
        advice = _ADVICE.get(code, "check the disk")
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise StorageError(f"{path} cannot be written: {reason}; {advice}.") from error


Pieces = list[memoryview]
"""The content of a file, in consecutive pieces."""


def write_file(path: Path, pieces: Pieces) -> None:
    """Create a file from consecutive pieces and flush it to disk."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for piece in pieces:
            while piece:
                piece = piece[os.write(handle, piece) :]
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def creating_folder(path: Path) -> Generator[Path]:
    """Yield a temporary folder to fill, which gets its name when the context ends well.

    A process that is killed leaves its temporary folder behind; the next one that creates the same
    folder removes it. It is locked, so those of other live processes stay.

    Args:
        path: The folder; it must not exist.

    Raises:
        FileExistsError: If it exists when the temporary folder is complete.
    """
    make_folder(path.parent)
    remove_stale(path, _UNFINISHED)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}-", suffix=_UNFINISHED, dir=path.parent))
    handle = os.open(temporary, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield temporary
        for folder, _, names in os.walk(temporary):
            for name in names:
                os.chmod(os.path.join(folder, name), 0o644)
                flush(Path(folder, name))
        os.fsync(handle)
        if os.path.lexists(path):  # a rename would replace an empty folder
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        os.chmod(temporary, 0o755)
        os.rename(temporary, path)
        flush(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        os.close(handle)


_UNFINISHED = ".unfinished"


def flush(path: Path) -> None:
    """Flush a file, or a folder's list of entries, to disk."""
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
    flush(path.parent)

"""Files on disk: written atomically, read strictly."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from esper.config.memory import available_memory
from esper.config.run import RunConfig
from esper.config.toml import SourcedConfig, read_sourced
from esper.errors import ConfigError, StorageError, message_of, shown

MAX_BYTES = 2**25
"""The largest content that is read of a file, unless it may have another size."""

_RANDOM = "[a-z0-9_]{8}"
"""How the name of a temporary file ends."""


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


def is_temporary(name: str) -> bool:
    """Return whether a name is like those of temporary files, which a killed process leaves."""
    return re.fullmatch(r"\..+-" + _RANDOM, name) is not None


def remove_stale(path: Path, ending: str = "") -> int:
    """Remove the temporary files of a path whose processes are dead; return how many.

    A process locks its temporary file, so one that can be locked belongs to nobody.

    Args:
        path: The file or folder that they were to become.
        ending: How their names end.
    """
    pattern = re.compile(re.escape(f".{path.name}-") + _RANDOM + re.escape(ending))
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


def open_file(path: Path) -> BinaryIO:
    """Open a file, or one that a link leads to, without waiting for a pipe or reading a device.

    Raises:
        OSError: If it cannot be read or is not a file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return open(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a file", str(path))


def read_file(path: Path, *, max_bytes: int | None = MAX_BYTES) -> bytes:
    """Return the content of a file.

    Args:
        path: The file, or a link to it.
        max_bytes: The largest content to read; None for all that fits into the memory.

    Raises:
        OSError: If it cannot be read or is not a file.
        ValueError: If it is larger.
    """
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        limit = available_memory() if max_bytes is None else max_bytes
        if size > limit:
            raise ValueError(f"{path.name} has {size} bytes, more than {limit:.0f}")
        return file.read(size)


def read_toml_file(path: str | os.PathLike[str]) -> RunConfig:
    """Return settings from a TOML file; see :func:`read_sourced_file`."""
    return read_sourced_file(path).config


def read_sourced_file(path: str | os.PathLike[str]) -> SourcedConfig:
    """Return settings from a TOML file, with their sources.

    Raises:
        ConfigError: If the file cannot be read or its settings are invalid.
    """
    place, content = Path(path), b""
    try:
        content = read_file(place)
        text = content.decode("utf-8-sig")
    except FileNotFoundError as error:
        hint = "" if place.suffix else f" A task is named by task={str(place)!r}."
        raise ConfigError(f"no configuration file {str(place)!r}.{hint}") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{str(place)!r} is a folder, not a configuration file.") from error
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"{place} is not UTF-8 text (line {line}); save it with that encoding."
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {str(place)!r}: {reason}.") from error
    return read_sourced(text, source=str(place))


def what_else(path: Path) -> str | None:
    """Return what a path is if it is neither a folder nor a file of one name; None if missing too.

    Writing to anything else would change another place, or wait.
    """
    try:
        found = os.lstat(path)
    except OSError:
        return None
    if stat.S_ISREG(found.st_mode):
        return "another name of a file elsewhere (a hard link)" if found.st_nlink > 1 else None
    if stat.S_ISLNK(found.st_mode):
        return "a link"
    return None if stat.S_ISDIR(found.st_mode) else "not a file"


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
        allow_nan: Whether ``NaN``, ``Infinity`` and numbers beyond a float's range are accepted.

    Raises:
        ValueError: If it is not valid JSON, or an object has a key twice; the message calls the
            text "it".
    """

    def reject(constant: str) -> Any:
        raise ValueError(f"it holds {constant}, which is not a finite number")

    def finite(text: str) -> float:
        return number if math.isfinite(number := float(text)) else reject(text)

    try:
        return json.loads(
            content,
            parse_constant=None if allow_nan else reject,
            parse_float=None if allow_nan else finite,
            object_pairs_hook=_unique_keys,
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


MALFORMED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What is raised by values of a file that are not what Esper writes."""


def plain_reason(error: Exception) -> str:
    """Return why values from a file cannot be used, without the words of Python's exceptions."""
    if isinstance(error, ArithmeticError):
        return "it has a number out of range"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, KeyError) and error.args:
        return f"it has no {error.args[0]!r}"
    if isinstance(error, (TypeError, LookupError, AttributeError)):
        return "it has a value of the wrong type or length"
    return message_of(error)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen = set[str]()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"it has the key {shown(repeated)} twice")
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
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
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

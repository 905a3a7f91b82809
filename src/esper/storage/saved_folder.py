"""Saved folders: files, and a manifest with their sizes and hashes, replaced all at once.

    manifest.json           the kind of folder, and the stored name, size and sha256 of each file
    state.json              a file
    state-2.json            the same file, saved again while state.json was in use

The manifest decides what a folder holds. It is replaced by one rename once all files are on disk,
so a process that is killed at any moment leaves what was there before, or what it saved. A folder
without a manifest holds nothing.

A changed bit anywhere is detected: in a file by its sha256, and in the manifest because it must
read exactly as it would be written and contains nothing else.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from esper.errors import EsperError, OtherVersionError, shown
from esper.storage.files import (
    Pieces,
    is_temporary,
    make_folder,
    other_version,
    parse_json,
    plain_reason,
    read_file,
    remove_stale,
    write_atomic,
    write_file,
)

FORMAT = 3
"""Increases with every change of what a saved folder holds. Other formats cannot be read."""

MANIFEST_FILE = "manifest.json"
MAX_MANIFEST_BYTES = 100_000

READS = 5
"""Attempts to read a folder that another process keeps saving."""


def require_free(
    path: Path, what: str, is_own: Callable[[], bool], error: type[EsperError]
) -> None:
    """Reject a folder with anything but an earlier result of the kind that is to be saved in it.

    Args:
        path: The folder; one that is missing or empty is free.
        what: What is to be saved.
        is_own: Returns whether the folder holds an earlier one, which may be replaced.
        error: What to raise.
    """
    try:
        names = sorted(name for name in os.listdir(path) if not is_temporary(name))
    except OSError:  # it is missing, or writing to it will say what is wrong
        return
    if names and not is_own():
        raise error(
            f"{path} exists and holds no {what} but other files, such as {shown(names[0])}; choose "
            "another folder, or an empty one."
        )


@dataclass(frozen=True)
class StoredFile:
    """What a manifest says about a file."""

    stored: str
    """The name under which it is stored."""
    size: int
    sha256: str


Files = dict[str, StoredFile]


@dataclass(frozen=True)
class FolderKind:
    """A kind of saved folder, such as that of a checkpoint."""

    name: str
    """What it holds, in a word or two."""
    files: tuple[str, ...]
    """The names of its files; no others are ever read, written or removed."""
    error: type[EsperError]
    """Raised if a folder cannot be used."""

    def is_in(self, path: Path) -> bool:
        """Return whether a folder holds this, intact, damaged or of another version."""
        try:
            content = read_file(path / MANIFEST_FILE, max_bytes=MAX_MANIFEST_BYTES)
        except (OSError, ValueError):
            return self._has_files(path)
        return f'"kind": "{self.name}"'.encode() in content

    def require_free(self, path: Path) -> None:
        """Reject a folder with other things, which :meth:`write` would not write to.

        Raises:
            EsperError: As :attr:`error`.
        """
        require_free(path, self.name, lambda: self._may_replace(path), self.error)

    def write(self, path: Path, contents: Mapping[str, bytes | Pieces]) -> None:
        """Save files to a folder in place of those that it holds; they are then on disk.

        Args:
            path: The folder; it is created with its parents if it is missing.
            contents: The content of each of :attr:`files`.

        Raises:
            EsperError: As :attr:`error`, if the folder holds something else.
            OSError: If writing fails; what the folder holds is unchanged.
        """
        self.require_free(path)
        in_use = self._in_use(path)
        was_there = path.exists()
        files: Files = {}
        pieces: dict[str, Pieces] = {}
        for name in self.files:
            content = contents[name]
            pieces[name] = [memoryview(content)] if isinstance(content, bytes) else content
            stored = _second(name) if name in in_use else name
            size = sum(piece.nbytes for piece in pieces[name])
            files[name] = StoredFile(stored, size, _sha256(pieces[name]))
        manifest = _manifest(self.name, files)
        names = {file.stored for file in files.values()}
        try:
            make_folder(path)
            for name, file in files.items():
                (path / file.stored).unlink(missing_ok=True)  # left by a killed process
                write_file(path / file.stored, pieces[name])
            write_atomic(path / MANIFEST_FILE, manifest)
        except BaseException:
            if not _has_manifest(path, manifest):  # otherwise only the last flush failed
                with suppress(OSError):
                    _unlink(path, names)
                    _ = was_there or path.rmdir()
            raise
        with suppress(OSError):
            _unlink(path, self._all_names() - names)

    def read(self, path: Path, names: Iterable[str] | None = None) -> dict[str, bytes]:
        """Return the contents of files by name, verified.

        Args:
            path: The folder.
            names: The files to read; None for all. Of others, only the size is verified.

        Raises:
            EsperError: As :attr:`error`, if there is nothing or it is damaged.
            OtherVersionError: If it was made by another version of Esper.
        """
        chosen = set(self.files if names is None else names)
        manifest, problem = None, Exception()
        for _ in range(READS):
            try:
                again = _read_manifest(path)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise self._missing(path) from error
            except (OSError, ValueError) as error:
                raise self.damaged(path, error) from error
            if again == manifest:
                break
            manifest = again  # read first, or saved meanwhile by another process
            try:
                return self._read_files(path, manifest, chosen)
            except (OSError, ValueError) as error:
                problem = error
        raise self.damaged(path, problem) from problem

    def remove(self, path: Path) -> None:
        """Remove what a folder holds, and the folder unless other files are in it.

        Raises:
            OSError: If it cannot be removed; it is then unchanged, or holds nothing.
        """
        (path / MANIFEST_FILE).unlink(missing_ok=True)
        remove_stale(path / MANIFEST_FILE)
        _unlink(path, self._all_names())
        with suppress(OSError):
            path.rmdir()

    def damaged(self, path: Path, problem: Exception) -> EsperError:
        """Return the error for a folder whose contents are wrong, in one line."""
        reason = plain_reason(problem)
        if isinstance(problem, OSError):
            file = Path(str(problem.filename or path)).name
            reason = f"{file}: {problem.strerror or problem}"
        return self.error(f"{self.name} {path} is damaged: {reason.rstrip('.')}.")

    def _missing(self, path: Path) -> EsperError:
        if not os.path.isdir(path):
            return self.error(f"{self.name} {path} does not exist.")
        if self._has_files(path):
            return self.error(
                f"{self.name} {path} has no {MANIFEST_FILE}; it was made by another version of "
                "Esper, or was not saved completely."
            )
        return self.error(f"there is no {self.name} in {path}: {MANIFEST_FILE} is missing.")

    def _read_files(self, path: Path, manifest: bytes, chosen: set[str]) -> dict[str, bytes]:
        contents: dict[str, bytes] = {}
        for name, file in self._parse(path, manifest).items():
            size = (path / file.stored).stat().st_size
            if size != file.size:
                raise ValueError(f"{file.stored} has {size} bytes instead of {file.size}")
            if name in chosen:
                contents[name] = read_file(path / file.stored, max_bytes=None)
                if _sha256([contents[name]]) != file.sha256:
                    raise ValueError(f"{file.stored} does not match its sha256")
        return contents

    def _parse(self, path: Path, manifest: bytes) -> Files:
        """Return what the content of a manifest says about the files; ValueError if damaged."""
        try:
            values = parse_json(manifest)
        except ValueError as error:
            raise ValueError(f"{MANIFEST_FILE}: {error}") from error
        if not isinstance(values, dict) or "format" not in values:
            raise ValueError(f"{MANIFEST_FILE} has no 'format'")
        found = cast("dict[str, Any]", values)
        if found["format"] != FORMAT:
            raise OtherVersionError(other_version(f"{self.name} {path}", found["format"], FORMAT))
        try:
            if found["kind"] != self.name:
                raise ValueError(f"it is a {found['kind']}, not a {self.name}")
            files = {name: StoredFile(**found["files"][name]) for name in self.files}
        except (KeyError, TypeError) as error:
            raise ValueError(f"{MANIFEST_FILE} is incomplete") from error
        has_own = all(file.stored in (name, _second(name)) for name, file in files.items())
        if not has_own or _manifest(self.name, files) != manifest:
            raise ValueError(f"{MANIFEST_FILE} is not as it was written")
        return files

    def _in_use(self, path: Path) -> set[str]:
        """Return the names of the files that a folder holds; none if its manifest is damaged."""
        try:
            return {file.stored for file in self._parse(path, _read_manifest(path)).values()}
        except (OSError, ValueError):
            return set()

    def _may_replace(self, path: Path) -> bool:
        """Return whether a folder holds this, or what a killed process left of it."""
        try:
            values = parse_json(_read_manifest(path))
        except (OSError, ValueError):  # it is missing or damaged
            return any(os.path.isfile(path / name) for name in self._all_names())
        return isinstance(values, dict) and cast("dict[str, Any]", values).get("kind") == self.name

    def _has_files(self, path: Path) -> bool:
        return any(os.path.isfile(path / name) for name in self.files)

    def _all_names(self) -> set[str]:
        return {*self.files, *map(_second, self.files)}


def _manifest(kind: str, files: Files) -> bytes:
    described = {name: asdict(file) for name, file in files.items()}
    values = {"format": FORMAT, "kind": kind, "files": described}
    return (json.dumps(values, indent=1) + "\n").encode("ascii")


def _read_manifest(path: Path) -> bytes:
    return read_file(path / MANIFEST_FILE, max_bytes=MAX_MANIFEST_BYTES)


def _has_manifest(path: Path, manifest: bytes) -> bool:
    try:
        return _read_manifest(path) == manifest
    except (OSError, ValueError):
        return False


def _second(name: str) -> str:
    """Return the other name under which a file may be stored."""
    stem, dot, end = name.rpartition(".")
    return f"{stem}-2{dot}{end}"


def _sha256(pieces: Iterable[memoryview | bytes]) -> str:
    sha256 = hashlib.sha256()
    for piece in pieces:
        sha256.update(piece)
    return sha256.hexdigest()


def _unlink(path: Path, names: Iterable[str]) -> None:
    for name in names:
        (path / name).unlink(missing_ok=True)

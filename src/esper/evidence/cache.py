"""Caching expensive results, so that an interrupted evaluation can continue."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from esper.storage.files import make_folder, read_file, storage_errors, write_atomic
from esper.training.host_runs import HostRuns

Arrays = dict[str, NDArray[Any]]

_SOURCES = (
    "config",
    "environment",
    "evidence",
    "growth",
    "lifecycle",
    "populations",
    "simic/policy",
    "tamiyo",
    "tasks",
    "training",
)
"""The parts of Esper that determine the results of a host."""


_DIGEST_BYTES = 32
"""The length of the SHA-256 at the end of a file, after the arrays."""


class ResultCache:
    """A folder of arrays, each file named by a digest of everything that determines its contents.

    That includes Esper's source code, so results of another version are never reused.
    """

    def __init__(self, folder: Path | None, key: Mapping[str, Any]) -> None:
        """Use a folder.

        Args:
            folder: The folder; None to cache nothing.
            key: The part of the key that all results share, as plain values.
        """
        self._folder = folder
        self._key = {"program": program_digest(), "torch": torch.__version__, **key}

    def get(self, key: Mapping[str, Any], make: Callable[[], Mapping[str, Any]]) -> Arrays:
        """Return the arrays cached under a key, or make and cache them.

        Raises:
            StorageError: If they cannot be written.
        """
        name = _digest({**self._key, **key})
        path = None if self._folder is None else self._folder / f"{name}.npz"
        if path is not None:
            found = _read(path)
            if found is not None:
                return found
        made = {key: np.asarray(value) for key, value in make().items()}
        if path is not None:
            _write(path, made)
        return made

    def runs(self, key: Mapping[str, Any], make: Callable[[], HostRuns]) -> HostRuns:
        """Return the host runs cached under a key, or make and cache them."""
        return HostRuns(**self.get(key, lambda: make().arrays()))


def _digest(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@lru_cache(maxsize=1)
def program_digest() -> str:
    """Return a digest of the source code that determines the results of a host."""
    total, top = hashlib.sha256(), Path(str(files("esper")))
    for folder in _SOURCES:
        paths = [path for path in (top / folder).rglob("*") if path.suffix in (".py", ".c", ".h")]
        for path in sorted(paths):
            total.update(path.relative_to(top).as_posix().encode())
            total.update(path.read_bytes())
    return total.hexdigest()[:32]


def _read(path: Path) -> Arrays | None:
    """Return the arrays in a file; None if it is missing or damaged."""
    try:
        content = read_file(path, max_bytes=None)
    except FileNotFoundError:
        return None
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        return None
    with np.load(io.BytesIO(body), allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def _write(path: Path, arrays: Arrays) -> None:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # pyright: ignore[reportArgumentType]
    body = content.getvalue()
    with storage_errors(path.parent):
        make_folder(path.parent)
        write_atomic(path, body + hashlib.sha256(body).digest())

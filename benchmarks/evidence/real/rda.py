"""Reads data frames from R's .rda files: XDR serialization, compressed or not.

Only what data frames hold is read: vectors, factors, lists and their attributes.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
from pathlib import Path
from typing import Any

import numpy as np

INTEGER_NA = -(2**31)
NULL, GLOBAL, MISSING_ARGUMENT = 254, 253, 251
SYMBOL, PAIRLIST, CHARACTERS, REFERENCE = 1, 2, 9, 255
LOGICAL, INTEGER, REAL, STRINGS, LIST = 10, 13, 14, 16, 19
HAS_ATTRIBUTES, HAS_TAG = 1 << 9, 1 << 10


class Vector:
    """A vector of R, with its attributes."""

    def __init__(self, values: Any) -> None:
        self.values = values
        self.attributes: dict[str, Any] = {}

    @property
    def levels(self) -> list[str] | None:
        """The levels of a factor; None for other vectors."""
        found = self.attributes.get("levels")
        return None if found is None else found.values


Frame = dict[str, Vector]
"""The columns of a data frame by name."""


def read_frame(path: Path) -> Frame:
    """Return the first object of a file, a data frame or another list with names."""
    content = _decompress(path.read_bytes())
    if content[:7] not in (b"RDX2\nX\n", b"RDX3\nX\n"):
        raise ValueError(f"{path} begins with {content[:7]!r}; it must be a binary .rda file.")
    found = _Reader(content, 7).read_all()
    first = next(iter(found.values()))
    return dict(zip(first.attributes["names"].values, first.values, strict=True))


def _decompress(content: bytes) -> bytes:
    for start, unpack in (
        (b"\x1f\x8b", gzip.decompress),
        (b"BZh", bz2.decompress),
        (b"\xfd7zXZ", lzma.decompress),
    ):
        if content.startswith(start):
            return unpack(content)
    return content


class _Reader:
    def __init__(self, content: bytes, place: int) -> None:
        self._content, self._place = content, place
        self._symbols: list[str] = []

    def read_all(self) -> dict[str, Any]:
        """Return the objects of the file by name."""
        version = self._integer()
        self._take(8)  # the versions of R that wrote it and that can read it
        if version >= 3:
            self._take(self._integer())  # the encoding
        return self._read()

    def _take(self, n: int) -> bytes:
        part = self._content[self._place : self._place + n]
        self._place += n
        return part

    def _integer(self) -> int:
        return struct.unpack(">i", self._take(4))[0]

    def _array(self, kind: str) -> np.ndarray:
        n = self._integer()
        found = np.frombuffer(self._content, kind, n, self._place)
        self._place += found.nbytes
        return found.astype(np.float64)

    def _read(self) -> Any:
        flags = self._integer()
        kind = flags & 0xFF
        if kind in (NULL, GLOBAL, MISSING_ARGUMENT):
            return None
        if kind == REFERENCE:
            return self._symbols[(flags >> 8 or self._integer()) - 1]
        if kind == SYMBOL:
            self._symbols.append(self._read())
            return self._symbols[-1]
        if kind == PAIRLIST:
            return self._pairs(flags)
        if kind == CHARACTERS:
            n = self._integer()
            return None if n < 0 else self._take(n).decode("latin-1")
        vector = Vector(self._values(kind))
        if flags & HAS_ATTRIBUTES:
            vector.attributes = self._read() or {}
        return vector

    def _pairs(self, flags: int) -> dict[str, Any]:
        """Return a pairlist with tags as a dictionary."""
        if flags & HAS_ATTRIBUTES:
            self._read()
        tag = self._read() if flags & HAS_TAG else ""
        value = self._read()
        return {tag: value, **(self._read() or {})}

    def _values(self, kind: int) -> Any:
        if kind in (LOGICAL, INTEGER):
            found = self._array(">i4")
            return np.where(found == INTEGER_NA, np.nan, found)
        if kind == REAL:
            return self._array(">f8")
        if kind in (STRINGS, LIST):
            return [self._read() for _ in range(self._integer())]
        raise ValueError(f"type {kind} of R is not read here; data frames have no such part.")

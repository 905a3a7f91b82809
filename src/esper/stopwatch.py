"""Where the time goes, by part."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType


class Stopwatch:
    """Adds up the seconds that are spent in named parts."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def add(self, part: str, seconds: float) -> None:
        """Count seconds towards a part."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def measure(self, part: str) -> _Lap:
        """Return a context whose duration counts towards a part."""
        return _Lap(self.seconds, part)


class _Lap:
    """One measurement. A class, as a generator would take longer than what some parts do."""

    __slots__ = ("_part", "_seconds", "_start")

    def __init__(self, seconds: dict[str, float], part: str) -> None:
        self._seconds, self._part, self._start = seconds, part, 0.0

    def __enter__(self) -> None:
        self._start = perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        elapsed = perf_counter() - self._start
        self._seconds[self._part] = self._seconds.get(self._part, 0.0) + elapsed

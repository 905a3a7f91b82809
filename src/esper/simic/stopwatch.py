"""Where the time goes, by part."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from time import perf_counter


class Stopwatch:
    """Adds up the seconds that are spent in named parts."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, part: str) -> Generator[None]:
        """Count the time that the context lasts to a part."""
        start = perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + perf_counter() - start

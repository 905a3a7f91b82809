"""The event stream, which reports changes in runs within a second, one line of JSON for each.

All streams share one reading of the runs per second, and nothing is read while there are none. A
stream remembers what it sent last and sends the difference when the client is ready, so nothing is
queued for a slow client.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

POLL_SECONDS = 1.0
"""Time between two readings of the runs."""

HEARTBEAT_SECONDS = 10.0
"""Silence after which a stream sends an empty line."""

MAX_STREAMS = 32
"""Concurrent streams."""

Heads = Mapping[str, Mapping[str, Any]]
"""The reported state of each run, by name."""


class Watch:
    """Follows the runs for all event streams.

    Args:
        read: Reads the state of each run.
    """

    def __init__(self, read: Callable[[], Awaitable[Heads]]) -> None:
        self._read = read
        self._heads: Heads = {}
        self._read_at = -POLL_SECONDS
        self._lock = asyncio.Lock()
        self._closing = asyncio.Event()
        self.n_streams = 0

    def close(self) -> None:
        """End all streams, because the server is shutting down."""
        self._closing.set()

    async def changes(self) -> AsyncGenerator[str]:
        """Yield the lines of one stream: first all runs, then those that change."""
        sent: Heads | None = None
        silent_since = time.monotonic()
        self.n_streams += 1
        try:
            while not self._closing.is_set():
                heads, line = await self._latest(), ""
                if heads != sent:
                    line = json.dumps({"runs": difference(sent or {}, heads)})
                    sent = heads
                if line or time.monotonic() - silent_since >= HEARTBEAT_SECONDS:
                    yield f"{line}\n"
                    silent_since = time.monotonic()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), POLL_SECONDS)
        finally:
            self.n_streams -= 1

    async def _latest(self) -> Heads:
        """Return the state of each run, read less than a second ago."""
        async with self._lock:
            if time.monotonic() - self._read_at >= POLL_SECONDS:
                self._heads = await self._read()
                self._read_at = time.monotonic()
            return self._heads


def difference(before: Heads, after: Heads) -> dict[str, Any]:
    """Return the state of runs that changed, and None for runs that are gone."""
    changed: dict[str, Any] = {
        name: head for name, head in after.items() if before.get(name) != head
    }
    return changed | {name: None for name in before if name not in after}

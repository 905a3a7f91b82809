"""The event stream: who listens hears within a second what has changed in which run.

One task looks at the runs for all who listen, and only while somebody does. A stream keeps what its
reader has been told and sends what differs from how things are when there is room for it, so that
nothing is queued for a reader that is slow or gone.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import anyio
from starlette.types import Receive, Scope, Send

from esper.dashboard.responses import problem

POLL_SECONDS = 1.0
"""Between two looks at the runs."""

HEARTBEAT_SECONDS = 10.0
"""After this much silence a stream says that it is there."""

MOST_STREAMS = 32
"""Streams at once."""

RETRY_MILLISECONDS = 2000
"""After how long a browser tries again when the stream has broken off."""

Heads = Mapping[str, Mapping[str, Any]]
"""What is told of each run, by its name."""


class Watch:
    """Looks at the runs once a second while somebody listens."""

    def __init__(self, read: Callable[[], Awaitable[Heads]]) -> None:
        self._read = read
        self._heads: Heads | None = None
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._n_listeners = 0
        self.closing = asyncio.Event()

    @property
    def heads(self) -> Heads | None:
        """How the runs are; None before the first look."""
        return self._heads

    @property
    def n_listeners(self) -> int:
        """How many listen."""
        return self._n_listeners

    @property
    def is_looking(self) -> bool:
        """Whether the runs are being looked at."""
        return self._task is not None

    @contextmanager
    def listening(self) -> Generator[None]:
        """Have the runs looked at while the context lasts."""
        self._n_listeners += 1
        if self._task is None:
            self._heads = None
            self._task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            self._n_listeners -= 1
            if self._n_listeners == 0:
                self._stop()

    async def wait(self, seconds: float) -> bool:
        """Return True when something has changed, or False after some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
                return True
        return False

    def close(self) -> None:
        """End all streams; the server is about to end."""
        self.closing.set()
        self._stop()

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _look(self) -> None:
        while True:
            try:
                heads = await self._read()
            except Exception:
                traceback.print_exc()  # a defect of ours; the next look may go better
            else:
                if heads != self._heads:
                    self._heads = heads
                    news, self._news = self._news, asyncio.Event()
                    news.set()
            await asyncio.sleep(POLL_SECONDS)


class EventStream:
    """The route of the stream, as an ASGI application."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with events until the reader goes or the server ends."""
        watch = self._watch
        if watch.n_listeners >= MOST_STREAMS:
            full = problem(503, f"{MOST_STREAMS} pages listen already; close one of them.")
            await full(scope, receive, send)
            return
        with watch.listening():
            headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            if scope["method"] != "HEAD":
                async with anyio.create_task_group() as group:
                    for end in (partial(_disconnect, receive), watch.closing.wait):
                        group.start_soon(_cancel_after, end, group.cancel_scope)
                    await self._tell(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tell(self, send: Send) -> None:
        """Send what changes, for ever."""
        told: Heads | None = None
        await _send_text(send, f"retry: {RETRY_MILLISECONDS}\n\n")
        while True:
            heads = self._watch.heads
            if heads is not None and heads != told:
                data = {"runs": difference(told or {}, heads)}
                await _send_text(send, f"event: state\ndata: {json.dumps(data)}\n\n")
                told = heads
            elif not await self._watch.wait(HEARTBEAT_SECONDS):
                await _send_text(send, ": here\n\n")


def difference(before: Heads, after: Heads) -> dict[str, Any]:
    """Return what is told of runs that are not as before; None of those that are gone."""
    changed: dict[str, Any] = {
        name: head for name, head in after.items() if before.get(name) != head
    }
    return changed | {name: None for name in before if name not in after}


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel_after(end: Callable[[], Awaitable[Any]], scope: anyio.CancelScope) -> None:
    await end()
    scope.cancel()


async def _send_text(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})

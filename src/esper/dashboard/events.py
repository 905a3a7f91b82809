"""The event stream, which reports changes in runs within a second.

One task polls the runs for all listeners, and only while there are any. A stream remembers what it
sent last and sends the difference when the client is ready, so nothing is queued for a slow client.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import anyio
from starlette.types import Receive, Scope, Send

from esper.dashboard.error_log import ErrorLog
from esper.dashboard.responses import error_response

POLL_SECONDS = 1.0
"""Time between two polls of the runs."""

HEARTBEAT_SECONDS = 10.0
"""Silence after which a stream sends a heartbeat."""

MOST_STREAMS = 32
"""Concurrent streams."""

RETRY_MILLISECONDS = 2000
"""Time after which a browser reconnects a broken stream."""

Heads = Mapping[str, Mapping[str, Any]]
"""The reported state of each run, by name."""


class Watch:
    """Polls the runs once a second while there are listeners."""

    def __init__(self, read: Callable[[], Awaitable[Heads]], log: ErrorLog) -> None:
        self._read = read
        self._log = log
        self._heads: Heads | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._n_listeners = 0
        self.closing = asyncio.Event()

    @property
    def heads(self) -> Heads | None:
        """The latest state of the runs; None before the first poll."""
        return self._heads

    @property
    def n_listeners(self) -> int:
        """The number of listeners."""
        return self._n_listeners

    @property
    def is_polling(self) -> bool:
        """Whether the runs are being polled."""
        return self._task is not None

    @contextmanager
    def listening(self) -> Generator[None]:
        """Poll the runs within the context."""
        self._n_listeners += 1
        if self._task is None:
            self._heads = None
            self._task = asyncio.create_task(self._poll())
        try:
            yield
        finally:
            self._n_listeners -= 1
            if self._n_listeners == 0:
                self._stop()

    async def wait(self, seconds: float) -> bool:
        """Return True as soon as something changes, or False after some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
                return True
        return False

    def close(self) -> None:
        """End all streams, because the server is shutting down."""
        self.closing.set()
        self._stop()

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _poll(self) -> None:
        while True:
            try:
                heads = await self._read()
            except Exception as error:
                self._log.write_error(error)  # the next poll may succeed
            else:
                if heads != self._heads:
                    self._heads = heads
                    changed, self._changed = self._changed, asyncio.Event()
                    changed.set()
            await asyncio.sleep(POLL_SECONDS)


class EventStream:
    """The route of the stream, as an ASGI application."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client disconnects or the server shuts down."""
        watch = self._watch
        if watch.n_listeners >= MOST_STREAMS:
            full = error_response(503, f"{MOST_STREAMS} pages are open already; close one of them.")
            await full(scope, receive, send)
            return
        with watch.listening():
            headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            if scope["method"] != "HEAD":
                async with anyio.create_task_group() as group:
                    for end in (partial(_disconnect, receive), watch.closing.wait):
                        group.start_soon(_cancel_after, end, group.cancel_scope)
                    await self._send_changes(send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_changes(self, send: Send) -> None:
        """Send changes until cancelled."""
        sent: Heads | None = None
        await _send_text(send, f"retry: {RETRY_MILLISECONDS}\n\n")
        while True:
            heads = self._watch.heads
            if heads is not None and heads != sent:
                data = {"runs": difference(sent or {}, heads)}
                await _send_text(send, f"event: state\ndata: {json.dumps(data)}\n\n")
                sent = heads
            elif not await self._watch.wait(HEARTBEAT_SECONDS):
                await _send_text(send, ": here\n\n")


def difference(before: Heads, after: Heads) -> dict[str, Any]:
    """Return the state of runs that changed, and None for runs that are gone."""
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

"""Connections to the dashboard: how many there may be, and for how long.

Any program on the machine can connect and say nothing, and a process can only open so many files.
So a connection is a stranger's until a request on it has a valid session; strangers are few, the
oldest silent one is dropped for the next, and the connections of the user are counted separately.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from esper.dashboard.error_log import ErrorLog
from esper.dashboard.guard import HEADERS
from esper.dashboard.responses import json_text

SPARE_FILES = 64
"""Open files that are not connections: databases, static files, the event loop."""

MOST_CONNECTIONS = 256

ACCEPTED_AT_ONCE = 8
"""Connections that are accepted before older ones are dropped for them."""


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """How many connections may be open, and for how long."""

    n_connections: int = MOST_CONNECTIONS
    """Connections of everybody; half of them may be strangers'."""

    head_seconds: float = 10.0
    """Time for a request's line and headers, from the connection or the last response on."""

    stall_seconds: float = 30.0
    """Time for a client to read what was sent, before more is sent."""

    @classmethod
    def of_process(cls) -> ConnectionLimits:
        """Return limits that leave this process enough open files."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            return cls()
        return cls(n_connections=max(8, min(MOST_CONNECTIONS, limit - SPARE_FILES)))

    @property
    def n_strangers(self) -> int:
        """Connections without a valid session."""
        return self.n_connections // 2

    @property
    def n_strangers_of_peer(self) -> int:
        """Connections without a valid session from one address."""
        return self.n_strangers * 3 // 4

    @property
    def n_own(self) -> int:
        """Connections with a valid session."""
        return self.n_connections - self.n_strangers


class ConnectionPool:
    """The open connections of strangers and of the user, each oldest first."""

    def __init__(self, limits: ConnectionLimits, log: ErrorLog) -> None:
        self.limits = limits
        self._log = log
        self._strangers: dict[Connection, None] = {}
        self._own: dict[Connection, None] = {}

    def add(self, connection: Connection) -> None:
        """Add a stranger's connection; drop another if there are too many."""
        self._strangers[connection] = None
        peer = connection.peer
        same = [other for other in self._strangers if other.peer == peer]
        if len(same) > self.limits.n_strangers_of_peer:
            self._drop(same, f"{peer} has opened too many without logging in")
        elif len(self._strangers) > self.limits.n_strangers:
            busiest, _ = Counter(other.peer for other in self._strangers).most_common(1)[0]
            same = [other for other in self._strangers if other.peer == busiest]
            self._drop(same, "too many are open without a login")

    def trust(self, connection: Connection) -> None:
        """Move a connection to those of the user; drop another if there are too many."""
        if connection not in self._strangers:
            return
        del self._strangers[connection]
        self._own[connection] = None
        if len(self._own) > self.limits.n_own:
            self._drop([one for one in self._own if one is not connection], "too many are open")

    def discard(self, connection: Connection) -> None:
        """Remove a connection that has been closed."""
        self._strangers.pop(connection, None)
        self._own.pop(connection, None)

    def _drop(self, connections: Iterable[Connection], reason: str) -> None:
        """Close the oldest of some connections, preferably one without a request."""
        dropped = min(connections, key=lambda connection: connection.is_busy)
        self.discard(dropped)
        dropped.transport.abort()
        self._log.write("dropped connection", f"the dashboard drops connections: {reason}.")


class Connection(H11Protocol):
    """A connection that has a time limit whenever it waits for the client."""

    def __init__(self, *args: Any, pool: ConnectionPool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pool = pool
        self._timer: asyncio.TimerHandle | None = None
        # Requests carry it, so that the guard can tell the pool whose it is.
        self.app_state = {**self.app_state, "trust": self._trust}

    @property
    def peer(self) -> str:
        """The client's address."""
        return self.client[0] if self.client else ""

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new connection."""
        super().connection_made(transport)
        self._pool.add(self)
        self._close_in(self._pool.limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a closed connection."""
        self._pool.discard(self)
        self._stop_timer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Parse what was received; a whole head ends the time limit."""
        super().handle_events()
        if self.is_busy:
            self._stop_timer()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._close_in(self._pool.limits.head_seconds)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Wait for a client that reads too slowly."""
        self._close_in(self._pool.limits.stall_seconds)
        super().pause_writing()

    def resume_writing(self) -> None:
        """Go on sending, or wait for the next request."""
        if self.is_busy:
            self._stop_timer()
        else:
            self._close_in(self._pool.limits.head_seconds)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer a malformed request, with the headers of every response, and close."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # the body of a request that has been answered
            return
        if self.is_busy:  # the body of a request whose response has not begun
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = json_text({"error": msg}).encode()
        headers = {
            **HEADERS,
            "Cache-Control": "no-store",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
        }
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        events = (
            h11.Response(status_code=400, headers=pairs, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _trust(self) -> None:
        self._pool.trust(self)

    def _close_in(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

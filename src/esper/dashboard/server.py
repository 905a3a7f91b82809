"""Serving the dashboard until it is stopped by a signal."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import socket
import sys
import threading
import time
import traceback
import webbrowser
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import cast
from urllib.parse import quote

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from esper.dashboard.access import Access, bracketed, spellings
from esper.dashboard.app import Dashboard
from esper.dashboard.runs import RunReader, shown_name
from esper.errors import DashboardError, summarize_error
from esper.training.signals import handling

DEFAULT_PORT = 8765
BACKLOG = 128
"""Connections that may wait to be accepted."""

IDLE_SECONDS = 30.0
"""How long a client may be silent: before its request, between two, or instead of reading."""

MAX_IDLE = 64
"""Silent connections; beyond that, the oldest are closed at once. A browser opens six."""

MAX_ERRORS = 100
"""Different errors that are written."""

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""Headers of every response."""

Tell = Callable[[str], None]
"""Shows a one-line message to the user."""


class Server(uvicorn.Server):
    """A dashboard that is listening; :meth:`run` answers requests.

    Args:
        runs_dir: The folder of runs.
        listener: The listening socket.
        host: The name or address it was asked to listen on.
    """

    def __init__(
        self, runs_dir: str | os.PathLike[str], listener: socket.socket, host: str
    ) -> None:
        address, self.port = listener.getsockname()[:2]
        self.access = Access()
        hosts = allowed_hosts(host, address, self.port)
        self.dashboard = Dashboard(RunReader(runs_dir), self.access, hosts)
        self._listener = listener
        self._login = f"http://{bracketed(link_host(host, address))}:{self.port}/login?token="
        self._idle: dict[H11Protocol, tuple[RequestResponseCycle | None, float]] = {}
        super().__init__(
            uvicorn.Config(
                self.dashboard.app,
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="off",
                # Requests are not logged, because one of them contains the token.
                access_log=False,
                log_config=None,
                log_level="error",
                # Clients can forge forwarded addresses.
                proxy_headers=False,
                server_header=False,
                headers=list(HEADERS.items()),
                backlog=BACKLOG,
                timeout_graceful_shutdown=1,
            )
        )

    @property
    def link(self) -> str:
        """The URL that logs in and opens the dashboard."""
        return f"{self._login}{self.access.token}"

    def link_to(self, run: str) -> str:
        """Return the URL that logs in and opens the page of a run."""
        return f"{self.link}&run={quote(shown_name(run), safe='')}"

    def open_browser(self, tell: Tell) -> None:
        """Open the dashboard in a browser, without waiting for it."""
        link = f"{self._login}{self.access.make_ticket()}"

        def work() -> None:
            if not webbrowser.open(link):
                tell("no browser found; use the link")

        threading.Thread(target=work, daemon=True).start()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer requests until the server is stopped."""
        super().run(sockets or [self._listener])

    def stop(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        """Stop the server, immediately if asked again; usable as a signal handler."""
        self.force_exit = self.should_exit
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to :func:`serving`, which also handles them before the server starts."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Close silent connections, ten times a second."""
        self._close_idle(time.monotonic())
        return await super().on_tick(counter)

    def _close_idle(self, now: float) -> None:
        """Close connections that have been silent for too long, and the oldest of too many.

        uvicorn waits without end for the first request of a connection, so that any program on the
        machine could use up the open files of this process. Its own limit of connections would
        refuse the user too.
        """
        before, self._idle = self._idle, {}
        for connection in self.server_state.connections:
            assert isinstance(connection, H11Protocol), "configured"
            cycle = cast("RequestResponseCycle | None", connection.cycle)  # None at first
            if cycle is None or cycle.response_complete:
                last, since = before.get(connection, (cycle, now))
                self._idle[connection] = (cycle, since if cycle is last else now)
        oldest_first = sorted(self._idle.items(), key=lambda item: item[1][1])
        for number, (connection, (_, since)) in enumerate(oldest_first):
            if number < len(oldest_first) - MAX_IDLE or now - since > IDLE_SECONDS:
                connection.transport.abort()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close all streams and connections, and abort those that stay open."""
        self.dashboard.watch.close()
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # lets the event loop close aborted connections


@contextmanager
def serving(
    runs_dir: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    allow_remote: bool = False,
    tell: Tell,
) -> Generator[Server]:
    """Listen for requests, with signals that stop the server.

    Args:
        runs_dir: The folder of runs.
        host: The name or address to listen on.
        port: The port; None for the default, or any free one if it is taken.
        allow_remote: Whether other machines may connect.
        tell: Shows a message to the user.

    Raises:
        DashboardError: If the address cannot be used.
    """
    with ExitStack() as stack:
        listener = stack.enter_context(open_socket(host, port, allow_remote=allow_remote))
        server = Server(runs_dir, listener, host)
        if port is None and server.port != DEFAULT_PORT:
            tell(f"port {DEFAULT_PORT} is taken; using {server.port}")
        stack.enter_context(handling(server.stop))
        stack.enter_context(ErrorLog().attached())
        yield server


class ErrorLog(logging.Handler):
    """Writes errors of the server to standard error, in one line and once."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._lines: set[str] = set()

    @contextmanager
    def attached(self) -> Generator[None]:
        """Get the errors of the server and of the event loop within the context."""
        loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio")]
        for logger in loggers:
            logger.addHandler(self)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless the same was written before."""
        line = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, h11.LocalProtocolError):
            return  # a malformed request: uvicorn has closed the connection
        if error is not None:
            frames = traceback.extract_tb(error.__traceback__)
            place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
            line = f"{summarize_error(error)}{place}"
        if line not in self._lines and len(self._lines) < MAX_ERRORS:
            self._lines.add(line)
            print(f"esper: internal error of the dashboard: {line}", file=sys.stderr, flush=True)


def open_socket(host: str, port: int | None, *, allow_remote: bool) -> socket.socket:
    """Return a listening socket.

    Args:
        host: The name or address to listen on.
        port: The port; 0 for any free one; None for the default, or any free one if it is taken.
        allow_remote: Whether other machines may connect.

    Raises:
        DashboardError: If the address cannot be used, or other machines could connect without
            ``allow_remote``.
    """
    if port is not None and not 0 <= port <= 65535:
        raise DashboardError(f"--port is {port}; it must be a whole number from 0 to 65535.")
    family, address = _resolve(host)
    if not is_loopback(address) and not allow_remote:
        raise DashboardError(
            f"--host is {host!r}, to which other machines can connect; use 127.0.0.1 and a tunnel "
            "(ssh -L), or add --allow-remote."
        )
    wanted = DEFAULT_PORT if port is None else port
    try:
        is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        opened = socket.create_server(
            (address, wanted), family=family, backlog=BACKLOG, dualstack_ipv6=is_dual
        )
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        if is_taken and port is None:
            return open_socket(host, 0, allow_remote=allow_remote)
        if is_taken:
            raise DashboardError(f"port {port} is taken; choose another with --port.") from error
        reason = os.strerror(error.errno) if error.errno else error
        raise DashboardError(f"cannot listen on port {wanted} of {host}: {reason}.") from error
    # Only for a protocol that is named does asyncio send small answers without waiting 40 ms for
    # an acknowledgement of their headers.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, opened.detach())


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    """Return the address of a host, IPv4 first."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise DashboardError(
            f"--host is {host!r}, which is not an address of this machine; use 127.0.0.1."
        ) from error
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    return found[0][0], str(found[0][4][0]).partition("%")[0]


def is_loopback(address: str) -> bool:
    """Return whether only this machine can connect to an address."""
    return ipaddress.ip_address(address).is_loopback


def allowed_hosts(host: str, address: str, port: int) -> set[str]:
    """Return the values of ``Host`` that requests may have.

    Loopback names are always allowed, because tunnels end there. If other machines may connect, so
    are the given host and the machine's name.
    """
    own = () if is_loopback(address) else (host, socket.gethostname())
    names = (*LOOPBACK_NAMES, *(name for name in own if name not in ("0.0.0.0", "::")))
    return {spelled for name in names for spelled in spellings(name, port)}


def link_host(host: str, address: str) -> str:
    """Return the host in the printed link."""
    if ipaddress.ip_address(address).is_unspecified:
        return socket.gethostname().lower()
    return address if is_loopback(address) else host

"""Serving the dashboard until it is stopped by a signal."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import threading
import webbrowser
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any
from urllib.parse import quote

import uvicorn

from esper.dashboard.access import Access, token_file
from esper.dashboard.app import Dashboard
from esper.dashboard.connections import (
    ACCEPTED_AT_ONCE,
    Connection,
    ConnectionLimits,
    ConnectionPool,
)
from esper.dashboard.error_log import ErrorLog
from esper.dashboard.guard import LOGIN, HostNames, bracketed
from esper.dashboard.runs import RunListing, shown_name
from esper.errors import DashboardError
from esper.training.signals import handling

DEFAULT_PORT = 8765
BACKLOG = 128
"""Connections that may wait to be accepted."""

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


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
    try:
        return _listen(family, address, DEFAULT_PORT if port is None else port)
    except OSError as error:
        if port is None and error.errno == errno.EADDRINUSE:
            return open_socket(host, 0, allow_remote=allow_remote)
        if error.errno == errno.EADDRINUSE:
            raise DashboardError(f"port {port} is taken; choose another with --port.") from error
        shown = DEFAULT_PORT if port is None else port
        reason = error.strerror or error
        raise DashboardError(f"cannot listen on port {shown} of {host}: {reason}.") from error


def is_loopback(address: str) -> bool:
    """Return whether only this machine can connect to an address."""
    return ipaddress.ip_address(address).is_loopback


def host_names(host: str, address: str, port: int) -> HostNames:
    """Return the host names that requests may use.

    Loopback names are always allowed, because tunnels end there. If other machines may connect, so
    are the given host, the machine's name, and the address that was connected to.
    """
    if is_loopback(address):
        return HostNames((*LOOPBACK_NAMES, address), port)
    names = [*LOOPBACK_NAMES, host, socket.gethostname()]
    anywhere = ("0.0.0.0", "::")
    return HostNames([name for name in names if name not in anywhere], port, own_address=True)


def link_host(host: str, address: str) -> str:
    """Return the host in the printed link."""
    if ipaddress.ip_address(address).is_unspecified:
        return socket.gethostname().lower()
    return address if is_loopback(address) else bracketed(host)


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


def _listen(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    # Only for a protocol that is named does asyncio send small answers without waiting 40 ms for
    # an acknowledgement of their headers.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


Tell = Callable[[str], None]
"""Shows a one-line message to the user."""


class Server(uvicorn.Server):
    """A server that closes its event streams and stops at the first signal."""

    def __init__(self, dashboard: Dashboard, limits: ConnectionLimits, log: ErrorLog) -> None:
        self._watch = dashboard.watch
        self._log = log
        protocol: Any = partial(Connection, pool=ConnectionPool(limits, log))
        super().__init__(
            uvicorn.Config(
                dashboard.app,
                loop="asyncio",
                http=protocol,
                ws="none",
                lifespan="off",
                # Requests are not logged, because one of them contains the token.
                access_log=False,
                log_config=None,
                log_level="critical",
                # Clients can forge forwarded addresses.
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=1,
                backlog=ACCEPTED_AT_ONCE,
            )
        )

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to :func:`serving`, which also handles them before the server starts."""
        yield

    def stop(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        """Stop the server, immediately if asked again; usable as a signal handler."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, and write errors of the event loop to the log."""
        asyncio.get_running_loop().set_exception_handler(self._log.handle)
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(BACKLOG)  # the event loop has set it to what it accepts at once

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close all streams and connections, and abort those that stay open."""
        self._watch.close()
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # lets the event loop close aborted connections


class Serving:
    """A dashboard that is listening; :meth:`run` answers requests.

    Args:
        runs_dir: The folder of runs.
        listener: The listening socket.
        host: The name or address it was asked to listen on.
        limits: Limits of connections.
    """

    def __init__(
        self,
        runs_dir: str | os.PathLike[str],
        listener: socket.socket,
        host: str,
        limits: ConnectionLimits,
    ) -> None:
        address, port = listener.getsockname()[:2]
        self.port: int = port
        self.access = Access(port)
        hosts = host_names(host, address, port)
        self._listener = listener
        self._login_url = f"http://{bracketed(link_host(host, address))}:{port}{LOGIN}?token="
        log = ErrorLog()
        self.dashboard = Dashboard(RunListing(runs_dir), self.access, hosts, log)
        self.server = Server(self.dashboard, limits, log)

    @property
    def link(self) -> str:
        """The URL that logs in and opens the dashboard."""
        return f"{self._login_url}{self.access.token}"

    def link_to(self, run: str) -> str:
        """Return the URL that logs in and opens the page of a run."""
        return f"{self.link}&run={quote(shown_name(run), safe='')}"

    def open_browser(self, tell: Tell) -> None:
        """Open the dashboard in a browser, without waiting for it."""
        link = f"{self._login_url}{self.access.make_ticket()}"

        def work() -> None:
            if not webbrowser.open(link):
                tell("no browser found; use the link")

        threading.Thread(target=work, daemon=True).start()

    def run(self) -> None:
        """Answer requests until the server is stopped."""
        self.server.run(sockets=[self._listener])


@contextmanager
def serving(
    runs_dir: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    allow_remote: bool = False,
    limits: ConnectionLimits | None = None,
    tell: Tell,
) -> Generator[Serving]:
    """Listen for requests, with the token in its file and signals that stop the server.

    Args:
        runs_dir: The folder of runs.
        host: The name or address to listen on.
        port: The port; None for the default, or any free one if it is taken.
        allow_remote: Whether other machines may connect.
        limits: Limits of connections; None for those that suit this process.
        tell: Shows a message to the user.

    Raises:
        DashboardError: If the address cannot be used.
        StorageError: If there is no private folder for the token.
    """
    with open_socket(host, port, allow_remote=allow_remote) as listener:
        dashboard = Serving(runs_dir, listener, host, limits or ConnectionLimits.of_process())
        if port is None and dashboard.port != DEFAULT_PORT:
            tell(f"port {DEFAULT_PORT} is taken; using {dashboard.port}")
        with token_file(dashboard.access.token, dashboard.port), handling(dashboard.server.stop):
            yield dashboard

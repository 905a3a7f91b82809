"""Serving the dashboard until a signal ends it."""

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
from types import FrameType

import uvicorn

from esper.dashboard.access import Access, token_file
from esper.dashboard.app import Dashboard
from esper.dashboard.guard import LOGIN, HostNames, bracketed
from esper.dashboard.runs import RunListing
from esper.errors import DashboardError
from esper.training.signals import handling

DEFAULT_PORT = 8765
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


def open_socket(host: str, port: int | None, *, allow_remote: bool) -> socket.socket:
    """Return a socket that listens.

    Args:
        host: The name or address to listen at.
        port: The port, 0 for any that is free; None for the default one, or else any free one.
        allow_remote: Whether other machines may reach it.

    Raises:
        DashboardError: If that cannot be, or other machines could reach it and must not.
    """
    if port is not None and not 0 <= port <= 65535:
        raise DashboardError(f"--port is {port}; it must be a whole number from 0 to 65535.")
    family, address = _resolve(host)
    if not is_loopback(address) and not allow_remote:
        raise DashboardError(
            f"--host is {host!r}, which other machines can reach; use 127.0.0.1 and a tunnel "
            "(ssh -L), or add --allow-remote."
        )
    try:
        return _listen(family, address, DEFAULT_PORT if port is None else port)
    except OSError as error:
        if port is None and error.errno == errno.EADDRINUSE:
            return open_socket(host, 0, allow_remote=allow_remote)
        taken = "is taken; choose another with --port" if error.errno == errno.EADDRINUSE else None
        told = taken or f"cannot be used: {error.strerror or error}"
        shown = DEFAULT_PORT if port is None else port
        raise DashboardError(f"port {shown} of {host} {told}.") from error


def is_loopback(address: str) -> bool:
    """Return whether an address can be reached from this machine alone."""
    return ipaddress.ip_address(address).is_loopback


def host_names(host: str, address: str, port: int) -> HostNames:
    """Return the names that a request may call the dashboard by.

    Those of this machine always, because tunnels end there. One that other machines reach is also
    called by the host it was given, the machine's name, and the address that was connected to.
    """
    if is_loopback(address):
        return HostNames((*LOOPBACK_NAMES, address), port)
    names = [*LOOPBACK_NAMES, host, socket.gethostname()]
    anywhere = ("0.0.0.0", "::")
    return HostNames([name for name in names if name not in anywhere], port, own_address=True)


def link_host(host: str, address: str) -> str:
    """Return the host of the link that is printed."""
    if ipaddress.ip_address(address).is_unspecified:
        return socket.gethostname().lower()
    return address if is_loopback(address) else bracketed(host)


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    """Return the address of a host, IPv4 first."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise DashboardError(
            f"--host is {host!r}, which is no address of this machine; use 127.0.0.1."
        ) from error
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    return found[0][0], str(found[0][4][0]).partition("%")[0]


def _listen(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        made.listen(128)
    except BaseException:
        made.close()
        raise
    return made


Tell = Callable[[str], None]
"""Says something in a line."""


class Server(uvicorn.Server):
    """A server that ends its event streams, and itself, at the first signal."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._watch = dashboard.watch
        super().__init__(
            uvicorn.Config(
                dashboard.app,
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="off",
                # Requests are not logged: one of them holds the token.
                access_log=False,
                log_config=None,
                log_level="critical",
                # Forwarded addresses are whatever the sender likes.
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=1,
            )
        )

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to :func:`serving`, which hears them before the server starts, too."""
        yield

    def end(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        """Have the server end, at once when it is asked again; may be a signal's handler."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all streams, then the rest; who does not read what is sent is left at last."""
        self._watch.close()
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # so that what was broken off is closed


class Serving:
    """A dashboard that listens and is not served yet.

    Args:
        runs_dir: The folder of runs.
        listener: The socket.
        host: The name or address that it was asked to listen at.
    """

    def __init__(
        self, runs_dir: str | os.PathLike[str], listener: socket.socket, host: str
    ) -> None:
        address, port = listener.getsockname()[:2]
        self.port: int = port
        self.access = Access(port)
        hosts = host_names(host, address, port)
        self._listener = listener
        self._place = f"http://{bracketed(link_host(host, address))}:{port}{LOGIN}?token="
        self.dashboard = Dashboard(RunListing(runs_dir), self.access, hosts)
        self.server = Server(self.dashboard)

    @property
    def link(self) -> str:
        """What opens the dashboard in a browser."""
        return f"{self._place}{self.access.token}"

    def open_browser(self, tell: Tell) -> None:
        """Show the dashboard in a browser, without waiting for it."""
        link = f"{self._place}{self.access.make_ticket()}"

        def work() -> None:
            if not webbrowser.open(link):
                tell("there is no browser to open; use the link")

        threading.Thread(target=work, daemon=True).start()

    def run(self) -> None:
        """Answer requests until the server is told to end."""
        self.server.run(sockets=[self._listener])


@contextmanager
def serving(
    runs_dir: str | os.PathLike[str],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    allow_remote: bool = False,
    tell: Tell,
) -> Generator[Serving]:
    """Listen, keep the token in its file, and let signals end it, while the context lasts.

    Args:
        runs_dir: The folder of runs.
        host: The name or address to listen at.
        port: The port; None for the usual one, or another if that is taken.
        allow_remote: Whether other machines may reach it.
        tell: Says what the user should know.

    Raises:
        DashboardError: If it cannot listen there.
        StorageError: If there is no private place for the token.
    """
    with open_socket(host, port, allow_remote=allow_remote) as listener:
        made = Serving(runs_dir, listener, host)
        if port is None and made.port != DEFAULT_PORT:
            tell(f"port {DEFAULT_PORT} is taken; using {made.port}")
        with token_file(made.access.token, made.port), handling(made.server.end):
            yield made

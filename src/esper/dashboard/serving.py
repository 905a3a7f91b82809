"""Serving the dashboard until a signal ends it."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import webbrowser
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from esper.dashboard.access import Access, token_file
from esper.dashboard.addresses import DEFAULT_PORT, host_names, link_host, open_socket
from esper.dashboard.app import Dashboard
from esper.dashboard.guard import LOGIN, bracketed
from esper.dashboard.listing import RunListing
from esper.runs.signals import handling

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

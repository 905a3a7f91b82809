"""Where the dashboard listens: this machine alone, unless that is asked for."""

from __future__ import annotations

import errno
import ipaddress
import socket

from esper.dashboard.guard import HostNames, bracketed
from esper.errors import DashboardError

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

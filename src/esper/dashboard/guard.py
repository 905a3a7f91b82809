"""What every request passes before anything else sees it, and what every answer carries.

A request must name this dashboard in ``Host``, so that a site whose name is made to lead here is
refused. It must not come from a page of another origin. It must only read. It must bring the
cookie, unless it asks for one. This is plain ASGI: answers that go on for hours pass through.
"""

from __future__ import annotations

import ipaddress
import traceback
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from esper.dashboard.access import Access
from esper.dashboard.responses import door, problem

LOGIN: Final = "/login"
STATIC: Final = "/static"

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""What every answer says to the browser."""

METHODS: Final = ("GET", "HEAD")


class HostNames:
    """The names under which this dashboard is reached, each with its port.

    Args:
        names: Host names and addresses.
        port: The port.
        own_address: Whether the address that a connection was made to is one of them. An address
            cannot be made to lead elsewhere, as a name can.
    """

    def __init__(self, names: Iterable[str], port: int, *, own_address: bool = False) -> None:
        self._port = port
        self._own_address = own_address
        self._allowed = {spelled for name in names for spelled in self._with_port(name)}

    def allow(self, host: str, scope: Scope) -> bool:
        """Return whether a request's ``Host`` is one of the names."""
        if host.lower() in self._allowed:
            return True
        server = scope.get("server")
        return self._own_address and bool(server) and host.lower() in self._with_port(server[0])

    def _with_port(self, name: str) -> set[str]:
        """Return how a name and the port are written in a header."""
        bare = bracketed(name.lower())
        return {f"{bare}:{self._port}"} | ({bare} if self._port == 80 else set())


def bracketed(name: str) -> str:
    """Return a host as an address of a page has it: IPv6 in brackets, IPv4 as such."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name
    if isinstance(address, ipaddress.IPv6Address):
        plain = address.ipv4_mapped
        return f"[{address}]" if plain is None else str(plain)
    return str(address)


class Guard:
    """Refuses what may not pass, and gives every answer its headers."""

    def __init__(self, app: ASGIApp, *, access: Access, hosts: HostNames) -> None:
        self.app = app
        self._access = access
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it through."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(message, scope["path"])
            await send(message)

        refusal = self._refusal(scope)
        try:
            await (refusal or self.app)(scope, receive, send_with_headers)
        except Exception:
            # A defect of ours: the traceback names files and lines, never a request's address.
            traceback.print_exc()

    def _refusal(self, scope: Scope) -> Response | None:
        """Return why a request may not pass; None if it may."""
        headers, path = Headers(scope=scope), scope["path"]
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._hosts.allow(hosts[0], scope):
            return problem(403, "this Host is not the dashboard's; use the link that it printed.")
        if not _is_own_origin(headers, hosts[0]) or not _is_own_fetch(headers, path):
            return problem(403, "this request comes from another site.")
        if scope["method"] not in METHODS:
            answer = problem(405, "the dashboard only shows; use GET or HEAD.")
            answer.headers["Allow"] = ", ".join(METHODS)
            return answer
        if path == LOGIN or self._access.has_session("; ".join(headers.getlist("cookie"))):
            # No name has it, and what asks the disk for one that has fails.
            return problem(404, "there is nothing here.") if "\0" in path else None
        if path == "/":
            return door()
        return problem(401, "there is no valid cookie; open the link that esper dashboard printed.")


def _is_own_origin(headers: Headers, host: str) -> bool:
    """Return whether a request that names the page it comes from names one of ours."""
    return all(origin.lower() == f"http://{host.lower()}" for origin in headers.getlist("origin"))


def _is_own_fetch(headers: Headers, path: str) -> bool:
    """Return whether a request is the user's own, or of our page, as far as the browser tells.

    A link to the dashboard may be on any page; nothing else of it may be used by another.
    """
    if all(site in ("same-origin", "none") for site in headers.getlist("sec-fetch-site")):
        return True
    is_link = (
        headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    )
    return is_link and path in ("/", LOGIN)


def _add_headers(message: Message, path: str) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in HEADERS.items():
        headers[name] = value
    is_file = path.startswith(f"{STATIC}/") and message["status"] in (200, 304)
    headers["Cache-Control"] = "no-cache" if is_file else "no-store"

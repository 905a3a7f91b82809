"""Middleware that rejects unauthorized requests and adds security headers to every response.

A request must name this dashboard in ``Host``, which defeats DNS rebinding; it must not come from
another origin; it must be GET or HEAD; and it must have a session, unless it logs in: the cookie,
and for data the key too, or the token. This is plain ASGI, so that event streams pass through.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from esper.dashboard.access import Access
from esper.dashboard.error_log import ErrorLog
from esper.dashboard.responses import error_response, login_page

LOGIN: Final = "/login"
STATIC: Final = "/static"
KEY_HEADER: Final = "x-esper-key"

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
"""Headers of every response."""

METHODS: Final = ("GET", "HEAD")
NOT_FOUND: Final = "not found."
INTERNAL_ERROR: Final = "internal error; see the terminal of the dashboard."
READ_ONLY: Final = "the dashboard is read-only; use GET or HEAD."


class HostNames:
    """The host names that requests may use, with the port.

    Args:
        names: Host names and addresses.
        port: The port.
        own_address: Whether to allow the address that a connection was made to, which, unlike a
            name, cannot be rebound.
    """

    def __init__(self, names: Iterable[str], port: int, *, own_address: bool = False) -> None:
        self._port = port
        self._own_address = own_address
        self._allowed = {spelled for name in names for spelled in self._with_port(name)}

    def allow(self, host: str, scope: Scope) -> bool:
        """Return whether a request's ``Host`` header is allowed."""
        if host.lower() in self._allowed:
            return True
        server = scope.get("server")
        return self._own_address and bool(server) and host.lower() in self._with_port(server[0])

    def _with_port(self, name: str) -> set[str]:
        """Return the spellings of a name and the port in a header."""
        bare = bracketed(name.lower())
        return {f"{bare}:{self._port}"} | ({bare} if self._port == 80 else set())


def bracketed(name: str) -> str:
    """Return a host as it is written in a URL: IPv6 addresses in brackets."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return name
    if isinstance(address, ipaddress.IPv6Address):
        plain = address.ipv4_mapped
        return f"[{address}]" if plain is None else str(plain)
    return str(address)


class Guard:
    """Rejects unauthorized requests, and adds headers to every response."""

    def __init__(self, app: ASGIApp, *, access: Access, hosts: HostNames, log: ErrorLog) -> None:
        self.app = app
        self._access = access
        self._hosts = hosts
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or reject it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        has_begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                _add_headers(message, scope["path"])
            await send(message)

        try:
            await (self._rejection(scope) or self.app)(scope, receive, send_with_headers)
        except Exception as error:
            self._log.write_error(error)  # a bug in Esper
            if not has_begun:
                await error_response(500, INTERNAL_ERROR)(scope, receive, send_with_headers)

    def _rejection(self, scope: Scope) -> Response | None:
        """Return the response that rejects a request, or None if it is allowed."""
        headers, path = Headers(scope=scope), scope["path"]
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._hosts.allow(hosts[0], scope):
            return error_response(403, "wrong Host; use the link that esper dashboard printed.")
        if not _is_own_origin(headers, hosts[0]) or not _is_own_fetch(headers, path):
            return error_response(403, "requests from other sites are not allowed.")
        if scope["method"] not in METHODS:
            response = error_response(405, READ_ONLY)
            response.headers["Allow"] = ", ".join(METHODS)
            return response
        has_session = self._has_session(scope, headers)
        if has_session:
            # The server keeps the connections of the user apart from those of strangers.
            scope.get("state", {}).get("trust", lambda: None)()
        if has_session or path == LOGIN:
            # Opening a file with a null byte in its name would raise.
            return error_response(404, NOT_FOUND) if "\0" in path else None
        if path == "/":
            return login_page()
        return error_response(401, "not logged in; open the link that esper dashboard printed.")

    def _has_session(self, scope: Scope, headers: Headers) -> bool:
        """Return whether a request has the token, or the cookie and, for data, the key."""
        if self._access.accepts_bearer(headers.get("authorization", "")):
            return True
        if not self._access.has_cookie("; ".join(headers.getlist("cookie"))):
            return False
        path = scope["path"]
        if path in ("/", LOGIN) or path == STATIC or path.startswith(f"{STATIC}/"):
            return True
        # Event streams of browsers cannot have headers.
        query = QueryParams(scope.get("query_string", b""))
        return self._access.accepts_key(headers.get(KEY_HEADER, query.get("key", "")))


def _is_own_origin(headers: Headers, host: str) -> bool:
    """Return whether every ``Origin`` of a request is this dashboard."""
    return all(origin.lower() == f"http://{host.lower()}" for origin in headers.getlist("origin"))


def _is_own_fetch(headers: Headers, path: str) -> bool:
    """Return whether a request comes from the user or from this dashboard's page.

    Other sites may link to the dashboard, but not use anything of it.
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

"""Who may see the dashboard: a secret token, and the checks of every request.

The token is created at each start and valid until the process ends. It is in the printed link,
and nowhere else. Opening the link redirects to the page with the token after
the ``#``, which browsers send to nobody; the page keeps it in the storage of its origin and sends
it as a header. There is no cookie, because browsers send cookies to every port of a host.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import re
import secrets
import time
from collections.abc import Callable, Set
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN_BYTES = 32
"""Random bytes in a token or a ticket."""

TICKET_SECONDS = 60.0
"""How long a ticket is valid, which includes starting the browser."""

METHODS = ("GET", "HEAD")
NOTES = re.compile("/api/runs/[^/]+/notes")
"""The only path where PUT is allowed too: it replaces the notes on a run."""
NOT_STORED = {"Cache-Control": "no-store"}
READ_ONLY = "only notes can be changed; use GET or HEAD."
NOT_LOGGED_IN = "not logged in; open the link that esper dashboard printed."


class Access:
    """The secrets of one dashboard process, and the checks against them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self._ticket, self._ticket_end = "", 0.0
        self._clock = clock

    def make_ticket(self) -> str:
        """Return a one-time login token that expires soon, for the command line of a browser.

        Other users of the machine can read command lines, so the token must not be in one.
        """
        self._ticket = secrets.token_urlsafe(TOKEN_BYTES)
        self._ticket_end = self._clock() + TICKET_SECONDS
        return self._ticket

    def accepts(self, given: str) -> bool:
        """Return whether this is the token or the ticket, which is accepted once."""
        if self._ticket and _is_same(given, self._ticket):
            self._ticket = ""
            return self._clock() <= self._ticket_end
        return _is_same(given, self.token)

    def accepts_header(self, authorization: str) -> bool:
        """Return whether an ``Authorization`` header contains the token."""
        scheme, _, token = authorization.partition(" ")
        return scheme.lower() == "bearer" and _is_same(token.strip(), self.token)


def _is_same(given: str, secret: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())


class Guard:
    """Middleware that rejects requests which are not the user's, or change more than notes.

    A request must name this dashboard in ``Host``, which defeats DNS rebinding; it must not come
    from another site; it must be GET or HEAD, or PUT for notes; and it must have the token, unless
    it is for the page and its scripts, which hold no data. This is plain ASGI, so that event
    streams pass through.

    Args:
        app: The application.
        access: The token.
        hosts: The values of ``Host`` that are allowed, in lower case. The address that a connection
            was made to always is: unlike a name, it cannot be rebound.
    """

    def __init__(self, app: ASGIApp, *, access: Access, hosts: Set[str]) -> None:
        self.app = app
        self._access = access
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or reject it."""
        await (self._rejection(scope) or self.app)(scope, receive, send)

    def _rejection(self, scope: Scope) -> Response | None:
        """Return the response that rejects a request, or None if it is allowed."""
        headers, path = Headers(scope=scope), scope["path"]
        host = headers.get("host", "").lower()
        if host not in self._hosts and host not in spellings(*scope["server"]):
            return error_response(403, "wrong Host; use the link that esper dashboard printed.")
        is_own = all(origin.lower() == f"http://{host}" for origin in headers.getlist("origin"))
        if not is_own or not _is_own_fetch(headers, path):
            return error_response(403, "requests from other sites are not allowed.")
        allowed = (*METHODS, "PUT") if NOTES.fullmatch(path) else METHODS
        if scope["method"] not in allowed:
            response = error_response(405, READ_ONLY)
            response.headers["Allow"] = ", ".join(allowed)
            return response
        if path in ("/", "/login") or path.startswith("/static/"):
            return None
        if self._access.accepts_header(headers.get("authorization", "")):
            return None
        return error_response(401, NOT_LOGGED_IN)


def _is_own_fetch(headers: Headers, path: str) -> bool:
    """Return whether a request comes from the user or from this dashboard's page.

    Other sites may link to the dashboard, but not use anything of it.
    """
    if all(site in ("same-origin", "none") for site in headers.getlist("sec-fetch-site")):
        return True
    mode, use = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    return (mode, use) == ("navigate", "document") and path in ("/", "/login")


def spellings(host: str, port: int) -> set[str]:
    """Return how a host and a port may be written in a ``Host`` header."""
    bare = bracketed(host.lower())
    return {f"{bare}:{port}"} | ({bare} if port == 80 else set())


def bracketed(host: str) -> str:
    """Return a host as it is written in a URL: IPv6 addresses in brackets."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return f"[{address}]" if address.ipv4_mapped is None else str(address.ipv4_mapped)


def json_text(value: Any) -> str:
    """Return a value as JSON, in ASCII because file names may contain lone surrogates."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def json_response(text: str, status: int = 200) -> Response:
    """Return JSON text as a response."""
    return Response(text, status, NOT_STORED, "application/json")


def error_response(status: int, message: str) -> Response:
    """Return an error as JSON."""
    return json_response(json_text({"error": message}), status)

"""HTTP responses of the dashboard: JSON, errors, and the pages for logging in."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from starlette.responses import HTMLResponse, Response

_LOGIN_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>Esper</title>
<h1>Esper</h1>
<p>Open the link that <code>esper dashboard</code> printed.</p>
<p>If you followed that link from another page, <a href="/">continue</a>.</p>
</html>
"""
# A browser does not send a strict cookie when it follows a link from another site. The refresh of
# this page, or a click on it, is a request from the same site.
_COOKIE_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={url}">
<link rel="icon" href="data:,">
<title>Esper</title>
<p><a href="{url}">Continue</a></p>
</html>
"""


def json_text(value: Any) -> str:
    """Return a value as JSON, in ASCII because file names may contain lone surrogates."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def json_response(text: str, status: int = 200) -> Response:
    """Return JSON text as a response."""
    return Response(text, status, media_type="application/json")


def error_response(status: int, message: str) -> Response:
    """Return an error as JSON."""
    return json_response(json_text({"error": message}), status)


def login_page() -> Response:
    """Return the page that explains how to log in."""
    return HTMLResponse(_LOGIN_PAGE, 401)


def cookie_page(set_cookie: str, key: str, run: str = "") -> Response:
    """Return a page that sets the cookie, then redirects to the dashboard or to a run's page."""
    page = _COOKIE_PAGE.format(url=_page_url(key, run))
    return HTMLResponse(page, headers={"Set-Cookie": set_cookie})


def cookie_redirect(set_cookie: str, key: str, run: str = "") -> Response:
    """Return a redirect to the dashboard, or to a run's page, that sets the cookie."""
    headers = {"Location": _page_url(key, run), "Set-Cookie": set_cookie}
    return Response(status_code=303, headers=headers)


def _page_url(key: str, run: str) -> str:
    """Return the page's address with the key, which browsers do not send to the server."""
    return f"/#key={key}" + (f"&run={quote(run, safe='')}" if run else "")

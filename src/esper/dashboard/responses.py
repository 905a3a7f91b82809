"""Answers of the dashboard: JSON, one line of what is wrong, and the page for who is not in."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import HTMLResponse, Response

_DOOR = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>Esper</title>
<h1>Esper</h1>
<p>This dashboard opens with the link that <code>esper dashboard</code> printed.</p>
<p>If you have just followed that link from another page, <a href="/">go on</a>.</p>
</html>
"""
# A browser keeps a strict cookie to itself while it follows a link from another site; a click on
# this page, or its own moving on, is of the same site.
_THRESHOLD = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url=/">
<link rel="icon" href="data:,">
<title>Esper</title>
<p><a href="/">Go on</a></p>
</html>
"""


def json_text(value: Any) -> str:
    """Return a value as JSON. Letters beyond ASCII are escaped: a file's name may be half one."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def json_answer(text: str, status: int = 200) -> Response:
    """Return an answer of JSON."""
    return Response(text, status, media_type="application/json")


def problem(status: int, message: str) -> Response:
    """Return what is wrong with a request, in a line."""
    return json_answer(json_text({"error": message}), status)


def door() -> Response:
    """Return the page that tells somebody without a cookie how to come in."""
    return HTMLResponse(_DOOR, 401)


def threshold(set_cookie: str) -> Response:
    """Return a page that hands out the cookie and goes on by itself."""
    return HTMLResponse(_THRESHOLD, headers={"Set-Cookie": set_cookie})


def admission(set_cookie: str) -> Response:
    """Return the way to the page, with the cookie."""
    return Response(status_code=303, headers={"Location": "/", "Set-Cookie": set_cookie})

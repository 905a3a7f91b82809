"""The dashboard's page as one HTML file that needs no network, server or other file.

It contains the page's style sheets and modules, and the data that the page otherwise asks for.
"""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

STATIC_FOLDER = Path(__file__).parent / "static"
MARK = "<!-- esper report -->"
"""The second line of every report, which identifies it."""
ENTRY = "report.js"
"""The module that shows the data, the only one that the live page does not use."""
PREFIX = "esper/"
"""Prefix of module names inside the page."""

_PAGE_FILES = (".js", ".css", ".html")
_IMPORT = re.compile(
    r"""(?P<before>(?:\bfrom|\bimport)\s*\(?\s*)(?P<quote>["'])(?P<name>\.{1,2}/[^"'\n]+)(?P=quote)"""
)
_SOURCE_MAP = re.compile(r"^[ \t]*(?://|/\*)[#@] sourceMappingURL=.*$", re.MULTILINE)
_STYLE_LINK = re.compile(r'<link rel="stylesheet" href="static/([^"]+)"')
_ESCAPES = str.maketrans({letter: f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"})


def make_page(data: Any, title: str, page_files: Mapping[str, str] | None = None) -> str:
    """Return the page with its data, as HTML.

    Args:
        data: What ``report.js`` shows, as JSON values.
        title: Title of the page.
        page_files: The text of each static file by its path, with slashes; by default those of the
            dashboard.
    """
    static = read_page_files() if page_files is None else page_files
    style, values = _style(static), json_for_page(data)
    modules = import_map(find_modules(static, ENTRY))
    nonce = hashlib.sha256(f"{modules}{values}{title}".encode("utf-8", "replace")).hexdigest()
    script = f'<script nonce="{nonce}"'
    page = "\n".join(
        (
            "<!doctype html>",
            MARK,
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, nonce)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style>",
            f'{script} type="importmap">{modules}</script>',
            "</head>",
            "<body>",
            '<div id="app"><noscript>This page needs JavaScript. In a terminal, use '
            "<code>esper show RUN</code>.</noscript></div>",
            f'<script type="application/json" id="report-data">{values}</script>',
            f'{script} type="module">import "{PREFIX}{ENTRY}";</script>',
            "</body>",
            "</html>\n",
        )
    )
    # A folder's name can contain bytes that are not valid UTF-8.
    return page.encode("utf-8", "replace").decode("utf-8")


def read_page_files() -> dict[str, str]:
    """Return the text of each static file of the dashboard by its path, with slashes."""
    return {
        path.relative_to(STATIC_FOLDER).as_posix(): path.read_text("utf-8")
        for path in STATIC_FOLDER.rglob("*")
        if path.suffix in _PAGE_FILES
    }


def _policy(style: str, nonce: str) -> str:
    """Return a content security policy that runs only the scripts of this file and loads nothing.

    Modules are imported by name, which a hash cannot allow, so scripts need a nonce. It is a digest
    of the content, so no text in the report can contain it.
    """
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    allowed = {
        "default-src": "'none'",
        "script-src": f"'nonce-{nonce}'",
        "style-src": f"'sha256-{digest}'",
        "img-src": "data:",
        "connect-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in allowed.items())


def _style(static: Mapping[str, str]) -> str:
    """Return the page's style sheets in their order."""
    names = _STYLE_LINK.findall(static["index.html"])
    text = "\n".join(_SOURCE_MAP.sub("", static[name]) for name in names)
    assert "</" not in text, "a style sheet cannot end its element"
    return text


def find_modules(static: Mapping[str, str], entry: str) -> dict[str, str]:
    """Return an entry module and all modules it imports, by path.

    A module inside a page has no URL that ``./x.js`` could be relative to, so relative imports are
    rewritten to names in the import map.

    Args:
        static: The text of each file by its path, with slashes.
        entry: The path of the entry module.
    """
    found: dict[str, str] = {}
    waiting = [entry]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        folder = posixpath.dirname(path)

        def rename(match: re.Match[str], folder: str = folder) -> str:
            target = posixpath.normpath(posixpath.join(folder, match["name"]))
            waiting.append(target)
            return f"{match['before']}{match['quote']}{PREFIX}{target}{match['quote']}"

        found[path] = _IMPORT.sub(rename, _SOURCE_MAP.sub("", static[path]))
    return dict(sorted(found.items()))


def import_map(modules: Mapping[str, str]) -> str:
    """Return an import map, as JSON, whose URLs contain the modules themselves."""
    # Base64, so that no part of a module can be read as HTML.
    start = "data:text/javascript;charset=utf-8;base64,"
    imports = {
        f"{PREFIX}{path}": start + base64.b64encode(text.encode()).decode()
        for path, text in modules.items()
    }
    return json_for_page({"imports": imports})


def json_for_page(value: Any) -> str:
    """Return JSON for a script element, escaped so that it cannot end the element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)

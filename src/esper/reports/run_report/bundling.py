"""JavaScript modules and styles as parts of one page, so that it opens without a server."""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from esper.errors import ReportError

PREFIX = "esper/"
"""What a module's name begins with inside a page."""

_IMPORT = re.compile(
    r"""(?P<before>(?:\bfrom|\bimport)\s*\(?\s*)(?P<quote>["'])(?P<name>\.{1,2}/[^"'\n]+)(?P=quote)"""
)
_SOURCE_MAP = re.compile(r"^[ \t]*(?://|/\*)[#@] sourceMappingURL=.*$", re.MULTILINE)

_ESCAPES = str.maketrans({letter: f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"})


def find_modules(files: Mapping[str, str], entry: str) -> dict[str, str]:
    """Return the modules that an entry needs, by path, imported names being those of the page.

    A module in a page has no address that ``./x.js`` could be relative to, so that every such name
    becomes one that an import map knows.

    Args:
        files: The text of each file, by its path with slashes.
        entry: The path of the module that a page starts with.

    Raises:
        ReportError: If a module that is imported is not there.
    """
    found: dict[str, str] = {}
    waiting = [entry]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path], needed = _renamed(files, path)
        waiting += needed
    return dict(sorted(found.items()))


def import_map(modules: Mapping[str, str]) -> str:
    """Return the JSON of an import map whose addresses are the modules themselves."""
    imports = {f"{PREFIX}{path}": _data_url(text) for path, text in modules.items()}
    return json_for_page({"imports": imports})


def json_for_page(value: Any) -> str:
    """Return JSON that can stand in a script element: no letter of it can end the element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


def style_for_page(text: str) -> str:
    """Return a style sheet that can stand in a style element.

    Raises:
        ReportError: If it would end the element, or loads something.
    """
    plain = _SOURCE_MAP.sub("", text)
    if "</" in plain or re.search(r"@import|url\(\s*[\"']?(?!data:|#)", plain):
        raise ReportError(
            "a style sheet of the page loads something or has '</' in it; "
            "reinstall Esper, its files were changed."
        )
    return plain


def source_hash(text: str) -> str:
    """Return what a content security policy calls an inline element of this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _renamed(files: Mapping[str, str], path: str) -> tuple[str, list[str]]:
    """Return a module with the page's names for what it imports, and the paths of these."""
    if path not in files:
        raise ReportError(f"the page's module {path} is missing; reinstall Esper.")
    needed: list[str] = []

    def rename(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), found["name"]))
        needed.append(target)
        return f"{found['before']}{found['quote']}{PREFIX}{target}{found['quote']}"

    return _IMPORT.sub(rename, _SOURCE_MAP.sub("", files[path])), needed


def _data_url(text: str) -> str:
    # Base 64: no letter of a module can then be read as part of the page.
    return f"data:text/javascript;charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"

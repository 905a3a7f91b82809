"""The page as one file is self-contained, loads nothing, and escapes names."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from esper.dashboard.offline_page import (
    MARK,
    find_modules,
    import_map,
    json_for_page,
    make_page,
    read_page_files,
)

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
FILES = {
    "index.html": '<link rel="stylesheet" href="static/styles/base.css">'
    '<link rel="stylesheet" href="static/styles/print.css">',
    "styles/base.css": "a { color: red; }",
    "styles/print.css": "b { fill: url(#stripes); }",
    "report.js": 'import "./a.js";',
    "a.js": "export const a = 1;",
}
LOADING = {"src", "srcset", "data", "poster", "action", "formaction", "ping", "background", "style"}


class Page(HTMLParser):
    """The elements of a page with their attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.words: list[str] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open, data))
        if self._open not in ("script", "style"):
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page_of(title: str = EVIL, files: dict[str, str] = FILES) -> tuple[str, Page]:
    text = make_page({"name": title}, title, files)
    return text, Page(text)


def test_markup_in_a_name_is_escaped() -> None:
    _, page = page_of()
    assert ("title", EVIL) in page.texts
    assert not page.all("img")
    assert [one.get("type") for one in page.all("script")] == [
        "importmap",
        "application/json",
        "module",
    ]
    assert not any(name.startswith("on") for _, found in page.elements for name in found)


def test_the_page_contains_its_data_and_loads_nothing() -> None:
    text, page = page_of()
    data = re.search(r'id="report-data">(.*?)</script>', text)
    assert data is not None
    assert json.loads(data[1]) == {"name": EVIL}
    for _, attributes in page.elements:
        assert not LOADING & set(attributes)
        assert "href" not in attributes
    assert text.splitlines()[:2] == ["<!doctype html>", MARK]


def test_the_policy_allows_only_this_style_and_scripts_with_the_nonce() -> None:
    text, page = page_of()
    (policy,) = (
        one["content"] or ""
        for one in page.all("meta")
        if one.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    style = re.search("<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert rules["style-src"] == f"'sha256-{digest}'"
    assert style[1] == f"{FILES['styles/base.css']}\n{FILES['styles/print.css']}"
    nonces = {one.get("nonce") for one in page.all("script")} - {None}
    assert [f"'nonce-{nonce}'" for nonce in nonces] == [rules["script-src"]]
    assert "unsafe" not in policy
    other, _ = page_of("another name")
    assert not any(str(nonce) in other for nonce in nonces)


def test_all_imports_of_the_real_page_are_in_its_import_map() -> None:
    text, _ = page_of(files=read_page_files())
    imports = re.search(r'type="importmap">(.*?)</script>', text)
    assert imports is not None
    modules = read_map(imports[1])
    assert "esper/report.js" in modules
    for source in modules.values():
        wanted = re.findall(r"""(?:\bfrom|\bimport)\s*\(?\s*["']([^"'\n]+)["']""", source)
        assert set(wanted) <= set(modules)
        assert "import.meta" not in source


MODULES = {
    "report.js": 'import { draw } from "./parts/draw.js";\nimport "./side.js";\ndraw();\n',
    "side.js": "export default 1;\n//# sourceMappingURL=side.js.map\n",
    "parts/draw.js": "export { line as draw } from '../lines.js';import*as V from\"../v/v.js\"",
    "lines.js": 'export const line = () => "./parts/draw.js";\n',
    "v/v.js": "export const v = 1;",
    "unused.js": 'import "./missing.js";',
}


def read_map(text: str) -> dict[str, str]:
    """Return the decoded modules of an import map."""
    found = json.loads(text)["imports"]
    return {
        name: base64.b64decode(address.partition("base64,")[2]).decode()
        for name, address in found.items()
    }


def test_modules_are_collected_and_their_imports_rewritten() -> None:
    modules = read_map(import_map(find_modules(MODULES, "report.js")))
    assert set(modules) == {
        "esper/report.js",
        "esper/side.js",
        "esper/parts/draw.js",
        "esper/lines.js",
        "esper/v/v.js",
    }
    assert modules["esper/report.js"] == (
        'import { draw } from "esper/parts/draw.js";\nimport "esper/side.js";\ndraw();\n'
    )
    assert modules["esper/parts/draw.js"] == (
        "export { line as draw } from 'esper/lines.js';import*as V from\"esper/v/v.js\""
    )
    assert "sourceMappingURL" not in modules["esper/side.js"]
    # A string that only looks like a path is not an import.
    assert '"./parts/draw.js"' in modules["esper/lines.js"]


def test_circular_imports_are_collected_once() -> None:
    round_trip = {"a.js": 'import "./b.js";', "b.js": 'import "./a.js";'}
    assert set(find_modules(round_trip, "a.js")) == {"a.js", "b.js"}


@pytest.mark.parametrize(
    "text", ["</script><script>alert(1)</script>", "<!--<script>", "a & b", "\u2028\u2029", "]]>"]
)
def test_json_in_a_page_round_trips_and_cannot_end_its_element(text: str) -> None:
    written = json_for_page({text: [text, 1.5, None]})
    assert json.loads(written) == {text: [text, 1.5, None]}
    assert not re.search("[<>&\u2028\u2029]", written)


def test_the_real_style_sheets_load_no_file() -> None:
    for name, text in read_page_files().items():
        if name.endswith(".css"):
            assert not re.search(r"@import|url\(\s*[\"']?(?!data:|#)|</", text), name

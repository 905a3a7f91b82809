"""The HTML report is self-contained, loads nothing, and escapes names."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from esper.errors import ReportError
from esper.reports.reporting import page_files
from esper.reports.run_report.document import make_document
from esper.reports.run_report.page import (
    MARK,
    find_modules,
    import_map,
    json_for_page,
    source_hash,
    style_for_page,
    to_html,
)
from tests.reports.run_report.samples import add_summary, make_run, report_of, values_of

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
FILES = {
    "index.html": '<link rel="stylesheet" href="static/styles/base.css">',
    "styles/base.css": "a { color: red; }",
    "styles/report.css": "b { color: blue; }",
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_run(tmp_path_factory.mktemp("runs") / "run")
    add_summary(made)
    return made


def page_of(folder: Path, files: dict[str, str] = FILES, name: str = EVIL) -> tuple[str, Page]:
    values = report_of(values_of(folder, name=name))
    text = to_html(make_document(values), values, files)
    return text, Page(text)


def test_markup_in_a_name_is_escaped(folder: Path) -> None:
    _, page = page_of(folder)
    assert ("h1", f"Report on {EVIL}") in page.texts
    assert ("title", f"Report on {EVIL}") in page.texts
    assert not page.all("img")
    assert [one.get("type") for one in page.all("script")] == [
        "importmap",
        "application/json",
        "module",
    ]
    assert not any(name.startswith("on") for _, found in page.elements for name in found)


def test_the_page_contains_the_values_of_the_report(folder: Path) -> None:
    text, page = page_of(folder)
    data = re.search(r'id="report-data">(.*?)</script>', text)
    assert data is not None
    assert json.loads(data[1]) == json.loads(json.dumps(report_of(values_of(folder, name=EVIL))))
    assert page.all("main")[0]["class"] == "report"


def test_all_links_stay_within_the_page(folder: Path) -> None:
    text, page = page_of(folder)
    for _, attributes in page.elements:
        assert not LOADING & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")
    anchors = {attributes.get("id") for _, attributes in page.elements}
    links = [(one["href"] or "").removeprefix("#") for one in page.all("a")]
    assert len(links) == len(set(links)) > 5
    assert set(links) <= anchors
    assert text.splitlines()[:2] == ["<!doctype html>", MARK]


def test_the_policy_allows_only_this_style_and_scripts_with_the_nonce(
    folder: Path,
) -> None:
    text, page = page_of(folder)
    (policy,) = (
        one["content"] or ""
        for one in page.all("meta")
        if one.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == rules["connect-src"] == "'none'"
    style = re.search("<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    assert rules["style-src"] == source_hash(style[1])
    assert "red" in style[1]
    assert style[1].index("red") < style[1].index("blue")
    nonces = {one.get("nonce") for one in page.all("script")} - {None}
    assert [f"'nonce-{nonce}'" for nonce in nonces] == [rules["script-src"]]
    assert "unsafe" not in policy
    other, _ = page_of(folder, name="another name")
    assert not any(str(nonce) in other for nonce in nonces)


def test_a_missing_style_sheet_is_named(folder: Path) -> None:
    files = {name: text for name, text in FILES.items() if name != "styles/base.css"}
    with pytest.raises(ReportError, match=r"styles/base\.css"):
        page_of(folder, files)


def test_every_drawing_has_a_mount(folder: Path) -> None:
    _, page = page_of(folder)
    places = [one for one in page.all("div") if "data-report" in one]
    found = [(one["data-report"], one.get("data-run"), one.get("data-episode")) for one in places]
    assert found == [
        ("differences", "0", None),
        ("charts", "0", None),
        ("episode", "0", "0"),
        ("episode", "0", "1"),
        ("learned", "0", None),
        ("health", "0", None),
    ]


def test_all_imports_of_the_real_page_are_in_its_import_map(
    folder: Path,
) -> None:
    text, _ = page_of(folder, page_files())
    imports = re.search(r'type="importmap">(.*?)</script>', text)
    assert imports is not None
    modules = read_map(imports[1])
    assert "esper/report.js" in modules
    for source in modules.values():
        wanted = re.findall(r"""(?:\bfrom|\bimport)\s*\(?\s*["']([^"'\n]+)["']""", source)
        assert set(wanted) <= set(modules)
        for word in ("fetch(", "XMLHttpRequest", "EventSource", "WebSocket", "import.meta"):
            assert word not in source


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


def test_a_missing_module_is_named() -> None:
    with pytest.raises(ReportError, match=r"missing\.js"):
        find_modules(MODULES, "unused.js")
    with pytest.raises(ReportError, match=r"report\.js"):
        find_modules({}, "report.js")


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


@pytest.mark.parametrize(
    "text",
    ["@import 'x.css';", "a{background:url(http://x)}", "a{background:url( 'x.png')}", "</style>"],
)
def test_a_style_that_loads_a_file_or_ends_its_element_is_rejected(text: str) -> None:
    with pytest.raises(ReportError, match="style sheet"):
        style_for_page(text)
    kept = "a{background:url(data:image/png;base64,AA)} b{fill:url(#stripes)}"
    assert style_for_page(kept) == kept


def test_a_source_hash_is_the_sha256_of_its_utf8() -> None:
    digest = hashlib.sha256("é".encode()).digest()
    assert source_hash("é") == f"'sha256-{base64.b64encode(digest).decode()}'"

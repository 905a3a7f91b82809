"""The page holds all it needs, loads nothing, and shows names as text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from esper.errors import ReportError
from esper.reports.reporting import page_files
from esper.reports.run_report.bundling import source_hash
from esper.reports.run_report.document import make_document
from esper.reports.run_report.page import MARK, to_html
from tests.reports.run_report.samples import add_summary, make_run, report_of, values_of
from tests.reports.run_report.test_bundling import read_map

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
    """The elements of a page with their attributes and text."""

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


def test_an_evil_name_is_shown_as_text_and_makes_no_element(folder: Path) -> None:
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


def test_the_data_of_a_page_are_the_values_of_the_report(folder: Path) -> None:
    text, page = page_of(folder)
    data = re.search(r'id="report-data">(.*?)</script>', text)
    assert data is not None
    assert json.loads(data[1]) == json.loads(json.dumps(report_of(values_of(folder, name=EVIL))))
    assert page.all("main")[0]["class"] == "report"


def test_nothing_but_links_inside_the_page_leads_anywhere(folder: Path) -> None:
    text, page = page_of(folder)
    for _, attributes in page.elements:
        assert not LOADING & set(attributes)
        assert (attributes.get("href") or "#").startswith("#")
    anchors = {attributes.get("id") for _, attributes in page.elements}
    links = [(one["href"] or "").removeprefix("#") for one in page.all("a")]
    assert len(links) == len(set(links)) > 5
    assert set(links) <= anchors
    assert text.splitlines()[:2] == ["<!doctype html>", MARK]


def test_the_policy_lets_run_what_carries_the_digest_and_shows_this_style_alone(
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


def test_a_style_sheet_of_the_page_that_is_missing_is_named(folder: Path) -> None:
    files = {name: text for name, text in FILES.items() if name != "styles/base.css"}
    with pytest.raises(ReportError, match=r"styles/base\.css is missing"):
        page_of(folder, files)


def test_drawings_have_a_place_and_words_instead(folder: Path) -> None:
    _, page = page_of(folder)
    places = [one for one in page.all("div") if "data-report" in one]
    found = [(one["data-report"], one.get("data-run"), one.get("data-episode")) for one in places]
    assert found == [
        ("charts", "0", None),
        ("episode", "0", "0"),
        ("episode", "0", "1"),
        ("learned", "0", None),
        ("health", "0", None),
    ]


def test_every_import_of_the_real_page_is_in_its_map_and_nothing_loads_from_elsewhere(
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

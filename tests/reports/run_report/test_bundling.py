"""Modules and styles become parts of a page: every import is found, nothing can break out."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest

from esper.errors import ReportError
from esper.reports.run_report.bundling import (
    find_modules,
    import_map,
    json_for_page,
    source_hash,
    style_for_page,
)

FILES = {
    "report.js": 'import { draw } from "./parts/draw.js";\nimport "./side.js";\ndraw();\n',
    "side.js": "export default 1;\n//# sourceMappingURL=side.js.map\n",
    "parts/draw.js": "export { line as draw } from '../lines.js';import*as V from\"../v/v.js\"",
    "lines.js": 'export const line = () => "./parts/draw.js";\n',
    "v/v.js": "export const v = 1;",
    "unused.js": 'import "./missing.js";',
}


def read_map(text: str) -> dict[str, str]:
    """Return the modules of an import map, decoded."""
    found = json.loads(text)["imports"]
    return {
        name: base64.b64decode(address.partition("base64,")[2]).decode()
        for name, address in found.items()
    }


def test_what_an_entry_needs_is_found_in_any_folder_and_named_as_the_page_does() -> None:
    modules = read_map(import_map(find_modules(FILES, "report.js")))
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
    # A text that only looks like a path is not an import.
    assert '"./parts/draw.js"' in modules["esper/lines.js"]


def test_a_module_that_is_missing_is_named() -> None:
    with pytest.raises(ReportError, match=r"module missing\.js is missing"):
        find_modules(FILES, "unused.js")
    with pytest.raises(ReportError, match=r"module report\.js is missing"):
        find_modules({}, "report.js")


def test_modules_that_import_each_other_end() -> None:
    round_trip = {"a.js": 'import "./b.js";', "b.js": 'import "./a.js";'}
    assert set(find_modules(round_trip, "a.js")) == {"a.js", "b.js"}


@pytest.mark.parametrize(
    "text", ["</script><script>alert(1)</script>", "<!--<script>", "a & b", "\u2028\u2029", "]]>"]
)
def test_json_in_a_page_reads_back_and_has_no_letter_that_ends_its_element(text: str) -> None:
    written = json_for_page({text: [text, 1.5, None]})
    assert json.loads(written) == {text: [text, 1.5, None]}
    assert not re.search("[<>&\u2028\u2029]", written)


@pytest.mark.parametrize(
    "text",
    ["@import 'x.css';", "a{background:url(http://x)}", "a{background:url( 'x.png')}", "</style>"],
)
def test_a_style_that_loads_something_or_ends_its_element_is_refused(text: str) -> None:
    with pytest.raises(ReportError, match="style sheet"):
        style_for_page(text)
    kept = "a{background:url(data:image/png;base64,AA)} b{fill:url(#stripes)}"
    assert style_for_page(kept) == kept


def test_the_hash_of_a_source_is_that_of_its_letters() -> None:
    digest = hashlib.sha256("é".encode()).digest()
    assert source_hash("é") == f"'sha256-{base64.b64encode(digest).decode()}'"

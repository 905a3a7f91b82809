"""A report as one HTML file that needs no network, server or other file.

Text and tables are plain HTML. Charts and timelines are drawn by the dashboard's JavaScript modules
from the report's values; the file contains both.
"""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from esper.errors import ReportError
from esper.evidence.text import Table
from esper.reports.run_report.blocks import (
    Block,
    Code,
    Document,
    Facts,
    Items,
    Mount,
    Rows,
    Section,
    Text,
)

MARK = "<!-- esper report -->"
"""The second line of every HTML report, which identifies it."""
ENTRY = "report.js"
"""The module that draws into the mounts."""
PREFIX = "esper/"
"""Prefix of module names inside the page."""
START = f'import "{PREFIX}{ENTRY}";'

_IMPORT = re.compile(
    r"""(?P<before>(?:\bfrom|\bimport)\s*\(?\s*)(?P<quote>["'])(?P<name>\.{1,2}/[^"'\n]+)(?P=quote)"""
)
_SOURCE_MAP = re.compile(r"^[ \t]*(?://|/\*)[#@] sourceMappingURL=.*$", re.MULTILINE)

_ESCAPES = str.maketrans({letter: f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"})
_STYLE_LINK = re.compile(r'<link rel="stylesheet" href="(?:\./)?(?:static/)?([^"]+)"')


def to_html(document: Document, values: Any, files: Mapping[str, str]) -> str:
    """Return a report as HTML.

    Args:
        document: The report's text and tables.
        values: The data for the drawings, as JSON values.
        files: The text of each static file of the dashboard by its path, with slashes.

    Raises:
        ReportError: If a static file is missing.
    """
    style, data = _style(files), json_for_page(values)
    modules = import_map(find_modules(files, ENTRY))
    body = "\n".join(_document(document))
    nonce = _digest(modules, data, body)
    script = f'<script nonce="{nonce}"'
    return "\n".join(
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
            f"<title>{escape(document.title)}</title>",
            f"<style>{style}</style>",
            f'{script} type="importmap">{modules}</script>',
            "</head>",
            '<body class="report-page">',
            body,
            f'<script type="application/json" id="report-data">{data}</script>',
            f'{script} type="module">{START}</script>',
            "</body>",
            "</html>\n",
        )
    )


def _policy(style: str, nonce: str) -> str:
    """Return a content security policy that runs only the scripts of this file and loads nothing.

    Modules are imported by name, which a hash cannot allow, so scripts need a nonce. It is a digest
    of the content, so no text in the report can contain it.
    """
    allowed = {
        "default-src": "'none'",
        "script-src": f"'nonce-{nonce}'",
        "style-src": source_hash(style),
        "img-src": "data:",
        "connect-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in allowed.items())


def _digest(*texts: str) -> str:
    total = hashlib.sha256()
    for text in texts:
        total.update(text.encode("utf-8", "replace"))
    return total.hexdigest()


def _style(files: Mapping[str, str]) -> str:
    """Return the dashboard's style sheets in their order, then the one for reports."""
    names = [*_STYLE_LINK.findall(files.get("index.html", "")), "styles/report.css"]
    for name in names:
        if name not in files:
            raise ReportError(f"style sheet {name} is missing; reinstall Esper.")
    return "\n".join(style_for_page(files[name]) for name in dict.fromkeys(names))


def _document(document: Document) -> Iterator[str]:
    yield f'<main class="report">\n<h1>{escape(document.title)}</h1>'
    yield from _blocks(document.blocks)
    links = (_link(section) for section in document.sections)
    yield f'<nav class="report-toc" aria-label="Contents">\n<ul>{"".join(links)}</ul>\n</nav>'
    for section in document.sections:
        yield from _section(section, 2)
    yield "</main>"


def _link(section: Section) -> str:
    return f'<li><a href="#{escape(section.anchor)}">{escape(section.title)}</a></li>'


def _section(section: Section, level: int) -> Iterator[str]:
    yield f'<section class="report-section" id="{escape(section.anchor)}">'
    yield f"<h{level}>{escape(section.title)}</h{level}>"
    yield from _blocks(section.blocks)
    for inner in section.sections:
        yield from _section(inner, min(level + 1, 6))
    yield "</section>"


def _blocks(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        yield from _block(block)


def _block(block: Block) -> Iterator[str]:
    match block:
        case Text():
            kind = ' class="report-verdict"' if block.is_verdict else ""
            yield f"<p{kind}>{escape(block.text)}</p>"
        case Items():
            if block.lines:
                yield f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in block.lines)}</ul>"
        case Rows():
            yield _table(block.table)
        case Facts():
            pairs = (f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in block.pairs)
            yield f'<dl class="report-facts">{"".join(pairs)}</dl>'
        case Code():
            code = f'<pre class="report-code" tabindex="0"><code>{escape(block.text)}</code></pre>'
            yield f"<details><summary>Show</summary>{code}</details>" if block.is_long else code
        case Mount():
            yield f"<div{_mount_attributes(block)}>"
            yield from _blocks(block.instead)
            yield "</div>"


def _mount_attributes(mount: Mount) -> str:
    numbers = {"run": mount.run, "episode": mount.episode, "evaluation": mount.evaluation}
    data = "".join(f' data-{name}="{n}"' for name, n in numbers.items() if n is not None)
    return f' class="report-drawing" data-report="{mount.drawing}"{data}'


def _table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{_alignment(table, n)}>{escape(h)}</th>'
        for n, h in enumerate(table.headers)
    )
    rows = (
        "".join(f"<td{_alignment(table, n)}>{escape(cell)}</td>" for n, cell in enumerate(row))
        for row in table.rows
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        '<div class="report-scroll" tabindex="0"><table class="report-table">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _alignment(table: Table, column: int) -> str:
    return "" if column < table.n_left else ' class="number"'


def find_modules(files: Mapping[str, str], entry: str) -> dict[str, str]:
    """Return an entry module and all modules it imports, by path.

    A module inside a page has no URL that ``./x.js`` could be relative to, so relative imports are
    rewritten to names in the import map.

    Args:
        files: The text of each file by its path, with slashes.
        entry: The path of the entry module.

    Raises:
        ReportError: If an imported module is missing.
    """
    found: dict[str, str] = {}
    waiting = [entry]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path], imported = _rewrite_imports(files, path)
        waiting += imported
    return dict(sorted(found.items()))


def import_map(modules: Mapping[str, str]) -> str:
    """Return an import map, as JSON, whose URLs contain the modules themselves."""
    imports = {f"{PREFIX}{path}": _data_url(text) for path, text in modules.items()}
    return json_for_page({"imports": imports})


def json_for_page(value: Any) -> str:
    """Return JSON for a script element, escaped so that it cannot end the element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_ESCAPES)


def style_for_page(text: str) -> str:
    """Return a style sheet for a style element.

    Raises:
        ReportError: If it contains a closing tag or loads a file.
    """
    plain = _SOURCE_MAP.sub("", text)
    if "</" in plain or re.search(r"@import|url\(\s*[\"']?(?!data:|#)", plain):
        raise ReportError(
            "a style sheet loads a file or contains '</', so it was changed; reinstall Esper."
        )
    return plain


def source_hash(text: str) -> str:
    """Return the source expression of an inline element in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _rewrite_imports(files: Mapping[str, str], path: str) -> tuple[str, list[str]]:
    """Return a module with rewritten imports, and the paths it imports."""
    if path not in files:
        raise ReportError(f"module {path} is missing; reinstall Esper.")
    imported: list[str] = []

    def rename(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), found["name"]))
        imported.append(target)
        return f"{found['before']}{found['quote']}{PREFIX}{target}{found['quote']}"

    return _IMPORT.sub(rename, _SOURCE_MAP.sub("", files[path])), imported


def _data_url(text: str) -> str:
    # Base64, so that no part of a module can be read as HTML.
    return f"data:text/javascript;charset=utf-8;base64,{base64.b64encode(text.encode()).decode()}"

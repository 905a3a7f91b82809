"""A report as one HTML file that needs nothing else: no network, no server, no other file.

Words and tables are plain HTML. The charts and timelines are drawn by the modules of the
dashboard's page, which are inside the file, from the report's values, which are inside as well.
"""

from __future__ import annotations

import hashlib
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
from esper.reports.run_report.bundling import (
    PREFIX,
    find_modules,
    import_map,
    json_for_page,
    source_hash,
    style_for_page,
)

MARK = "<!-- esper report -->"
"""In the second line of every report in HTML, by which it is known."""
ENTRY = "report.js"
"""The module that fills the places where something is drawn."""
START = f'import "{PREFIX}{ENTRY}";'

_STYLE_LINK = re.compile(r'<link rel="stylesheet" href="(?:\./)?(?:static/)?([^"]+)"')


def to_html(document: Document, values: Any, files: Mapping[str, str]) -> str:
    """Return the whole file.

    Args:
        document: Its words and tables.
        values: What its drawings are made from, as JSON can hold it.
        files: The text of each file of the dashboard's page, by its path with slashes.

    Raises:
        ReportError: If a file of the page is missing.
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
    """Return what the browser may do: run and show what is in the file, and load nothing.

    Modules are imported by name, and a hash cannot stand for those; what carries the digest of the
    whole may run. No text in the report can contain the digest of itself.
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
    """Return the style sheets of the page in its order, then the one for reports."""
    names = [*_STYLE_LINK.findall(files.get("index.html", "")), "styles/report.css"]
    for name in names:
        if name not in files:
            raise ReportError(f"the page's style sheet {name} is missing; reinstall Esper.")
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
            is_long = "<details><summary>Show it</summary>"
            yield f"{is_long}{code}</details>" if block.is_long else code
        case Mount():
            yield f"<div{_place(block)}>"
            yield from _blocks(block.instead)
            yield "</div>"


def _place(mount: Mount) -> str:
    """Return the attributes that say what is drawn in an element."""
    numbers = {"run": mount.run, "episode": mount.episode}
    told = "".join(f' data-{name}="{n}"' for name, n in numbers.items() if n is not None)
    return f' class="report-drawing" data-report="{mount.drawing}"{told}'


def _table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{_side(table, n)}>{escape(h)}</th>' for n, h in enumerate(table.headers)
    )
    rows = (
        "".join(f"<td{_side(table, n)}>{escape(cell)}</td>" for n, cell in enumerate(row))
        for row in table.rows
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        '<div class="report-scroll" tabindex="0"><table class="report-table">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _side(table: Table, column: int) -> str:
    return "" if column < table.n_left else ' class="number"'

"""Markdown reports show any text verbatim, according to an independent Markdown reader."""

from __future__ import annotations

import re
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from esper.evidence.text import Table
from esper.reports.run_report.blocks import Code, Document, Facts, Items, Mount, Rows, Section, Text
from esper.reports.run_report.markdown import MARK, escaped, to_markdown

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])

ODD = [
    "</script><script>alert(1)</script>",
    "[click](javascript:alert(1))",
    "![picture](http://x/y.png)",
    "# no heading",
    "- no item",
    "+ no item",
    "1. no item",
    "2) no item",
    "*a* _b_ __c__ **d** ~~e~~ `f` a_b_c widen_large",
    "a | b || c",
    "back\\slash &amp; & <b>",
    "[x]: http://x",
    "---",
    "0.5 [0.1, 0.9]",
]


def shown(markdown: str) -> str:
    """Return the text that a Markdown reader shows."""
    return " ".join(unescape(re.sub(r"<[^>]*>", "", READER.render(markdown))).split())


@pytest.mark.parametrize("text", ODD)
def test_special_characters_are_shown_verbatim_in_every_block(text: str) -> None:
    assert shown(escaped(text)) == text
    document = Document(
        title=text,
        blocks=(
            Text(text=text, is_verdict=True),
            Items(lines=(text,)),
            Rows(table=Table(headers=("a", "b"), rows=((text, text),))),
            Facts(pairs=((text, "fact"),)),
        ),
    )
    rendered = READER.render(to_markdown(document))
    assert shown(to_markdown(document)) == " ".join(
        [text, text, text, "a", "b", text, text, text, "fact"]
    )
    assert "<script" not in rendered
    assert "<img" not in rendered
    assert "<a " not in rendered


@given(st.text(alphabet=st.sampled_from("ab1 _*[]()<>!#|~`\\.-+:&;\"'"), max_size=14))
def test_any_text_is_shown_verbatim(text: str) -> None:
    assert shown(escaped(text)) == " ".join(text.split())


def test_headings_tables_and_code_are_in_order() -> None:
    table = Table(headers=("name", "value"), rows=(("x", "1"),))
    document = Document(
        title="Title",
        sections=(
            Section(
                title="First",
                anchor="first",
                blocks=(Mount(drawing="charts", run=0, instead=(Rows(table=table),)),),
                sections=(
                    Section(
                        title="Inner",
                        anchor="inner",
                        blocks=(Code(text="a\n```\nb", language="sh"), Items(lines=())),
                    ),
                ),
            ),
        ),
    )
    assert to_markdown(document) == (
        f"{MARK}\n\n# Title\n\n## First\n\n| name | value |\n| --- | ---: |\n| x | 1 |\n\n"
        "### Inner\n\n````sh\na\n```\nb\n````\n"
    )

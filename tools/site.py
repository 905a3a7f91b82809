"""Hooks of MkDocs: the site mirrors the repository, so that relative links work in both."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SHOWN = (
    "*.md",
    "LICENSE",
    "docs/**/*.*",
    "benchmarks/**/*.md",
    "benchmarks/**/*.png",
    "benchmarks/**/*.svg",
    "examples/*.*",
    "src/esper/**/*.md",
    "src/esper/tamiyo/controllers/shipped/*.png",
)
"""What the site shows, or offers for download."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of ``docs_dir`` by those of the repository, under the same paths."""
    kept = [file for file in files if file.src_dir != config.docs_dir]
    paths = sorted({path for pattern in SHOWN for path in ROOT.glob(pattern) if path.is_file()})
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        kept.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    return Files(kept)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to a folder to its README; the name of a folder without one is no link."""
    here = (ROOT / page.file.src_uri).parent

    def shown(found: re.Match[str]) -> str:
        name, target = found.groups()
        if not (here / target).is_dir():
            return found[0]
        readme = f"{target.rstrip('/')}/README.md"
        return f"[{name}]({readme})" if (here / readme).exists() else name

    return re.sub(r"\[([^\]]*)\]\(([\w./-]+)\)", shown, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove the roles of docstrings, such as ``:func:``, which Markdown does not know."""
    return re.sub(r":(?:attr|class|data|exc|func|meth|mod):(?=<code)", "", html)

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
BOOSTS = {
    "docs/glossary.md": 4.0,
    "README.md": 2.0,
    "docs/reference/api/": 0.25,
    "docs/reference/": 0.5,
    "benchmarks/": 0.5,
    "CHANGELOG.md": 0.2,
}
"""How much more or less than others a page counts in searches, by the start of its path."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the files of ``docs_dir`` by those of the repository, under the same paths."""
    kept = [file for file in files if file.src_dir != config.docs_dir]
    paths = sorted({path for pattern in SHOWN for path in ROOT.glob(pattern) if path.is_file()})
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        kept.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    return Files(kept)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Weigh the page in searches, and lead links to a folder to its README, if it has one."""
    here = (ROOT / page.file.src_uri).parent
    boosts = [boost for start, boost in BOOSTS.items() if page.file.src_uri.startswith(start)]
    page.meta["search"] = {"boost": boosts[0]} if boosts else {}
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # it would list the page alone

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

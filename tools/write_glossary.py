"""Rewrite the files that are made from Esper's glossary: its page and the dashboard's copy."""

from __future__ import annotations

import json
from pathlib import Path

from esper.config.glossary import GLOSSARY

ROOT = Path(__file__).parents[1]
START = "<!-- The list below is written by tools/write_glossary.py. -->\n\n"
PAGE = ROOT / "docs/glossary.md"
SCRIPT = ROOT / "src/esper/dashboard/static/glossary.js"


def anchor(word: str) -> str:
    """Return the anchor of a word on the page."""
    return word.lower().replace(" ", "-")


def glossary_page() -> str:
    """Return the page as it should be: its own text, then the words."""
    text, _, _ = PAGE.read_text(encoding="utf-8").partition(START)
    words = [f"### {word}\n\n{about}\n" for word, about in GLOSSARY.items()]
    return text + START + "\n".join(words)


def glossary_script() -> str:
    """Return the dashboard's module with the same words."""
    words = json.dumps(GLOSSARY, indent=2)
    about = "/** Esper's words and what they mean; written by tools/write_glossary.py. */"
    return f"{about}\n\nexport const GLOSSARY = {words};\n"


if __name__ == "__main__":
    PAGE.write_text(glossary_page(), encoding="utf-8")
    SCRIPT.write_text(glossary_script(), encoding="utf-8")

"""Write the table of docs/architectures.md again, by growing every architecture; a few minutes."""

from __future__ import annotations

import sys
from pathlib import Path

import transformers

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.slow.architectures import (  # noqa: E402 - found by the line above
    ARCHITECTURES,
    tables,
    try_deepening,
    try_widening,
)

PAGE = ROOT / "docs" / "architectures.md"
START = "<!-- The table below is written by tools/write_architectures.py. -->\n\n"


def main() -> None:
    """Try every architecture and write the page."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    words, _, _ = PAGE.read_text(encoding="utf-8").partition(START)
    found = [(each, try_deepening(each), try_widening(each)) for each in ARCHITECTURES]
    PAGE.write_text(words + START + tables(found), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Write the card of a saved controller from its own file and the files of evaluations.

Run:  python tools/write_model_card.py FOLDER EVALUATION.json ...
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from esper.evidence.files import EvidenceFile
from esper.evidence.model_card import write_card
from esper.tamiyo.controllers.saved import CARD_FILE, read_facts


def main(words: Sequence[str]) -> None:
    """Write ``CARD.md`` into the folder."""
    folder = Path(words[0])
    files = [EvidenceFile.from_text(Path(word).read_text("utf-8"), name=word) for word in words[1:]]
    (folder / CARD_FILE).write_text(write_card(read_facts(folder), files), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python tools/write_model_card.py FOLDER [EVALUATION.json ...]")
    main(sys.argv[1:])

"""Write the card of a saved controller from its own file and the results about it.

Run:  python tools/write_model_card.py FOLDER [FILE.json ...]

A file is one of ``esper evaluate``, or a list of claims (see esper.evidence.model_card).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from esper.evidence.model_card import FIGURE_FILE, read_claims, write_card
from esper.reports.evidence_figures import plot_claims
from esper.tamiyo.controllers.saved import CARD_FILE, SHIPPED_FOLDER, read_facts


def main(words: Sequence[str]) -> None:
    """Write ``CARD.md`` and its figure into the folder."""
    folder = Path(words[0])
    rows = [row for word in words[1:] for row in read_claims(Path(word).read_bytes(), name=word)]
    if rows:
        plot_claims(rows, folder / FIGURE_FILE)
    card = write_card(
        read_facts(folder),
        rows,
        figure=FIGURE_FILE if rows else "",
        is_shipped=folder.resolve() == SHIPPED_FOLDER.resolve(),
    )
    (folder / CARD_FILE).write_text(card, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python tools/write_model_card.py FOLDER [FILE.json ...]")
    main(sys.argv[1:])

"""Write the card of a saved controller from its own file and the results about it.

Run:  python tools/write_model_card.py FOLDER [FILE.json ...]

A file is one of ``esper evaluate``, or a JSON list of claims: objects with ``claim``, ``against``,
``result``, ``interval`` (two numbers), ``verdict`` (yes, no or worse) and optionally ``unit``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, cast, get_args

from esper.dashboard.figures import empty_figure, plain, save_figure
from esper.errors import EvidenceError
from esper.evidence.model_card import (
    FIGURE_FILE,
    ClaimRow,
    Verdict,
    choose_rows,
    claims_of,
    write_card,
)
from esper.results.files import read_evidence_file
from esper.storage.files import parse_json
from esper.tamiyo.controllers.saved import CARD_FILE, SHIPPED_FOLDER, facts_of, load_saved


def read_claims(path: Path) -> list[ClaimRow]:
    """Return the claims of a file: one written by an evaluation, or a JSON list of claims.

    Raises:
        EvidenceError: If the file is neither.
    """
    try:
        values: object = parse_json(path.read_bytes())
    except ValueError as error:
        raise EvidenceError(f"{path} cannot be read: {error}.") from error
    if not isinstance(values, list):
        return [row for evidence in read_evidence_file(path) for row in claims_of(evidence)]
    try:
        return [_read_claim(each) for each in cast("list[Any]", values)]
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(
            f"{path} has a claim that cannot be read ({error}); a claim has claim, against, "
            "result, interval, verdict and optionally unit."
        ) from error


def _read_claim(values: Any) -> ClaimRow:
    result, (low, high) = float(values["result"]), map(float, values["interval"])
    if not all(map(math.isfinite, (result, low, high))):
        raise ValueError(f"its result is {result} [{low}, {high}]; it must be finite")
    if values["verdict"] not in get_args(Verdict):
        raise ValueError(f"its verdict is {values['verdict']!r}")
    numbers: dict[str, Any] = {"result": result, "interval": (low, high)}
    return ClaimRow(**{**values, **numbers})


VERDICT_COLOURS = {"yes": "#009E73", "no": "#7F7F7F", "worse": "#D55E00"}
"""The colour of a claim by whether it was reached."""


def plot_claims(rows: Sequence[ClaimRow], path: Path) -> None:
    """Save a picture of claims, a bar of its interval for each, in the order of a model card.

    Rows in another unit than the first are left out, as they cannot share its axis.

    Raises:
        ConfigError: If matplotlib is not installed.
        EvidenceError: If there are no rows.
        StorageError: If the file cannot be written.
    """
    if not rows:
        raise EvidenceError("no rows; give at least one claim.")
    shown = choose_rows([row for row in rows if row.unit == rows[0].unit])[::-1]
    figure = empty_figure(9.0, 1.1 + 0.34 * len(shown))
    axis: Any = figure.subplots()
    for height, row in enumerate(shown):
        colour = VERDICT_COLOURS[row.verdict]
        axis.plot(row.interval, [height, height], color=colour, linewidth=3, alpha=0.5)
        axis.plot([row.result], [height], "o", color=colour)
    labels = [
        plain(fill(f"{row.claim.replace('`', '')} against {row.against}", 70)) for row in shown
    ]
    axis.set_yticks(range(len(shown)), labels, fontsize="xx-small")
    axis.axvline(0.0, color="0.6", linewidth=0.8)
    axis.grid(alpha=0.25, axis="x")
    text = f"controller minus the other, in {rows[0].unit}, with 95% intervals; "
    text += "green: reached, grey: not shown, orange: worse"
    figure.supxlabel(text, fontsize="small")
    save_figure(figure, path)


def main(words: Sequence[str]) -> None:
    """Write ``CARD.md`` and its figure into the folder."""
    folder = Path(words[0])
    rows = [row for word in words[1:] for row in read_claims(Path(word))]
    if rows:
        plot_claims(rows, folder / FIGURE_FILE)
    card = write_card(
        facts_of(load_saved(folder)),
        rows,
        figure=FIGURE_FILE if rows else "",
        is_shipped=folder.resolve() == SHIPPED_FOLDER.resolve(),
    )
    (folder / CARD_FILE).write_text(card, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python tools/write_model_card.py FOLDER [FILE.json ...]")
    main(sys.argv[1:])

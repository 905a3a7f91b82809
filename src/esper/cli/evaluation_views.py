"""How evaluations are watched and shown: a line of progress, a table, sentences."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from esper.cli.output import print_columns, print_wrapped

if TYPE_CHECKING:
    from esper.evidence.campaign import EvaluationProgress
    from esper.evidence.results import Evidence

SHOWN = (
    "arm",
    "score",
    "difference, points",
    "accuracy",
    "FLOPs",
    "parameters",
    "tuning runs",
)
"""The columns of the table that fit a screen; the others are in the file."""


class ProgressLine:
    """Tells on stderr what is being done: one line that changes on a terminal, else a few lines."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._is_terminal = sys.stderr.isatty()
        self._last, self._width = "", 0

    def __call__(self, progress: EvaluationProgress) -> None:
        """Tell how far it is."""
        if self._quiet:
            return
        where = f"{progress.number} of {progress.n_arms}: {progress.work}"
        if self._is_terminal:
            self._write(f"{where}, {progress.share:.0%}")
        elif where != self._last:
            self._last = where
            with suppress(OSError):
                print(where, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Take the line away."""
        if self._is_terminal and self._width:
            self._write("")

    def _write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(f"\r{text.ljust(self._width)}\r")
            sys.stderr.flush()
        self._width = len(text)


def show_evidence(evidence: Evidence, *, heading: bool = False) -> None:
    """Print the verdict and the table of one price.

    Args:
        evidence: What was found.
        heading: Whether to say at which price.
    """
    from esper.evidence.claims import verdict_sentences

    if heading:
        print(f"At price {evidence.price:g}:\n")
    show_table(evidence)
    first, *others = verdict_sentences(evidence)
    print_wrapped(first)
    print()
    for sentence in others:
        print_wrapped(sentence, first="- ", indent="  ")
    show_facts(evidence)


def show_comparison(evidence: Evidence) -> None:
    """Print the table of controllers and what is shown about the first against the others."""
    show_table(evidence)
    for sentence in comparison_sentences(evidence):
        print_wrapped(sentence, first="- ", indent="  ")
    show_facts(evidence)


def comparison_sentences(evidence: Evidence) -> list[str]:
    """Return what is shown about the first controller against each of the others."""
    from esper.evidence.claims import weigh

    own = evidence.own.label
    return [f"{own[:1].upper()}{own[1:]}: {finding.sentence}." for finding in weigh(evidence)]


def show_table(evidence: Evidence) -> None:
    """Print the columns of the table that fit a screen."""
    from esper.evidence.text import results_table

    table = results_table(evidence)
    columns = [table.headers.index(name) for name in SHOWN]
    rows = [tuple(row[column] for column in columns) for row in (table.headers, *table.rows)]
    print_columns(rows)
    print()


def show_facts(evidence: Evidence) -> None:
    """Print how it was measured, as one paragraph."""
    from esper.evidence.text import facts

    print()
    print_wrapped(" ".join(facts(evidence)[:4]))

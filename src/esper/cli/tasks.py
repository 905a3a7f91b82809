"""The command ``esper tasks``: what hosts can learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from esper.cli.output import print_columns, print_json
from esper.cli.parsing import parse


@dataclass(frozen=True, kw_only=True)
class Options:
    """List what hosts can learn: the tasks that come with Esper, and those of other packages."""

    json: bool = False
    """Print JSON."""


def run(words: Sequence[str]) -> int:
    """Print every task and what it is."""
    options = parse(Options, words, command="tasks")
    from esper.tasks import task_summaries

    summaries = task_summaries()
    if options.json:
        print_json([{"name": name, "summary": about} for name, about in summaries.items()])
    else:
        print_columns(list(summaries.items()))
    return 0

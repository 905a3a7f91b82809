"""The command ``esper resume``: goes on with a run where its last checkpoint is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from esper.cli.parsing import parse
from esper.cli.views import View
from esper.runs.run import Run, load_run


@dataclass(frozen=True, kw_only=True)
class Options:
    """Go on with a run that was interrupted, as if nothing had been."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder, or its name in the runs folder."""

    quiet: bool = False
    """Print nothing but one line at the end."""

    json: bool = False
    """Print a JSON object in each line."""


def run(words: Sequence[str]) -> int:
    """Go on with the run and return the exit code."""
    options = parse(Options, words, command="resume")
    found = load_run(options.run)
    from esper.cli.following import follow

    def work(view: View) -> Run:
        from esper.runs.training import resume

        return resume(found, watchers=[view])

    return follow(work, found.config, quiet=options.quiet, as_json=options.json)

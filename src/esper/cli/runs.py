"""The command ``esper runs``: the runs there are, and how each is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from esper.cli.output import one_line, print_columns, print_json, print_wrapped
from esper.cli.parsing import parse
from esper.cli.run_facts import facts_of
from esper.errors import RunError
from esper.invocation import program
from esper.storage.run_folder import list_folders, runs_folder

_HEADINGS = ("run", "state", "task", "rounds", "return", "score", "left alone")


@dataclass(frozen=True, kw_only=True)
class Options:
    """List runs: what they learn, how far they are, and how they do on held-out hosts."""

    folder: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[FOLDER]")] = None
    """Where to look; by default the folder runs, or what ESPER_RUNS says."""

    json: bool = False
    """Print JSON."""


def run(words: Sequence[str]) -> int:
    """Print a line for each run."""
    options = parse(Options, words, command="runs")
    if options.folder is not None and not Path(options.folder).is_dir():
        raise RunError(f"there is no folder {options.folder!r}; name one that holds runs.")
    folders = list_folders(options.folder)
    if options.json:
        print_json([facts_of(folder) for folder in folders])
    elif not folders:
        place = options.folder or runs_folder()
        print(f"there are no runs in {place}; start one with {program()} train")
    else:
        known = [facts_of(folder) for folder in folders]
        print_columns([_HEADINGS, *map(_row, known)])
        for facts in known:
            if "problem" in facts:
                print_wrapped(
                    f"{facts['run']}: {one_line(facts['problem'])}", indent="  ", first=""
                )
    return 0


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    rounds = "" if facts["rounds"] is None else f"{facts['rounds_done']} of {facts['rounds']}"
    scores = [facts[name] for name in ("ep_rew", "score", "static_score")]
    return (
        facts["run"],
        facts["state"],
        facts["task"] or "",
        rounds,
        *("" if value is None else f"{value:.3f}" for value in scores),
    )

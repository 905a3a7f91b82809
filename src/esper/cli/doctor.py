"""The command ``esper doctor``: whether everything is in place for training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from esper.cli.checkup import Check, Verdict, check_everything
from esper.cli.output import print_columns, print_json
from esper.cli.parsing import parse
from esper.storage.run_folder import runs_folder

_MARKS = {Verdict.GOOD: "ok", Verdict.NOTE: "note", Verdict.WRONG: "WRONG"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Look whether everything is in place: packages, compiled kernels, data, folders.

    The exit code is 0 if training can work, and 1 if something is wrong.
    """

    runs_dir: str | None = None
    """The folder that runs would be put into; by default runs, or what ESPER_RUNS says."""

    json: bool = False
    """Print JSON."""


def run(words: Sequence[str]) -> int:
    """Print what was found; return 1 if something is wrong."""
    options = parse(Options, words, command="doctor")
    checks = check_everything(options.runs_dir or str(runs_folder()))
    wrong = [check for check in checks if check.verdict == Verdict.WRONG]
    if options.json:
        found = [asdict(check) | {"verdict": check.verdict.value} for check in checks]
        print_json({"can_train": not wrong, "checks": found})
    else:
        print_columns([(_MARKS[check.verdict], check.about, check.found) for check in checks])
        print(_conclusion(wrong))
    return 1 if wrong else 0


def _conclusion(wrong: list[Check]) -> str:
    if not wrong:
        return "Training can work."
    return f"Training cannot work: see {', '.join(check.about for check in wrong)} above."

"""``esper study``: train configurations with several seeds and compare them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from esper.cli.arguments import Metavar, Positional, UsageError, parse
from esper.cli.output import command_progress, print_columns, print_json
from esper.cli.verdict import show_evidence
from esper.config.checks import NonNegativeInt, PositiveInt
from esper.storage.run_folder import shell_word
from esper.training.signals import INTERRUPTED


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """Train every configuration of a file with every seed, then compare the configurations.

    Runs that are done are skipped and others resumed, so after any interruption the same command
    continues.
    """

    file: Annotated[str, Positional("FILE")]
    """TOML file of the study."""

    out: Annotated[str | None, Metavar("FOLDER")] = None
    """Folder of the study; by default the file's name in the runs folder."""

    workers: NonNegativeInt | None = None
    """Runs that are trained side by side; 0 for one after another in this process. By default as
    many as there are cores."""

    ray_address: Annotated[str | None, Metavar("ADDRESS")] = None
    """Ray cluster that trains the runs instead; it needs the same folder: host:port, auto for the
    one this machine belongs to, or local."""

    sampler: Literal["optuna"] | None = None
    """Search the settings below [search] with Optuna instead; its storage is optuna.db in the
    folder."""

    trials: PositiveInt = 20
    """Configurations that the sampler tries, each with every seed."""

    allow_code: bool = False
    """Train on a task that the file names by module:function."""

    dry_run: bool = False
    """List the runs and what is done, and exit."""

    quiet: bool = False
    """Print only the conclusion."""

    json: bool = False
    """Print only a JSON object at the end."""


def run_study(args: Sequence[str]) -> int:
    """Train what is left of a study, write its results and print them."""
    options = parse(StudyOptions, args, command="study")
    with command_progress("study", quiet=options.quiet or options.json) as progress:
        progress.show("loading PyTorch", 0.0)
        from esper.dashboard.study import save_study
        from esper.evidence import study as studies

        found = studies.read_study(options.file)
        folder = found.folder if options.out is None else Path(options.out)
        if options.dry_run:
            if not studies.check_study(found, allow_code=options.allow_code):
                print("esper: tasks of your own are checked with --allow-code", file=sys.stderr)
            print_columns([(f"  {one.path.name}", one.state) for one in found.runs(folder)])
            return 0
        if options.sampler is None and found.search:
            raise UsageError(f"{options.file} has [search]; search it with --sampler optuna.")
        try:
            if options.sampler is not None:
                from esper.evidence.search import search_study

                found = search_study(
                    found,
                    folder,
                    n_trials=options.trials,
                    workers=options.workers,
                    ray_address=options.ray_address,
                    allow_code=options.allow_code,
                    on_progress=progress.show,
                )
            else:
                studies.run_study(
                    found,
                    folder,
                    workers=options.workers,
                    ray_address=options.ray_address,
                    allow_code=options.allow_code,
                    on_progress=progress.show,
                )
        except KeyboardInterrupt:
            print("esper: interrupted; the same command continues", file=sys.stderr)
            return INTERRUPTED
        files, evidence = save_study(found, folder)
    assert evidence is not None, "all runs are done"
    if options.json:
        from esper.results.sentences import verdict_json

        rows = studies.study_rows(found, folder)
        print_json(verdict_json(evidence) | {"runs": rows, "files": [str(one) for one in files]})
    elif options.quiet:
        print(f"{folder}: {evidence.sentences[0]}")
    else:
        show_evidence(evidence)
        print("\nWritten:")
        print_columns([(f"  {shell_word(path)}", _FILES.get(path.name, "")) for path in files])
    return 0


_FILES = {
    "study.html": "the page: every run, and the comparison",
    "curves.png": "learning curves over seeds, with intervals",
    "study.csv": "a row for each run",
    "evaluation.json": "results of every configuration on every host",
    "evaluation.md": "the comparison and its table",
    "pareto.png": "score against FLOPs and parameters",
}

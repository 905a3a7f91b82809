"""How evaluations are watched and shown: a line of progress, a table, sentences."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from esper.cli.output import print_columns, print_json, print_wrapped, require_writable
from esper.cli.parsing import UsageError, parse, read_table, require_counts
from esper.config.held_out_hosts import EVALUATION_HOSTS
from esper.errors import RunError
from esper.invocation import program
from esper.storage.run_folder import RunFolder, shell_word
from esper.training.signals import INTERRUPTED

if TYPE_CHECKING:
    from esper.evidence.evaluation import EvaluationProgress
    from esper.evidence.results import Evidence

if TYPE_CHECKING:
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


FOLDER = "evaluation"


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Compare learned controllers with tuned rules, static networks and networks from scratch.

    All of them train the same hosts, which nothing was learned or chosen on. Results are kept as
    they are done: the same command goes on where it was interrupted.
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Runs, saved controllers, or shipped; several count as runs of one method."""

    hosts: int = 512
    """Held-out hosts."""

    tuning_runs: int = 4096
    """Host runs that each tuned arm may spend on its choice."""

    price: tuple[float, ...] = ()
    """Score that the reference run's FLOPs cost, one or several; by default as it was learned."""

    arms: str | None = None
    """Arms to run, with commas between them; by default all."""

    task: str | None = None
    """Another task than was learned on."""

    task_options: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """Options of the task."""

    seed: int = EVALUATION_HOSTS.first
    """The number of the first host, of 100,000 to 199,999; with another one, other hosts."""

    out: str | None = None
    """The folder that results are written to; by default one in the run's folder, or beside several
    runs."""

    quiet: bool = False
    """Print nothing but one line at the end."""

    json: bool = False
    """Print a JSON object in the end, and nothing before."""


def run_evaluate(words: Sequence[str]) -> int:
    """Evaluate, write what was found, and print it."""
    options = parse(EvaluateOptions, words, command="evaluate")
    require_counts(hosts=(options.hosts, 2), tuning_runs=(options.tuning_runs, 2))
    folder = Path(options.out) if options.out is not None else _usual_folder(options)
    require_writable(folder)
    task_options = read_table("task_options", options.task_options)
    progress = ProgressLine(quiet=options.quiet or options.json)
    command = f"esper evaluate {shlex.join(words)}"
    try:
        entries = _evaluate(options, folder, progress, command, task_options)
    except KeyboardInterrupt:
        progress.clear()
        again = f"{program()} evaluate {shlex.join(words)}"
        print(f"esper: interrupted; what is done is kept, go on with: {again}", file=sys.stderr)
        return INTERRUPTED
    progress.clear()
    _show(entries, options, folder)
    return 0


def _evaluate(
    options: EvaluateOptions,
    folder: Path,
    progress: ProgressLine,
    command: str,
    task_options: dict[str, Any],
) -> list[Evidence]:
    if not (options.quiet or options.json):
        print(f"evaluating {', '.join(options.runs)} on {options.hosts} hosts", flush=True)
    import torch

    from esper.evidence.evaluation import evaluate
    from esper.reports.evidence_figures import save_evidence

    torch.set_num_threads(1)  # the hosts are small
    arms = None if options.arms is None else [word for word in options.arms.split(",") if word]
    entries = evaluate(
        list(options.runs),
        n_hosts=options.hosts,
        tuning_runs=options.tuning_runs,
        prices=options.price or None,
        arms=arms,
        task=options.task,
        task_options=task_options,
        seed=options.seed,
        folder=folder / "cache",
        command=command,
        on_progress=progress,
    )
    save_evidence(entries, folder)
    return entries


def _usual_folder(options: EvaluateOptions) -> Path:
    """Return a folder in that of the only run, or beside several."""
    if not options.runs:
        raise UsageError("no run is given; name the folder of one or several.")
    others = [] if options.task is None else [options.task]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join([FOLDER, *others, *options.task_options]))
    paths = [_folder_of(run) for run in options.runs]
    if len(paths) == 1:
        return (paths[0] or Path()) / name
    parents = {None if path is None else path.absolute().parent for path in paths}
    parent = parents.pop() if len(parents) == 1 else None
    return (parent or Path()) / name


def _folder_of(run: str) -> Path | None:
    """Return the folder of a run or of a saved controller; None for what has none of its own."""
    try:
        return RunFolder.find(run).path
    except RunError:
        return Path(run) if Path(run).is_dir() else None


def _show(entries: Sequence[Evidence], options: EvaluateOptions, folder: Path) -> None:
    from esper.evidence.claims import verdict_json, verdict_sentences

    paths = [folder / name for name in _ABOUT if (folder / name).is_file()]

    if options.json:
        files = [str(path) for path in paths]
        print_json({"files": files, "prices": [verdict_json(one) for one in entries]})
        return
    if options.quiet:
        print(f"{folder}: {verdict_sentences(entries[0])[0]}")
        return
    for entry in entries:
        print()
        show_evidence(entry, heading=len(entries) > 1)
    print("\nWritten:")
    print_columns([(f"  {shell_word(path)}", _ABOUT[path.name]) for path in paths])


_ABOUT = {
    "evaluation.json": "every arm, host by host",
    "evaluation.md": "all of this, and what was chosen",
    "pareto.png": "score and accuracy against FLOPs and parameters",
}


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Compare the first of several controllers with each of the others, on the same hosts."""

    controllers: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Two or more: runs, saved controllers, shipped, wait, random, fixed, heuristic; or
    evaluation.json files."""

    hosts: int = 512
    """Held-out hosts."""

    price: float | None = None
    """Score that the reference run's FLOPs cost; by default the task's."""

    task: str | None = None
    """What hosts learn; by default what the learned controllers learned on."""

    task_options: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """Options of the task."""

    seed: int = EVALUATION_HOSTS.first
    """The number of the first host, of 100,000 to 199,999; with another one, other hosts."""

    quiet: bool = False
    """Print nothing but what is shown."""

    json: bool = False
    """Print a JSON object in the end, and nothing before."""


def run_compare(words: Sequence[str]) -> int:
    """Compare, and print what is shown."""
    options = parse(CompareOptions, words, command="compare")
    if len(options.controllers) < 2:
        raise UsageError("compare needs two controllers at least; see esper compare --help.")
    require_counts(hosts=(options.hosts, 2))
    task_options = read_table("task_options", options.task_options)
    progress = ProgressLine(quiet=options.quiet or options.json)
    import torch

    from esper.evidence.claims import verdict_json
    from esper.evidence.compare import compare

    torch.set_num_threads(1)  # the hosts are small
    evidence = compare(
        list(options.controllers),
        n_hosts=options.hosts,
        price=options.price,
        task=options.task,
        task_options=task_options,
        seed=options.seed,
        command=f"esper compare {shlex.join(words)}",
        on_progress=progress,
    )
    progress.clear()
    if options.json:
        print_json(verdict_json(evidence))
    elif options.quiet:
        print("\n".join(comparison_sentences(evidence)))
    else:
        show_comparison(evidence)
    return 0

"""``esper evaluate`` and ``esper compare``: benchmark controllers on held-out hosts."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from esper.cli.arguments import Metavar, Positional, UsageError, parse, require_task
from esper.cli.output import (
    command_progress,
    print_columns,
    print_json,
    print_wrapped,
    require_writable,
)
from esper.cli.verdict import show_evidence
from esper.config.checks import Bounds, NonNegativeFloat, NonNegativeInt
from esper.config.held_out_hosts import EVALUATION_HOSTS
from esper.config.run import OptionValue
from esper.errors import EvidenceError
from esper.invocation import program
from esper.storage.controller_folder import locate_controller
from esper.storage.run_folder import RunFolder, require_own, shell_word
from esper.training.signals import INTERRUPTED

if TYPE_CHECKING:
    from esper.evidence.evaluation import EvaluationProgress, OnProgress
    from esper.progress import ProgressBar
    from esper.results.evidence import Evidence


FOLDER, CACHE = "evaluation", "cache"


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions:
    """What evaluate and compare have in common."""

    hosts: Annotated[int, Bounds(2)] = 512
    """Number of held-out hosts."""

    task: str | None = None
    """Task of the hosts; by default the one the controller was trained on, digits-family for
    learned."""

    task_options: dict[str, OptionValue] = field(default_factory=dict[str, OptionValue])
    """Options of the task."""

    seed: Annotated[int, Bounds(EVALUATION_HOSTS.first, EVALUATION_HOSTS.end - 1)] = (
        EVALUATION_HOSTS.first
    )
    """Number of the first host, 100000 to 199999; another number selects other hosts."""

    allow_code: bool = False
    """Run a task that a run or controller names by module:function."""

    unfinished: bool = False
    """Include runs that are not done or that another PyTorch resumed; every sentence names them."""

    workers: NonNegativeInt | None = None
    """Worker processes; 0 for none. By default as many as there are cores or groups of 128 hosts,
    if the work is large enough to gain."""

    ray_address: Annotated[str | None, Metavar("ADDRESS")] = None
    """Ray cluster to use instead: host:port, auto for the one this machine belongs to, or local."""

    verbose: bool = False
    """Also print each comparison in words, the method, and the tuned settings."""

    quiet: bool = False
    """Print only the conclusion."""

    json: bool = False
    """Print only a JSON object at the end."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(BenchmarkOptions):
    """Benchmark learned controllers against tuned baselines and training from scratch.

    All arms train the same held-out hosts. Results are saved as they complete: after an
    interruption, the same command continues where it stopped.
    """

    runs: Annotated[tuple[str, ...], Positional("RUN")]
    """Runs, saved controllers, or learned; several are treated as seeds of the same method."""

    tuning_runs: Annotated[int, Bounds(2)] = 4096
    """Host runs that each tuned arm may spend on tuning."""

    price: Annotated[tuple[NonNegativeFloat, ...], Metavar("PRICE")] = ()
    """How much score one plain training run costs, one or more; by default the training price."""

    arms: Annotated[str | None, Metavar("ARM,...")] = None
    """Arms to run, separated by commas; by default all."""

    out: Annotated[str | None, Metavar("FOLDER")] = None
    """Folder for the results; by default evaluation in the run's folder, or next to the runs."""


def run_evaluate(args: Sequence[str]) -> int:
    """Evaluate controllers, write the results, and print them."""
    options = parse(EvaluateOptions, args, command="evaluate")
    _require_known(options.runs)
    folder = Path(options.out) if options.out is not None else _default_folder(options)
    require_writable(folder)
    require_task(options.task)
    command = f"esper evaluate {shlex.join(args)}"
    try:
        with command_progress("evaluating", quiet=options.quiet or options.json) as progress:
            entries = _evaluate(options, folder, progress, command)
    except KeyboardInterrupt:
        again = f"{program()} evaluate {shlex.join(args)}"
        print(f"esper: interrupted; finished work is saved, resume with: {again}", file=sys.stderr)
        return INTERRUPTED
    _show(entries, options, folder)
    return 0


def _evaluate(
    options: EvaluateOptions,
    folder: Path,
    progress: ProgressBar,
    command: str,
) -> list[Evidence]:
    progress.show("loading PyTorch", 0.0)
    import torch

    from esper.dashboard.figures import save_evidence
    from esper.evidence.evaluation import evaluate

    torch.set_num_threads(1)  # the hosts are small
    arms = None if options.arms is None else [word for word in options.arms.split(",") if word]
    entries = evaluate(
        list(options.runs),
        n_hosts=options.hosts,
        tuning_runs=options.tuning_runs,
        prices=options.price or None,
        arms=arms,
        task=options.task,
        task_options=options.task_options,
        seed=options.seed,
        allow_code=options.allow_code,
        unfinished=options.unfinished,
        folder=folder / CACHE,
        command=command,
        on_progress=_announced(progress, "evaluating", options.runs, options),
        workers=options.workers,
        ray_address=options.ray_address,
    )
    earlier = _earlier_results(folder)
    save_evidence(entries, folder)
    if earlier and _measured(earlier) != _measured(entries):
        print(
            f"esper: replaced the earlier results in {folder}, those of: {earlier[0].command}",
            file=sys.stderr,
        )
    return entries


def _earlier_results(folder: Path) -> tuple[Evidence, ...]:
    """Return the results that a folder holds; none if they cannot be read."""
    from esper.results.files import read_evidence_file

    try:
        return read_evidence_file(folder / "evaluation.json")
    except (OSError, EvidenceError):
        return ()


def _measured(entries: Sequence[Evidence]) -> list[dict[str, Any]]:
    """Return what was measured, without when and by which command."""
    return [replace(one, created="", command="").to_json() for one in entries]


def _announced(
    progress: ProgressBar,
    work: str,
    controllers: Sequence[str],
    options: BenchmarkOptions,
) -> OnProgress:
    """Return what shows the progress, and first prints which controllers run on which task.

    By then all arguments are known to be valid.
    """
    from esper.training.lookup import controller_label

    is_silent = options.quiet or options.json

    def show(step: EvaluationProgress) -> None:
        nonlocal is_silent
        if not is_silent:
            names = ", ".join(map(controller_label, controllers))
            print_wrapped(f"{work} {names} on {options.hosts} hosts of {step.task}")
            sys.stdout.flush()
            is_silent = True
        progress.show(str(step), step.total)

    return show


def _require_known(controllers: Sequence[str]) -> None:
    """Reject unknown controllers before PyTorch is loaded."""
    for controller in controllers:
        locate_controller(controller)


def _default_folder(options: EvaluateOptions) -> Path:
    """Return a folder in the folder of the only run, or next to several runs."""
    others = [] if options.task is None else [options.task]
    given = [f"{name}={value}" for name, value in options.task_options.items()]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join([FOLDER, *others, *given]))
    paths = [_folder_of(run) for run in options.runs]
    if len(paths) == 1:
        folder = require_own((paths[0] or Path()) / name)
        require_own(folder / CACHE)
        return folder
    parents = {None if path is None else path.absolute().parent for path in paths}
    parent = parents.pop() if len(parents) == 1 else None
    return (parent or Path()) / name


def _folder_of(run: str) -> Path | None:
    """Return the folder of a run or saved controller, or None for a built-in controller.

    Raises:
        RunError: If no controller or run has this name.
    """
    place = locate_controller(run)
    return place.path if isinstance(place, RunFolder) else place


def _show(entries: Sequence[Evidence], options: EvaluateOptions, folder: Path) -> None:
    from esper.results.sentences import verdict_json, verdict_sentences

    paths = [folder / name for name in _RESULT_FILES if (folder / name).is_file()]
    if options.json:
        files = [str(path) for path in paths]
        print_json({"files": files, "prices": [verdict_json(one) for one in entries]})
        return
    if options.quiet:
        for entry in entries:
            at = f" at price {entry.price:g}" if len(entries) > 1 else ""
            print(f"{folder}{at}: {verdict_sentences(entry)[0]}")
        return
    for entry in entries:
        print()
        show_evidence(entry, heading=len(entries) > 1, verbose=options.verbose)
    print("\nWritten:")
    print_columns([(f"  {shell_word(path)}", _RESULT_FILES[path.name]) for path in paths])
    places = [(run, _folder_of(run)) for run in options.runs]
    runs = [run for run, place in places if place is not None and RunFolder(place).holds_run]
    if runs:
        words = " ".join(map(shell_word, runs))
        if options.out is not None:
            words += f" --evaluation {shell_word(folder / 'evaluation.json')}"
        print("\nNext:")
        print_columns(
            [
                (f"  {program()} report {words}", "report on the run with these results"),
                (f"  {program()} dashboard --open", "look at it in a browser"),
            ]
        )


_RESULT_FILES = {
    "evaluation.json": "results of every arm on every host",
    "evaluation.md": "this report with the tuned settings",
    "pareto.png": "score against FLOPs and parameters",
}


@dataclass(frozen=True, kw_only=True)
class CompareOptions(BenchmarkOptions):
    """Compare the first controller with each of the others on the same hosts."""

    controllers: Annotated[tuple[str, ...], Positional("CONTROLLER")]
    """Two or more: runs, saved controllers, learned, no-growth, random, fixed, heuristic,
    progressive."""

    price: Annotated[NonNegativeFloat | None, Metavar("PRICE")] = None
    """How much score one plain training run costs; by default the task's."""


def run_compare(args: Sequence[str]) -> int:
    """Compare controllers and print the results."""
    options = parse(CompareOptions, args, command="compare")
    if len(options.controllers) < 2:
        raise UsageError("compare needs at least two controllers. See esper compare --help.")
    _require_known(options.controllers)
    require_task(options.task)
    with command_progress("comparing", quiet=options.quiet or options.json) as progress:
        progress.show("loading PyTorch", 0.0)
        import torch

        from esper.evidence.compare import compare

        torch.set_num_threads(1)  # the hosts are small
        evidence = compare(
            list(options.controllers),
            n_hosts=options.hosts,
            price=options.price,
            task=options.task,
            task_options=options.task_options,
            seed=options.seed,
            allow_code=options.allow_code,
            unfinished=options.unfinished,
            command=f"esper compare {shlex.join(args)}",
            on_progress=_announced(progress, "comparing", options.controllers, options),
            workers=options.workers,
            ray_address=options.ray_address,
        )
    if options.json:
        from esper.results.sentences import verdict_json

        print_json(verdict_json(evidence))
    elif options.quiet:
        print("\n".join(evidence.sentences))
    else:
        show_evidence(evidence, verbose=options.verbose)
    return 0

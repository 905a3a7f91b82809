"""``esper evaluate`` and ``esper compare``: benchmark controllers on held-out hosts."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from esper.cli.interval_plot import plot_differences
from esper.cli.output import (
    print_columns,
    print_json,
    print_table,
    print_wrapped,
    require_writable,
)
from esper.cli.parsing import (
    Switch,
    UsageError,
    optional,
    parse,
    read_table,
    require_counts,
    require_task,
    required,
)
from esper.cli.progress_line import ProgressLine
from esper.config.held_out_hosts import EVALUATION_HOSTS
from esper.invocation import program
from esper.storage.controller_folder import locate_controller
from esper.storage.run_folder import RunFolder, require_no_link, shell_word
from esper.training.signals import INTERRUPTED

if TYPE_CHECKING:
    from esper.evidence.evaluation import EvaluationProgress, OnProgress
    from esper.evidence.results import Evidence


SHOWN = ("arm", "score", "difference, points", "accuracy", "FLOPs", "parameters")
"""Columns of the results table that are printed; the files have all of them."""


def show_evidence(evidence: Evidence, *, heading: bool = False, verbose: bool = False) -> None:
    """Print the verdict and the results table for one price.

    Args:
        evidence: The results.
        heading: Whether to print the price above them.
        verbose: Whether to print each comparison in words, and how all was measured.
    """
    from esper.evidence.claims import verdict_sentences

    if heading:
        print(f"At price {evidence.price:g}:\n")
    first, *others = verdict_sentences(evidence)
    print_wrapped(first)
    n_arms = len(evidence.others)
    for sentence in others[: len(others) - n_arms]:
        print()
        print_wrapped(sentence)
    _show_plot(evidence)
    _show_table(evidence)
    if verbose:
        print()
        for sentence in others[len(others) - n_arms :]:
            print_wrapped(sentence, first="- ", indent="  ")
    _show_facts(evidence, verbose=verbose, settings=verbose)


def show_comparison(evidence: Evidence, *, verbose: bool = False) -> None:
    """Print how the first controller compares with the others, and the results table.

    Args:
        evidence: The results.
        verbose: Whether to print all about how they were measured.
    """
    for sentence in comparison_sentences(evidence):
        print_wrapped(sentence, first="- ", indent="  ")
    _show_plot(evidence)
    _show_table(evidence)
    _show_facts(evidence, verbose=verbose, settings=True)  # growth rules that differ


def comparison_sentences(evidence: Evidence) -> list[str]:
    """Return one sentence for each comparison of the first controller with another."""
    from esper.evidence.claims import weigh

    own = evidence.own.label
    return [f"{own[:1].upper()}{own[1:]}: {finding.sentence}." for finding in weigh(evidence)]


def _show_plot(evidence: Evidence) -> None:
    """Print the differences of score as a plot, those to the strongest arms first."""
    from esper.evidence.claims import is_sure_difference, weigh

    found = sorted(weigh(evidence), key=lambda one: one.score.mean)
    rows = [(one.against, one.score, is_sure_difference(one.score, one.verdict)) for one in found]
    print(f"\nScore on {evidence.n_hosts} hosts in points, {evidence.own.name} minus each:\n")
    print("\n".join(plot_differences(rows, label=lambda value: f"{100.0 * value:+.1f}")))
    print()


def _show_table(evidence: Evidence) -> None:
    """Print the main columns of the results table; intervals only of the differences."""
    from esper.evidence.text import results_table

    table = results_table(evidence)
    columns = {name: table.headers.index(name) for name in SHOWN}
    rows = [[row[column] for column in columns.values()] for row in table.rows]
    for row in rows:
        row[SHOWN.index("score")] = row[SHOWN.index("score")].partition(" [")[0]
    print_table([SHOWN, *rows])


def _show_facts(evidence: Evidence, *, verbose: bool, settings: bool) -> None:
    """Print how the results were measured, and the settings of arms if wanted."""
    from esper.evidence.text import facts, settings_table

    print()
    sentences = facts(evidence)
    if not verbose:
        sentences = (sentences[0], f"Score = accuracy - {evidence.price:g} x FLOPs.")
    print_wrapped(" ".join(sentences))
    for name, setting in settings_table(evidence).rows if settings else ():
        print_wrapped(f"{name}: {setting}.", first="- ", indent="  ")


FOLDER, CACHE = "evaluation", "cache"


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Benchmark learned controllers against tuned rules, static networks and training from scratch.

    All arms train the same held-out hosts. Results are saved as they complete: after an
    interruption, the same command continues where it stopped.
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, required("RUN")]
    """Runs, saved controllers, or shipped; several count as runs of one method."""

    hosts: int = 512
    """Number of held-out hosts."""

    tuning_runs: int = 4096
    """Host runs that each tuned arm may spend on tuning."""

    price: Annotated[tuple[float, ...], optional("PRICE")] = ()
    """Price of the reference run's FLOPs in score, one or more; by default the training price."""

    arms: Annotated[str | None, optional("ARM,...")] = None
    """Arms to run, separated by commas; by default all."""

    task: Annotated[str | None, optional("TASK")] = None
    """Task to evaluate on; by default the one the controller was trained on, digits-family for
    shipped."""

    task_options: Annotated[tuple[str, ...], optional("NAME=VALUE")] = ()
    """Options of the task."""

    seed: int = EVALUATION_HOSTS.first
    """Number of the first host, 100000 to 199999; another number selects other hosts."""

    allow_code: Switch = False
    """Run a task that a run or controller names by module:function."""

    out: Annotated[str | None, optional("FOLDER")] = None
    """Folder for the results; by default evaluation in the run's folder, or next to the runs."""

    workers: Annotated[int | None, optional("N")] = None
    """Worker processes; 0 for none. By default as many as there are cores or groups of 128 hosts,
    if the work is large enough to gain."""

    ray_address: Annotated[str | None, optional("ADDRESS")] = None
    """Ray cluster that works instead: host:port, auto for the one this machine belongs to, or
    local."""

    verbose: Switch = False
    """Print every comparison in words, how all was measured and what was tuned too."""

    quiet: Switch = False
    """Print only one line at the end."""

    json: Switch = False
    """Print only a JSON object at the end."""


def run_evaluate(args: Sequence[str]) -> int:
    """Evaluate controllers, write the results, and print them."""
    options = parse(EvaluateOptions, args, command="evaluate")
    require_counts(hosts=(options.hosts, 2), tuning_runs=(options.tuning_runs, 2))
    _require_known(options.runs)
    folder = Path(options.out) if options.out is not None else _default_folder(options)
    require_writable(folder)
    task_options = read_table("task_options", options.task_options)
    require_task(options.task)
    command = f"esper evaluate {shlex.join(args)}"
    try:
        with ProgressLine(quiet=options.quiet or options.json) as progress:
            entries = _evaluate(options, folder, progress, command, task_options)
    except KeyboardInterrupt:
        again = f"{program()} evaluate {shlex.join(args)}"
        print(f"esper: interrupted; finished work is saved, resume with: {again}", file=sys.stderr)
        return INTERRUPTED
    _show(entries, options, folder)
    return 0


def _evaluate(
    options: EvaluateOptions,
    folder: Path,
    progress: ProgressLine,
    command: str,
    task_options: dict[str, Any],
) -> list[Evidence]:
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
        allow_code=options.allow_code,
        folder=folder / CACHE,
        command=command,
        on_progress=_announced(progress, "evaluating", options.runs, options),
        workers=options.workers,
        ray_address=options.ray_address,
    )
    save_evidence(entries, folder)
    return entries


def _announced(
    progress: ProgressLine,
    work: str,
    controllers: Sequence[str],
    options: EvaluateOptions | CompareOptions,
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
        progress(step)

    return show


def _require_known(controllers: Sequence[str]) -> None:
    """Reject unknown controllers before PyTorch is loaded; evaluation.json files are no names."""
    for controller in controllers:
        if not os.path.isfile(controller):
            locate_controller(controller)


def _default_folder(options: EvaluateOptions) -> Path:
    """Return a folder in the folder of the only run, or next to several runs."""
    if not options.runs:
        raise UsageError("RUN is missing; give one or more runs. See esper evaluate --help.")
    others = [] if options.task is None else [options.task]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join([FOLDER, *others, *options.task_options]))
    paths = [_folder_of(run) for run in options.runs]
    if len(paths) == 1:
        folder = require_no_link((paths[0] or Path()) / name)
        require_no_link(folder / CACHE)
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
    from esper.evidence.claims import verdict_json, verdict_sentences

    paths = [folder / name for name in _RESULT_FILES if (folder / name).is_file()]
    if options.json:
        files = [str(path) for path in paths]
        print_json({"files": files, "prices": [verdict_json(one) for one in entries]})
        return
    if options.quiet:
        print(f"{folder}: {verdict_sentences(entries[0])[0]}")
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
    "pareto.png": "score and accuracy against FLOPs and parameters",
}


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Compare the first controller with each of the others on the same hosts."""

    controllers: Annotated[tuple[str, ...], tyro.conf.Positional, required("NAME")]
    """Two or more: runs, saved controllers, shipped, wait, random, fixed, heuristic, progressive;
    or evaluation.json files."""

    hosts: int = 512
    """Number of held-out hosts."""

    price: Annotated[float | None, optional("PRICE")] = None
    """Price of the reference run's FLOPs in score; by default the task's."""

    task: Annotated[str | None, optional("TASK")] = None
    """Task of the hosts; by default the one the runs were trained on, digits-family without
    any."""

    task_options: Annotated[tuple[str, ...], optional("NAME=VALUE")] = ()
    """Options of the task."""

    seed: int = EVALUATION_HOSTS.first
    """Number of the first host, 100000 to 199999; another number selects other hosts."""

    allow_code: Switch = False
    """Run a task that a run or controller names by module:function."""

    workers: Annotated[int | None, optional("N")] = None
    """Worker processes; 0 for none. By default as many as there are cores or groups of 128 hosts,
    if the work is large enough to gain."""

    ray_address: Annotated[str | None, optional("ADDRESS")] = None
    """Ray cluster that works instead: host:port, auto for the one this machine belongs to, or
    local."""

    verbose: Switch = False
    """Print all about how the results were measured too."""

    quiet: Switch = False
    """Print only the conclusions."""

    json: Switch = False
    """Print only a JSON object at the end."""


def run_compare(args: Sequence[str]) -> int:
    """Compare controllers and print the results."""
    options = parse(CompareOptions, args, command="compare")
    if len(options.controllers) < 2:
        raise UsageError("compare needs at least two controllers. See esper compare --help.")
    require_counts(hosts=(options.hosts, 2))
    _require_known(options.controllers)
    require_task(options.task)
    task_options = read_table("task_options", options.task_options)
    with ProgressLine(quiet=options.quiet or options.json) as progress:
        import torch

        from esper.evidence.compare import compare

        torch.set_num_threads(1)  # the hosts are small
        evidence = compare(
            list(options.controllers),
            n_hosts=options.hosts,
            price=options.price,
            task=options.task,
            task_options=task_options,
            seed=options.seed,
            allow_code=options.allow_code,
            command=f"esper compare {shlex.join(args)}",
            on_progress=_announced(progress, "comparing", options.controllers, options),
            workers=options.workers,
            ray_address=options.ray_address,
        )
    if options.json:
        from esper.evidence.claims import verdict_json

        print_json(verdict_json(evidence))
    elif options.quiet:
        print("\n".join(comparison_sentences(evidence)))
    else:
        show_comparison(evidence, verbose=options.verbose)
    return 0

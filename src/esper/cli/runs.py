"""What there is to say about a run in a line, read without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import tyro

from esper.cli.launch import show_comparison
from esper.cli.output import one_line, print_columns, print_json, print_wrapped
from esper.cli.parsing import parse
from esper.cli.progress import count
from esper.errors import EsperError, RunError
from esper.invocation import program
from esper.storage.run_folder import RunFolder, list_folders, runs_folder, shell_word
from esper.telemetry import Metrics
from esper.training.run import Run, load_run


def _has_nothing(folder: RunFolder) -> bool:
    """Return whether a run had written nothing but its settings when it was stopped."""
    file = folder.telemetry_file
    has_records = file.exists() and file.stat().st_size > 0
    return not has_records and not folder.summary_file.exists()


def facts_of(folder: RunFolder) -> dict[str, Any]:
    """Return a run's name, state, task, progress and newest held-out results; None is unknown.

    A run that cannot be read is one whose state says why.
    """
    facts: dict[str, Any] = {"run": str(folder.path), "name": folder.name}
    names = ("task", "rounds", "rounds_done", "ep_rew", "score", "static_score")
    try:
        run = Run(folder)
        metrics = {} if _has_nothing(folder) else run.metrics()
        facts |= {
            "state": run.state,
            "task": run.config.task,
            "rounds": run.config.rounds,
            "rounds_done": run.rounds_done,
        }
    except EsperError as error:
        return facts | dict.fromkeys(names) | {"state": "unreadable", "problem": str(error)}
    for name, metric in (
        ("ep_rew", "eval/mean_reward"),
        ("score", "eval/score"),
        ("static_score", "growth/static_score"),
    ):
        facts[name] = metrics[metric].values[-1] if metric in metrics else None
    return facts


_HEADINGS = ("run", "state", "task", "rounds", "return", "score", "left alone")


@dataclass(frozen=True, kw_only=True)
class RunsOptions:
    """List runs: what they learn, how far they are, and how they do on held-out hosts."""

    folder: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[FOLDER]")] = None
    """Where to look; by default the folder runs, or what ESPER_RUNS says."""

    json: bool = False
    """Print JSON."""


def run_runs(words: Sequence[str]) -> int:
    """Print a line for each run."""
    options = parse(RunsOptions, words, command="runs")
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


N_POINTS = 8
"""Rounds that are shown of a run, evenly spread."""

_SHOWN: dict[str, tuple[str, Callable[[float], str]]] = {
    "rollout/ep_rew_mean": ("return", "{:.3f}".format),
    "growth/score": ("score", "{:.3f}".format),
    "growth/flops": ("FLOPs", "{:.2f}".format),
    "growth/seed_parameters": ("added", count),
    "ops/germinate": ("seeds", "{:.2f}".format),
    "ops/fossilize": ("kept", "{:.2f}".format),
    "ops/prune": ("pruned", "{:.2f}".format),
    "train/approx_kl": ("KL", "{:.3f}".format),
    "train/entropy_loss": ("entropy", lambda loss: f"{-loss:.2f}"),
    "time/fps": ("steps/s", count),
}
"""Metrics, their headings, which are short so that a line fits into 80 letters, and their words."""


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Show how a run is, how it went, and what it came to."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder, or its name in the runs folder."""

    plot: str | None = None
    """Also save a figure of how it learned to this file (.png, .svg, .pdf); needs matplotlib."""

    json: bool = False
    """Print JSON."""


def run_show(words: Sequence[str]) -> int:
    """Print what there is to know of a run."""
    options = parse(ShowOptions, words, command="show")
    found = load_run(options.run)
    facts, summary = facts_of(found.folder), found.summary
    if options.plot is not None:
        _save_figure(found, Path(options.plot))
    sessions = _sessions(found)
    if options.json:
        comparison = None if summary is None else summary.to_json()
        print_json(facts | {"sessions": sessions, "summary": comparison})
        return 0
    _show_state(found, facts, sessions)
    if facts["rounds_done"]:
        print()
        print_columns(_table(found.metrics()))
        print()
        print_wrapped(
            "Means of the episodes that ended in a round; added parameters, and seeds germinated, "
            "kept (fossilized) and pruned, are of one episode."
        )
    if summary is not None:
        print()
        show_comparison(summary)
    elif facts["state"] not in ("running", "unreadable"):
        print(f"\nGo on with it: {program()} resume {shell_word(found.path)}")
    if options.plot is not None:
        print(f"\nThe figure is in {options.plot}")
    return 0


def _show_state(found: Run, facts: dict[str, Any], sessions: list[dict[str, Any]]) -> None:
    """Print how far the run is, and who worked on it."""
    config = found.config
    done = "an unknown round" if facts["rounds_done"] is None else f"round {facts['rounds_done']}"
    print(f"{found.path}: {facts['state']}, {config.task}, {done} of {config.rounds}", end="")
    print(f", seed {config.seed}")
    if "problem" in facts:
        print_wrapped(facts["problem"], indent="  ")
    for session in sessions:
        ended = session["ended_at"]
        end = _local(ended) if ended else "now" if facts["state"] == "running" else "unknown"
        outcome = session["outcome"] or ("running" if end == "now" else "killed")
        message = f": {session['message']}" if session["message"] else ""
        line = f"{_local(session['started_at'])} to {end}, {outcome}{message}"
        print_wrapped(line, first="  ", indent="    ")


def _local(stamp: str) -> str:
    """Return a recorded time as the clock on the wall shows it."""
    return f"{datetime.fromisoformat(stamp).astimezone():%Y-%m-%d %H:%M:%S}"


def _table(metrics: Metrics) -> list[tuple[str, ...]]:
    """Return the values of a few rounds, from the first to the last."""
    rounds = metrics["time/iterations"].rounds
    last = len(rounds) - 1
    picked = sorted({rounds[round(last * i / (N_POINTS - 1))] for i in range(N_POINTS)})
    rows: list[tuple[str, ...]] = [("round", *(heading for heading, _ in _SHOWN.values()))]
    by_round = {
        name: dict(zip(metrics[name].rounds, metrics[name].values, strict=True))
        for name in _SHOWN
        if name in metrics
    }
    for number in picked:
        cells = [str(number)]
        for name, (_, shown) in _SHOWN.items():
            value = by_round.get(name, {}).get(number)
            cells.append("" if value is None else shown(value))
        rows.append(tuple(cells))
    return rows


def _sessions(found: Run) -> list[dict[str, Any]]:
    from esper.errors import TelemetryError

    try:
        with found.telemetry() as telemetry:
            return [asdict(session) for session in telemetry.sessions()]
    except TelemetryError:
        return []


def _save_figure(found: Run, path: Path) -> None:
    from esper.errors import ConfigError, StorageError

    figure = found.plot()
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        raise ConfigError(f"--plot is {str(path)!r}; {error}.") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}.") from error

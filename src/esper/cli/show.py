"""The command ``esper show``: how a run is, how it went, and what it came to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import tyro

from esper.cli.ending import show_comparison
from esper.cli.output import print_columns, print_json, print_wrapped
from esper.cli.parsing import parse
from esper.cli.run_facts import facts_of
from esper.cli.words import count
from esper.invocation import program
from esper.storage.run_folder import shell_word
from esper.telemetry import Metrics
from esper.training.run import Run, load_run

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
class Options:
    """Show how a run is, how it went, and what it came to."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder, or its name in the runs folder."""

    plot: str | None = None
    """Also save a figure of how it learned to this file (.png, .svg, .pdf); needs matplotlib."""

    json: bool = False
    """Print JSON."""


def run(words: Sequence[str]) -> int:
    """Print what there is to know of a run."""
    options = parse(Options, words, command="show")
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

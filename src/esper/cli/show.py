"""The command ``esper show``: how a run is, how it went, and what it came to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from esper.cli.ending import show_comparison
from esper.cli.output import print_columns, print_json
from esper.cli.parsing import parse
from esper.cli.run_facts import facts_of
from esper.runs.run import Run, load_run
from esper.telemetry import Metrics

N_POINTS = 8
"""Rounds that are shown of a run, evenly spread."""

_SHOWN = {
    "rollout/ep_rew_mean": "return",
    "growth/score": "score",
    "growth/flops": "FLOPs",
    "growth/seed_parameters": "added parameters",
    "ops/germinate": "germinated",
    "ops/fossilize": "fossilized",
    "ops/prune": "pruned",
    "train/approx_kl": "KL",
    "train/entropy_loss": "-entropy",
    "time/fps": "steps/s",
}


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
    if options.json:
        comparison = None if summary is None else summary.to_json()
        print_json(facts | {"sessions": _sessions(found), "summary": comparison})
        return 0
    print(f"{found.path}: {facts['state']}, {facts['task']}, ", end="")
    print(f"round {facts['rounds_done']} of {facts['rounds']}, seed {found.config.seed}")
    for session in _sessions(found):
        ended = session["ended_at"] or "(no end was recorded)"
        message = f": {session['message']}" if session["message"] else ""
        print(
            f"  {session['started_at']} to {ended}, {session['outcome'] or 'no outcome'}{message}"
        )
    if facts["rounds_done"]:
        print()
        print_columns(_table(found.metrics()))
    if summary is not None:
        print()
        show_comparison(summary)
    elif facts["state"] != "running":
        print(f"\nGo on with it: esper resume {found.path}")
    return 0


def _table(metrics: Metrics) -> list[tuple[str, ...]]:
    """Return the values of a few rounds, from the first to the last."""
    rounds = metrics["time/iterations"].rounds
    last = len(rounds) - 1
    picked = sorted({rounds[round(last * i / (N_POINTS - 1))] for i in range(N_POINTS)})
    rows = [("round", *_SHOWN.values())]
    by_round = {
        name: dict(zip(metrics[name].rounds, metrics[name].values, strict=True))
        for name in _SHOWN
        if name in metrics
    }
    for number in picked:
        values = [by_round.get(name, {}).get(number) for name in _SHOWN]
        rows.append((str(number), *("" if v is None else f"{v:.3g}" for v in values)))
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

"""``esper runs`` and ``esper show``: list runs and show one, without loading PyTorch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from esper.cli.arguments import Metavar, Positional, parse
from esper.cli.output import one_line, print_json, print_table, print_wrapped
from esper.cli.verdict import show_evidence
from esper.cli.views import ABOUT_COLUMNS, COLUMNS, HEADINGS, cells
from esper.config.schema import shown
from esper.errors import ConfigError, EsperError, RunError, StorageError
from esper.invocation import program
from esper.results.arms import NO_GROWTH
from esper.results.evidence import Evidence
from esper.results.sentences import verdict_json
from esper.storage.files import replacing
from esper.storage.run_folder import RunFolder, holds_runs, list_folders, runs_folder, shell_word
from esper.telemetry import Metrics, open_run
from esper.training.run import Run, load_run


def facts_of(folder: RunFolder) -> dict[str, Any]:
    """Return a run's name, state, task, progress and held-out results; None if unknown.

    The results are those of the final comparison, or before that of the latest evaluation. A run
    that cannot be read has the state ``"unreadable"`` and a ``"problem"``.
    """
    facts: dict[str, Any] = {"run": str(folder.path), "name": folder.name}
    names = ("task", "rounds", "rounds_done", "return", "score", "no_growth_score")
    try:
        run = Run(folder)
        metrics: Metrics = {}
        if _has_results(folder):
            with open_run(folder.path) as telemetry:
                metrics = telemetry.metrics()
                telemetry.sessions()  # a state read from damaged sessions would be wrong
        facts |= {
            "state": run.state,
            "task": run.config.task,
            "rounds": run.config.rounds,
            "rounds_done": run.rounds_done,
        }
    except EsperError as error:
        return facts | dict.fromkeys(names) | {"state": "unreadable", "problem": str(error)}
    for name, metric in (
        ("return", "eval/mean_reward"),
        ("score", "eval/score"),
        ("no_growth_score", "growth/no_growth_score"),
    ):
        facts[name] = metrics[metric].values[-1] if metric in metrics else None
    return facts | _final_results(run)


def _final_results(run: Run) -> dict[str, float]:
    """Return the results of a run's final comparison; nothing without one that can be read."""
    try:
        summary = run.summary
    except EsperError:  # esper show says what is wrong
        summary = None
    if summary is None:
        return {}
    own = summary.own
    found = {"return": float(own.returns.mean()), "score": float(own.score.mean())}
    plain = [float(arm.score.mean()) for arm in summary.others if arm.name == NO_GROWTH]
    return found | ({"no_growth_score": plain[0]} if plain else {})


def _has_results(folder: RunFolder) -> bool:
    """Return whether a run has written more than its settings."""
    file = folder.telemetry_file
    return os.path.exists(folder.summary_file) or (
        os.path.exists(file) and os.path.getsize(file) > 0
    )


_ABOUT_RESULTS = (
    "Results are those of the final comparison; of a run that is not done, those of the latest "
    "evaluation, on other held-out hosts."
)
_HEADINGS = ("run", "state", "task", "rounds", "return", "score", "score, no growth")


@dataclass(frozen=True, kw_only=True)
class RunsOptions:
    """List runs with their task, progress and results on held-out hosts."""

    folder: Annotated[str | None, Positional("FOLDER")] = None
    """Folder of the runs; by default $ESPER_RUNS, or else runs."""

    json: bool = False
    """Print JSON."""


def run_runs(args: Sequence[str]) -> int:
    """Print one line per run."""
    options = parse(RunsOptions, args, command="runs")
    if options.folder is not None and not os.path.isdir(options.folder):
        raise RunError(f"no folder {shown(options.folder)}; give the folder of your runs.")
    folders, place = list_folders(options.folder), Path(options.folder or runs_folder())
    if options.json:
        print_json([facts_of(folder) for folder in folders])
        return 0
    if not folders:
        print(f"no runs in {place}; start one with {program()} train")
    else:
        known = [facts_of(folder) for folder in folders]
        print_table([_HEADINGS, *map(_row, known)], n_left=3)
        if any(facts["score"] is not None for facts in known):
            print()
            print_wrapped(_ABOUT_RESULTS)
        for facts in known:
            if "problem" in facts:
                print_wrapped(
                    f"{facts['run']}: {one_line(facts['problem'])}", indent="  ", first=""
                )
    inner = sorted(path for path in place.iterdir() if holds_runs(path)) if place.is_dir() else []
    if inner:
        print("\nFolders of more runs, such as studies:")
        print("\n".join(f"  {program()} runs {shell_word(path)}" for path in inner))
    return 0


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    rounds = "" if facts["rounds"] is None else f"{facts['rounds_done']} of {facts['rounds']}"
    scores = [facts[name] for name in ("return", "score", "no_growth_score")]
    return (
        facts["run"],
        facts["state"],
        facts["task"] or "",
        rounds,
        *("" if value is None else f"{value:.3f}" for value in scores),
    )


N_POINTS = 8
"""Rounds shown in the table of a run, evenly spaced."""


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Show the state, progress and results of a run."""

    run: Annotated[str, Positional("RUN")]
    """Folder of the run, or its name in the runs folder."""

    verbose: bool = False
    """Print every comparison in words, too."""

    plot: Annotated[str | None, Metavar("FILE")] = None
    """File to save the learning curves to (.png, .svg, .pdf); needs matplotlib."""

    json: bool = False
    """Print JSON."""


def run_show(args: Sequence[str]) -> int:
    """Print the state, progress and results of a run; those that can be read if it is damaged."""
    options = parse(ShowOptions, args, command="show")
    found = load_run(options.run)
    facts, summary = facts_of(found.folder), found.summary
    if options.plot is not None:
        _save_figure(found, Path(options.plot))
    sessions = [] if "problem" in facts else _sessions(found)
    if options.json:
        comparison = None if summary is None else verdict_json(summary)
        print_json(facts | {"sessions": sessions, "summary": comparison})
    else:
        _show_text(found, facts, sessions, summary, verbose=options.verbose)
        if options.plot is not None:
            print(f"\nFigure saved to {options.plot}")
    if "problem" in facts:
        raise RunError(facts["problem"])
    return 0


_ABOUT_PPO = "A record of PPO.learn: a round is a rollout and the update after it."
_ABOUT_OWN = (
    "A record of your own training: a round is an epoch, the score is yours, and "
    "seeds are counted at the end."
)


def _show_text(
    found: Run,
    facts: dict[str, Any],
    sessions: list[dict[str, Any]],
    summary: Evidence | None,
    *,
    verbose: bool,
) -> None:
    config = found.config
    done = "?" if facts["rounds_done"] is None else facts["rounds_done"]
    print(
        f"{found.path}: {facts['state']}, {config.task}, round {done} of {config.rounds}, "
        f"seed {config.seed}"
    )
    _show_sessions(sessions, is_running=facts["state"] == "running")
    if summary is not None:
        print()
        show_evidence(summary, verbose=verbose)
    if facts["rounds_done"]:
        print()
        with open_run(found.path) as telemetry:
            print_table(_table(telemetry.metrics()))
        print()
        about = _ABOUT_OWN if config.is_own_training else ABOUT_COLUMNS
        print_wrapped(_ABOUT_PPO if config.is_ppo_training else about)
    can_resume = not config.is_own_training and not config.is_ppo_training
    if summary is None and can_resume and facts["state"] not in ("running", "unreadable"):
        print(f"\nResume with: {found.resume_command}")


def _show_sessions(sessions: list[dict[str, Any]], *, is_running: bool) -> None:
    for session in sessions:
        ended = session["ended_at"]
        end = _local(ended) if ended else "now" if is_running else "unknown"
        outcome = session["outcome"] or ("running" if end == "now" else "killed")
        message = f": {session['message']}" if session["message"] else ""
        line = f"{_local(session['started_at'])} to {end}, {outcome}{message}"
        print_wrapped(line, first="  ", indent="    ")


def _local(stamp: str) -> str:
    """Return a recorded time in the local time zone."""
    try:
        return f"{datetime.fromisoformat(stamp).astimezone():%Y-%m-%d %H:%M:%S}"
    except ValueError:
        return repr(stamp)  # damaged


def _table(metrics: Metrics) -> list[list[str]]:
    """Return a table of evenly spaced rounds, without columns that the run has no values for."""
    rounds = metrics["time/iterations"].rounds
    last = len(rounds) - 1
    picked = sorted({rounds[round(last * i / (N_POINTS - 1))] for i in range(N_POINTS)})
    by_round = {
        name: dict(zip(metrics[name].rounds, metrics[name].values, strict=True))
        for name in COLUMNS
        if name in metrics
    }
    rows = [list(HEADINGS)]
    for number in picked:
        found = {name: values[number] for name, values in by_round.items() if number in values}
        rows.append(cells(number, found))
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    return [list(row) for row in zip(*columns, strict=True)]


def _sessions(found: Run) -> list[dict[str, Any]]:
    if not _has_results(found.folder):
        return []
    with open_run(found.path) as telemetry:
        return [asdict(session) for session in telemetry.sessions()]


def _save_figure(found: Run, path: Path) -> None:
    figure = found.plot()
    try:
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=120, format=path.suffix[1:] or "png")
    except ValueError as error:
        raise ConfigError(f"--plot is {str(path)!r}; {error}.") from error
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}.") from error

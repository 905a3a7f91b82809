"""What is said when a run ends: how its controller did beside others, and what to try next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from esper.cli.output import json_text, print_columns, print_wrapped
from esper.invocation import program
from esper.storage.run_folder import shell_word
from esper.training.comparison import ArmSummary, Comparison, Difference
from esper.training.run import Run

_HEADINGS = (
    "controller",
    "return [95 %]",
    "learned minus it",
    "score",
    "FLOPs",
    "added",
)


def show_end(run: Run, *, quiet: bool = False, as_json: bool = False) -> None:
    """Print what a run that is done came to."""
    summary = run.summary
    assert summary is not None, "a run that is done has a summary"
    if as_json:
        print_end_event(run, state=run.state)
    elif quiet:
        print(f"{run.path}: {summary.sentences[0]}")
    else:
        print()
        show_comparison(summary)
        print()
        show_next_steps(run.path)


def print_end_event(run: Run | None, *, state: str, message: str | None = None) -> None:
    """Print as JSON in a line that a process has ended its work on a run.

    Args:
        run: The run; None if there is none.
        state: Done, interrupted or failed.
        message: What went wrong.
    """
    event: dict[str, Any] = {"event": "end", "state": state, "message": message}
    event |= dict.fromkeys(("run", "round", "rounds", "summary"))
    if run is not None:
        event |= {"run": str(run.path), "round": run.rounds_done, "rounds": run.config.rounds}
    if run is not None and state == "done" and run.summary is not None:
        event["summary"] = run.summary.to_json()
    print(json_text(event), flush=True)


def show_comparison(summary: Comparison) -> None:
    """Print the table of controllers and what it supports."""
    print(f"On the same {summary.n_hosts} held-out hosts, scored on the {summary.split} split:\n")
    differences = {one.against: one for one in summary.differences}
    print_columns([_HEADINGS, *(_row(arm, differences.get(arm.name)) for arm in summary.arms)])
    print()
    print_wrapped(
        "Return is the score minus what computing and added parameters cost; FLOPs are a share of "
        "a reference run's, added parameters a share of the host's. In brackets: where the mean "
        "lies with 95 % confidence."
    )
    print()
    for sentence in summary.sentences:
        print_wrapped(sentence, first="- ", indent="  ")


def show_next_steps(path: Path) -> None:
    """Print commands that can follow."""
    esper, run = program(), shell_word(path)
    print("Next:")
    print_columns(
        [
            (f"  {esper} show {run}", "this again, and how the run went"),
            (f"  {esper} grow --controller {run}", "grow one host with it and keep it"),
            (f"  {esper} export-telemetry {run} --csv", "all that happened, as tables"),
            (f"  {esper} train --preset digits-family", "a longer run, for a better controller"),
        ]
    )


def _row(arm: ArmSummary, difference: Difference | None) -> tuple[str, ...]:
    return (
        arm.name,
        arm.ep_rew.text(signed=False),
        "" if difference is None else difference.ep_rew.text(),
        f"{arm.score.mean:.3f}",
        f"{arm.flops:.2f}",
        f"{arm.seed_parameters / max(arm.host_parameters, 1):.0%}",
    )

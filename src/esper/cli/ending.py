"""What is said when a run ends: how its controller did beside others, and what to try next."""

from __future__ import annotations

import json
from pathlib import Path

from esper.cli.output import print_columns
from esper.reports.comparison import ArmSummary, Comparison, Difference
from esper.reports.statistics import Interval
from esper.runs.run import Run

_HEADINGS = (
    "controller",
    "return [95 %]",
    "learned minus it [95 %]",
    "score",
    "FLOPs",
    "added",
)


def show_end(run: Run, *, quiet: bool = False, as_json: bool = False) -> None:
    """Print what a run that is done came to."""
    summary = run.summary
    assert summary is not None, "a run that is done has a summary"
    if as_json:
        event = {"event": "end", "run": str(run.path), "state": run.state}
        print(json.dumps(event | {"summary": summary.to_json()}), flush=True)
    elif quiet:
        print(f"{run.path}: {summary.sentences[0]}")
    else:
        print()
        show_comparison(summary)
        print()
        show_next_steps(run.path)


def show_comparison(summary: Comparison) -> None:
    """Print the table of controllers and what it supports."""
    print(f"On the same {summary.n_hosts} held-out hosts, scored on the {summary.split} split:\n")
    differences = {one.against: one for one in summary.differences}
    print_columns([_HEADINGS, *(_row(arm, differences.get(arm.name)) for arm in summary.arms)])
    print(
        "\nReturn is the score minus what computing and added parameters cost. FLOPs are a\n"
        "share of a reference run's, added parameters a share of the host's."
    )
    for sentence in summary.sentences:
        print(f"- {sentence}")


def show_next_steps(path: Path) -> None:
    """Print commands that can follow."""
    print("Next:")
    print_columns(
        [
            (f"  esper show {path}", "this again, and how the run went"),
            (f"  esper grow --controller {path}", "grow one host with this controller and keep it"),
            (f"  esper export-telemetry {path} --csv", "everything that happened, as tables"),
            ("  esper train --preset digits-family", "a longer run, for a better controller"),
        ]
    )


def interval_text(interval: Interval, *, signed: bool = False) -> str:
    """Return a mean with its interval."""
    sign = "+" if signed else ""
    return f"{interval.mean:{sign}.3f} [{interval.low:{sign}.3f}, {interval.high:{sign}.3f}]"


def _row(arm: ArmSummary, difference: Difference | None) -> tuple[str, ...]:
    return (
        arm.name,
        interval_text(arm.ep_rew),
        "" if difference is None else interval_text(difference.ep_rew, signed=True),
        f"{arm.score.mean:.3f}",
        f"{arm.flops:.2f}",
        f"{arm.seed_parameters / max(arm.host_parameters, 1):.0%}",
    )

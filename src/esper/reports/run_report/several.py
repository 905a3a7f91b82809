"""Several runs beside one another: a table, intervals over runs, and what settings differ."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from esper.evidence.text import Table
from esper.formatting import listed, number, whole
from esper.reports.run_report.blocks import Block, Items, Text
from esper.reports.run_report.values import RunValues
from esper.statistics import Interval, mean_interval

FEWEST_RUNS = 3
"""Runs below which an interval over runs says too little to be shown."""

_OTHERWISE_SAME = ("seed", "threads", "checkpoints", "telemetry")
"""Settings in which runs of one method may differ."""


def runs_table(runs: Sequence[RunValues]) -> Table:
    """Return a row for each run and, if all are of one method, their mean with its interval."""
    rows = [
        (
            run["name"],
            run["state"],
            f"{run['headline']['rounds_done']} of {whole(run['headline']['rounds'])}",
            *(number(find(run)) for find in COLUMNS.values()),
        )
        for run in runs
    ]
    if is_one_method(runs) and len(runs) >= FEWEST_RUNS:
        means = (_mean(list(map(find, runs))) for find in COLUMNS.values())
        rows.append((f"mean of {len(runs)} runs", "", "", *means))
    return Table(headers=("run", "state", "rounds", *COLUMNS), rows=tuple(rows), n_left=2)


def verdict_blocks(runs: Sequence[RunValues]) -> tuple[Block, ...]:
    """Return what the comparisons at the ends of runs say, together and one by one."""
    told = [
        f"{run['name']}: {view['sentences'][0]}"
        for run in runs
        if (view := run["comparison"]) is not None and view["sentences"]
    ]
    blocks: list[Block] = []
    if is_one_method(runs) and len(runs) >= FEWEST_RUNS and len(told) == len(runs):
        means = [
            f"{_interval(runs, against).text()} against {words}"
            for against, words in (("wait", "hosts left alone"), ("fixed", "the fixed schedule"))
        ]
        blocks.append(
            Text(
                text=f"Over {len(runs)} training runs, the learned controller's return was "
                f"{listed(means)}, in the mean of the comparisons at their ends.",
                is_verdict=True,
            )
        )
    if not told:
        told.append("No run has come to the comparison at its end yet.")
    return (*blocks, Items(lines=tuple(told)))


def about_table(runs: Sequence[RunValues]) -> tuple[str, ...]:
    """Return what the columns of the table are, and what its intervals are about."""
    told = [
        "Return, score and FLOPs held out are those of the trial by which each run's controller "
        "was kept; left alone is the score of the same hosts without growth. The differences are "
        "of the comparison at the end of each run, on hosts that nothing was chosen by.",
    ]
    if not is_one_method(runs):
        told.append(
            "The runs have unlike settings, so no mean over them is given; differences in return "
            "between tasks or prices mean nothing."
        )
    elif len(runs) < FEWEST_RUNS:
        told.append(f"An interval over runs needs {FEWEST_RUNS} of them at least.")
    else:
        told.append(
            "In brackets: where the mean of all runs that could be made so lies with 95 % "
            f"confidence, from {len(runs)} runs that differ in their seed."
        )
    return tuple(told)


def settings_table(runs: Sequence[RunValues]) -> Table:
    """Return the settings in which runs differ, a column for each run."""
    known = [flat_settings(run) for run in runs]
    names = list(dict.fromkeys(name for one in known for name in one))
    unlike = [name for name in names if len({repr(one.get(name)) for one in known}) > 1]
    rows = [(name, *(_shown(one.get(name)) for one in known)) for name in unlike]
    headers = ("setting", *(run["name"] for run in runs))
    return Table(headers=headers, rows=tuple(rows), n_left=len(headers))


def is_one_method(runs: Sequence[RunValues]) -> bool:
    """Return whether runs differ in nothing but their seed and what changes no result."""
    known = [
        {
            name: value
            for name, value in flat_settings(run).items()
            if name.split(".")[0] not in _OTHERWISE_SAME
        }
        for run in runs
    ]
    return all(one == known[0] for one in known)


def flat_settings(run: RunValues) -> dict[str, Any]:
    """Return the settings of a run by dotted names."""
    return _flat(tomllib.loads(run["overview"]["config_toml"] or ""))


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flat(cast("dict[str, Any]", value), f"{before}{name}.")
        else:
            found[f"{before}{name}"] = value
    return found


def _shown(value: Any) -> str:
    return "" if value is None else str(value)


def _mean(values: list[float | None]) -> str:
    """Return a mean with its interval, if every run has the value."""
    known = [value for value in values if value is not None]
    return mean_interval(known).text(signed=False) if known and len(known) == len(values) else ""


def _interval(runs: Sequence[RunValues], against: str) -> Interval:
    """Return the mean over runs of what their controllers gain, with its interval."""
    gains = [_difference(against)(run) for run in runs]
    return mean_interval([gain for gain in gains if gain is not None])


def _difference(against: str) -> Callable[[RunValues], float | None]:
    def find(run: RunValues) -> float | None:
        view = run["comparison"]
        for one in () if view is None else view["differences"]:
            if one["against"] == against:
                return one["ep_rew"]["mean"]
        return None

    return find


COLUMNS: dict[str, Callable[[RunValues], float | None]] = {
    "return held out": lambda run: run["headline"]["best_return"],
    "score held out": lambda run: run["headline"]["best_score"],
    "left alone": lambda run: run["headline"]["static_score"],
    "FLOPs": lambda run: run["headline"]["flops"],
    "return minus left alone": _difference("wait"),
    "return minus fixed schedule": _difference("fixed"),
}
"""What the table tells of each run."""

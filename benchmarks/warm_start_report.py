"""What `warm_start.py` found, in tables.

Differences are paired by seed, and have expanded 95% bootstrap intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from esper.statistics import paired_interval
from growth_report import table
from warm_start_runs import PROBLEMS

MIN_SEEDS = 3
"""With fewer seeds there are no intervals."""


def report(runs: Any) -> str:
    """Return all tables of a campaign as Markdown."""
    parts = ["# More budget for a model that is trained already"]
    for name in runs.names:
        for base in PROBLEMS[name].bases:
            parts += _comparison(runs, name, base)
    if runs.has_forgetting:
        parts += _forgetting(runs)
    return "\n\n".join(parts) + "\n"


def _comparison(runs: Any, name: str, base: str) -> list[str]:
    """Return the section of one problem and one kind of base."""
    problem = PROBLEMS[name]
    seeds = _collect(runs.n_seeds, lambda seed: runs.arms(name, base, seed))
    if not seeds:
        return []
    key, digits = ("accuracy", 2) if problem.is_accuracy else ("loss", 4)
    unit = "accuracy in %" if problem.is_accuracy else "loss in nats per character"
    arms = [arm for arm in seeds[0] if arm != "given"]
    given = _mean(seed["given"][0][key] for seed in seeds)
    extras = [row["budget"] for row in seeds[0]["continue"]]
    rows: list[list[str]] = []
    for index, extra in enumerate(extras):
        values = {arm: [seed[arm][index][key] for seed in seeds] for arm in arms}
        rows.append([f"+{extra:.0%}", *(f"{_mean(values[arm]):.{digits}f}" for arm in arms)])
        differences = [_difference(values[arm], values["continue"], digits) for arm in arms[1:]]
        rows.append(["", "", *differences])
    at = extras.index(1.0)
    for what in ("parameters", "seconds"):
        cells = [_mean(seed[arm][at][what] for seed in seeds) for arm in arms]
        shown = [f"{cell:,.0f}" if cell >= 100 else f"{cell:.1f}" for cell in cells]
        rows.append([f"{what} at +100%", *shown])
    chosen = ", ".join(f"{arm} {rate:g}" for arm, rate in runs.rates(name, base).items())
    sizes = " and ".join(
        "{} at {:g} ({} FLOPs)".format(*runs.larger(name, shift), which)
        for which, shift in (("extra", 0.0), ("total", 1.0))
    )
    return [
        f"## {problem.title[0].upper()}{problem.title[1:]}, {base} rate",
        f"Test {unit}, mean of seeds; below it the difference to continuing, paired by seed, with "
        f"its 95% interval, and on how many seeds it is better. {_finished(runs.n_seeds, seeds)} "
        f"The given model has {given:.{digits}f} after {problem.unit:g} GFLOPs and "
        f"{_mean(seed['given'][0]['seconds'] for seed in seeds):.0f} s. Learning rates were chosen "
        f"on another seed at +50%: given {runs.base_rate(name):g}, {chosen}; the larger model: "
        f"{sizes}.",
        table(["extra FLOPs", *arms], rows),
    ]


def _forgetting(runs: Any) -> list[str]:
    seeds = _collect(runs.n_forgetting, runs.forgetting)
    if not seeds:
        return []
    rows: list[list[str]] = []
    for arm, share in seeds[0]:
        found = [seed[arm, share] for seed in seeds]
        cells = [f"{_mean(row[key] for row in found):.3f}" for key in ("prose", "loss")]
        seconds = f"{_mean(row['seconds'] for row in found):.0f}"
        rows.append([arm, f"{share:g}", f"{found[0]['trained']:,}", *cells, seconds])
    first = next(iter(seeds[0]))
    before = [f"{_mean(seed[first]['before'][k] for seed in seeds):.3f}" for k in range(2)]
    return [
        "## Forgetting: prose, then code",
        "The GPT is trained on the book that ships with Esper and the texts of Python's help, then "
        "on the source of Python's library with half of the FLOPs. Test losses in nats, mean of "
        f"seeds. {_finished(runs.n_forgetting, seeds)} Before, it has {before[0]} on prose and "
        f"{before[1]} on code. Rates are relative to that of the first training; all are "
        "shown, because a lower one learns less and forgets less.",
        table(["trained", "rate", "parameters", "prose", "code", "seconds"], rows),
    ]


def _finished(n_all: int, seeds: Sequence[Any]) -> str:
    """Return how much of a section has been run."""
    n_done = len(seeds)
    return f"{n_done} seeds." if n_done == n_all else f"{n_done} of {n_all} seeds so far."


def _collect(n_seeds: int, results: Callable[[int], Any]) -> list[Any]:
    """Return what seeds have results for, up to the first that has none."""
    found: list[Any] = []
    for seed in range(n_seeds):
        try:
            found.append(results(seed))
        except LookupError:
            break
    return found


def _mean(values: Iterable[float]) -> float:
    items = list(values)
    return math.fsum(items) / len(items)


def _difference(values: Sequence[float], others: Sequence[float], digits: int) -> str:
    is_score = digits == 2
    wins = sum((a > b) == is_score and a != b for a, b in zip(values, others, strict=True))
    if len(values) < MIN_SEEDS:
        return f"{_mean(values) - _mean(others):+.{digits}f} {wins}/{len(values)}"
    gap = paired_interval(values, others)
    low, high = f"{gap.low:+.{digits}f}", f"{gap.high:+.{digits}f}"
    return f"{gap.mean:+.{digits}f} [{low}, {high}] {wins}/{len(values)}"

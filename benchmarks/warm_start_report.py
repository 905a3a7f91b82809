"""What `warm_start.py` found, in tables.

Differences are paired by seed, and have expanded 95% bootstrap intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from esper.statistics import paired_interval
from warm_start_problems import PROBLEMS

Row = dict[str, Any]
MIN_SEEDS = 3
"""With fewer seeds there are no intervals."""


class Runs(Protocol):
    """Gives the results of a benchmark; those that are missing raise LookupError."""

    names: list[str]
    n_seeds: int
    has_forgetting: bool

    def rates(self, name: str, base: str) -> dict[str, float]:
        """Return the learning rate of each arm."""
        ...

    def base_rate(self, name: str) -> float:
        """Return the learning rate of the given model."""
        ...

    def given(self, name: str, base: str, seed: int) -> Row:
        """Return the results of the trained model."""
        ...

    def grown(self, name: str, base: str, seed: int) -> dict[str, list[Row]]:
        """Return the results of each arm that begins with a trained model."""
        ...

    def larger(self, name: str, budget: float) -> tuple[str, float]:
        """Return the size and rate of the larger model."""
        ...

    def scratch(self, name: str, seed: int) -> dict[str, list[Row]]:
        """Return the results of larger models from scratch."""
        ...

    def forgetting(self, seed: int) -> dict[tuple[str, float], Row]:
        """Return the results of learning a second text."""
        ...


def report(runs: Runs) -> str:
    """Return all tables as Markdown."""
    parts = ["# More budget for a model that is trained already"]
    for name in runs.names:
        for base in ("decayed", "constant"):
            parts += _comparison(runs, name, base)
    if runs.has_forgetting:
        parts += _forgetting(runs)
    return "\n\n".join(parts) + "\n"


def _comparison(runs: Runs, name: str, base: str) -> list[str]:
    """Return the section of one problem and one kind of base."""
    problem = PROBLEMS[name]

    def of(seed: int) -> Mapping[str, list[Row]]:
        found = {**runs.grown(name, base, seed), **runs.scratch(name, seed)}
        return {"given": [runs.given(name, base, seed)], **found}

    seeds = _collect(runs.n_seeds, of)
    if not seeds:
        return []
    key, digits = ("accuracy", 2) if problem.is_accuracy else ("test", 4)
    unit = "accuracy in %" if problem.is_accuracy else "loss in nats per character"
    arms = [arm for arm in seeds[0] if arm != "given"]
    given = _mean(seed["given"][0][key] for seed in seeds)
    extras = [row["budget"] for row in seeds[0]["continue"]]
    rows: list[list[str]] = []
    for index, extra in enumerate(extras):
        values = {arm: [seed[arm][index][key] for seed in seeds] for arm in arms}
        cells = [f"{_mean(values[arm]):.{digits}f}" for arm in arms]
        rows.append([f"+{extra:.0%}", *cells])
        differences = [
            _difference(values[arm], values["continue"], digits) if arm != "continue" else ""
            for arm in arms
        ]
        rows.append(["", *differences])
    for what, name_of in (("parameters", "parameters"), ("seconds at +100%", "seconds")):
        at = extras.index(1.0) if 1.0 in extras else -1
        cells = [_mean(seed[arm][at][name_of] for seed in seeds) for arm in arms]
        rows.append([what, *(f"{cell:,.0f}" if cell >= 100 else f"{cell:.1f}" for cell in cells)])
    chosen = ", ".join(f"{arm} {rate:g}" for arm, rate in runs.rates(name, base).items())
    sizes = " and ".join(
        f"{size} at {rate:g} ({what} FLOPs)"
        for what, (size, rate) in (
            ("extra", runs.larger(name, 1.0)),
            ("total", runs.larger(name, 2.0)),
        )
    )
    return [
        f"## {problem.title[0].upper()}{problem.title[1:]}, {base} rate",
        f"Test {unit}, mean of seeds; below it the difference to continuing, paired by seed, with "
        f"its 95% interval, and on how many seeds it is better. {_finished(runs, seeds)} The given "
        f"model has {given:.{digits}f} after {problem.unit:g} GFLOPs. Learning rates were chosen "
        "on another seed at +100%: "
        f"given {runs.base_rate(name):g}, {chosen}; the larger model: {sizes}.",
        _table(["extra FLOPs", *arms], rows),
    ]


def _forgetting(runs: Runs) -> list[str]:
    seeds = _collect(runs.n_seeds, runs.forgetting)
    if not seeds:
        return []
    rows: list[list[str]] = []
    for arm, share in seeds[0]:
        found = [seed[arm, share] for seed in seeds]
        cells = [f"{_mean(row[key] for row in found):.3f}" for key in ("prose", "test")]
        seconds = f"{_mean(row['seconds'] for row in found):.1f}"
        rows.append([arm, f"{share:g}", f"{found[0]['trained']:,}", *cells, seconds])
    first = next(iter(seeds[0]))
    before = [
        f"{_mean(seed[first][name] for seed in seeds):.3f}"
        for name in ("prose_before", "code_before")
    ]
    head = ["trained", "rate", "parameters", "prose", "code", "seconds"]
    return [
        "## Forgetting: prose, then code",
        "The GPT is trained on the book that ships with Esper, then on Python's library with half "
        f"of the FLOPs. Test losses in nats, mean of seeds. {_finished(runs, seeds)} Before, it "
        f"has {before[0]} on prose and {before[1]} on code. Rates are relative to that of the "
        "first training; all are shown, because a lower one learns less and forgets less.",
        _table(head, rows),
    ]


def _finished(runs: Runs, seeds: Sequence[Any]) -> str:
    """Return how much of a section has been run."""
    n_done, n_all = len(seeds), runs.n_seeds
    return f"{n_done} seeds." if n_done == n_all else f"**Unfinished: {n_done} of {n_all} seeds.**"


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


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

"""What the runs on real data show: a table, the claims with their intervals, and a figure.

Gains are in points: of accuracy, or percent of the given model's test loss. Shapes: P problems,
n seeds of a problem, K quantities, B resamples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from arms import WIDTHS
from problems import Problem

from esper.formatting import many
from esper.statistics import ENDS, Interval, expansion

N_RESAMPLES = 10_000
TOLERATED_POINTS = 0.5
"""Loss of accuracy against plain training that still counts as not worse."""
TOLERATED_PERCENT = 1.0
"""The same for losses."""
SHARE_OF_GAIN, SHARE_OF_FLOPS = 0.90, 0.45
"""How much of the search's gain growth has to reach, and what it may cost of the search's FLOPs."""
EXPLANATION = """\
Given: the model trained plainly for as many epochs. Search: the best of 1, 2, 4 and 8 times the
width by validation, each trained for as many epochs; its FLOPs are the sum. Same size: a fixed
width of about the grown model's parameters, from scratch. Every arm keeps its best epoch on
validation and is tested once, on the same split. Scores are means over seeds, accuracy in percent.
Gains are in points of accuracy, or in percent of the given model's loss, with their standard error
over seeds. FLOPs include validation. Intervals resample data sets, with all their models, and
seeds. Widths multiply what can be widened: a GRU cannot be, so only the width of its head is.\
"""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Comparison:
    """Plain training, growth and the search on one problem, seed by seed."""

    problem: Problem
    plain: list[Row]
    grown: list[Row]
    scratch: list[Row]
    """A fixed width of about the grown model's size."""
    search: list[Row]
    """Of each seed, the width with the best validation."""
    search_flops: list[float]

    def gains(self, rows: Sequence[Row]) -> np.ndarray:
        """Return the gains over plain training ``[n]``, in points."""
        plain = np.array([row["test"] for row in self.plain])
        other = np.array([row["test"] for row in rows])
        if self.problem.is_loss:
            return 100.0 * (plain - other) / plain.mean()
        return 100.0 * (other - plain)

    @property
    def flops_share(self) -> np.ndarray:
        """FLOPs of growth relative to those of the search, ``[n]``."""
        return np.array([row["flops"] for row in self.grown]) / np.array(self.search_flops)

    @property
    def margin(self) -> float:
        """The mean gain, plus what may be lost; below zero it is worse than plain training."""
        tolerated = TOLERATED_PERCENT if self.problem.is_loss else TOLERATED_POINTS
        return float(self.gains(self.grown).mean()) + tolerated

    def quantities(self) -> np.ndarray:
        """Return gain, gain of the search, gain of the same size and share of FLOPs, ``[n, K]``."""
        gains = [self.gains(rows) for rows in (self.grown, self.search, self.scratch)]
        return np.stack([*gains, self.flops_share], axis=1)


def compare(rows: Sequence[Row], problem: Problem, arm: str) -> Comparison | None:
    """Return the comparison of the seeds for which all arms are done; None if there are none."""
    found: dict[int, dict[str, Row]] = {}
    for row in rows:
        if row["problem"] == problem.name and "error" not in row:
            found.setdefault(row["seed"], {})[row["arm"]] = row
    kept: list[tuple[Row, Row, Row, Row, float]] = []
    for _, arms in sorted(found.items()):
        widths = [arms.get(f"x{width}") for width in WIDTHS]
        grown = arms.get(arm)
        scratch = grown and arms.get(f"x{grown['details']['scratch']}")
        if grown and scratch and all(widths):
            best = (min if problem.is_loss else max)(widths, key=lambda row: row["validation"])
            total = sum(row["flops"] for row in widths)
            kept.append((widths[0], grown, scratch, best, total))
    return Comparison(problem, *map(list, zip(*kept, strict=True))) if kept else None


def resample(tables: Sequence[np.ndarray], groups: Sequence[str], seed: int = 0) -> np.ndarray:
    """Return means ``[B, K]`` over problems of tables ``[n, K]``.

    Data sets are drawn with all their problems, because models of one set are alike, and then
    the seeds of each problem.
    """
    generator = np.random.default_rng(seed)
    # Of each problem, [B, K] means over resampled seeds.
    means = np.stack(
        [
            table[generator.integers(0, len(table), (N_RESAMPLES, len(table)))].mean(1)
            for table in tables
        ],
        axis=1,
    )
    names = list(dict.fromkeys(groups))
    members = np.array([[group == name for group in groups] for name in names], float)
    drawn = generator.integers(0, len(names), (N_RESAMPLES, len(names)))
    weights = members[drawn].sum(1)
    return np.einsum("bp,bpk->bk", weights, means) / weights.sum(1)[:, None]


def interval(value: float, resampled: np.ndarray, n_groups: int) -> Interval:
    """Return a value with the middle 95% of its resamples, widened for few data sets."""
    low, high = np.quantile(resampled, ENDS)
    wider = expansion(n_groups)
    return Interval(
        value, value + wider * (float(low) - value), value + wider * (float(high) - value), n_groups
    )


def make_table(rows: Sequence[Row], problems: Sequence[Problem], arm: str) -> str:
    """Return a table of all problems in Markdown; a dash where runs are missing."""
    lines = [
        "| problem | model | score | given | grown | search | same size | gain | search's gain "
        "| FLOPs / given | FLOPs / search | parameters | seeds |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for problem in problems:
        found = compare(rows, problem, arm)
        about = f"| {problem.name} | {problem.title} | {problem.metric} |"
        if found is None:
            lines.append(f"{about}{' - |' * 10}")
            continue
        tests = (
            _mean(each, "test") for each in (found.plain, found.grown, found.search, found.scratch)
        )
        scores = (f"{each:.4f}" if problem.is_loss else f"{100 * each:.1f}" for each in tests)
        gain, search = found.gains(found.grown), found.gains(found.search)
        error = gain.std(ddof=1) / len(gain) ** 0.5 if len(gain) > 1 else float("nan")
        cells = (
            *scores,
            f"{gain.mean():+.2f} ± {error:.2f}",
            f"{search.mean():+.2f}",
            f"{_mean(found.grown, 'flops') / _mean(found.plain, 'flops'):.2f}",
            f"{100 * found.flops_share.mean():.0f}%",
            f"{_mean(found.plain, 'parameters'):,.0f} to {_mean(found.grown, 'parameters'):,.0f}",
            str(len(gain)),
        )
        lines.append(f"{about} {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(rows: Sequence[Row], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def make_claims(found: Sequence[Comparison]) -> list[str]:
    """Return what was and was not shown, a sentence for each claim."""
    groups = [each.problem.source for each in found]
    n_groups = len(set(groups))
    tables = [each.quantities() for each in found]
    means = np.mean([table.mean(0) for table in tables], axis=0)
    drawn = resample(tables, groups)
    gain = interval(means[0], drawn[:, 0], n_groups)
    cost = interval(means[3], drawn[:, 3], n_groups)
    same = interval(means[0] - means[2], drawn[:, 0] - drawn[:, 2], n_groups)
    return [
        _claim_plain(found, gain),
        _claim_search(means, drawn, cost, n_groups),
        f"Against a fixed width of about the grown size, trained from scratch: {_points(same)}.",
    ]


def _claim_plain(found: Sequence[Comparison], gain: Interval) -> str:
    worst = min(found, key=lambda each: each.margin)
    n_worse = sum(each.margin < 0.0 for each in found)
    is_shown = gain.is_above_zero and n_worse == 0
    points = float(worst.gains(worst.grown).mean())
    return (
        f"Never worse than plain training: {_verdict(is_shown, gain)}. The mean gain is "
        f"{_points(gain)}; {many(n_worse, 'problem')} of {len(found)} worse by more than "
        f"{TOLERATED_POINTS} points or {TOLERATED_PERCENT:.0f}% of the loss; the worst is "
        f"{worst.problem.name} with {points:+.2f}."
    )


def _claim_search(means: np.ndarray, drawn: np.ndarray, cost: Interval, n_groups: int) -> str:
    start = "As good as a search at a fraction of its cost: "
    ends = f"[{100 * cost.low:.0f}, {100 * cost.high:.0f}]"
    costs = f"It costs {100 * cost.mean:.0f}% {ends} of its FLOPs."
    if means[1] <= 0.0:
        return f"{start}not shown. The search itself gains {means[1]:+.2f} points. {costs}"
    # Where the search hardly gains in a resample, the share of its gain says nothing.
    shares = drawn[:, 0] / np.maximum(drawn[:, 1], 1e-3)
    share = interval(means[0] / means[1], shares, n_groups)
    reaches = share.low >= SHARE_OF_GAIN and cost.high <= SHARE_OF_FLOPS
    on_average = share.mean >= SHARE_OF_GAIN and cost.mean <= SHARE_OF_FLOPS
    verdict = "reached on average" if on_average and not reaches else _verdict(reaches, cost)
    return (
        f"{start}{verdict}. Growth reaches {100 * share.mean:.0f}% "
        f"[{100 * share.low:.0f}, {100 * share.high:.0f}] of the search's gain of "
        f"{means[1]:+.2f} points and is meant to reach {100 * SHARE_OF_GAIN:.0f}%. {costs} "
        f"At most {100 * SHARE_OF_FLOPS:.0f}% is meant."
    )


def _describe_search(found: Sequence[Comparison]) -> str:
    chosen = [row["arm"] for each in found for row in each.search]
    largest = f"x{WIDTHS[-1]}"
    share = chosen.count(largest) / len(chosen)
    return (
        f"The search chose its largest width, {largest}, in {share:.0%} of all runs; where it did, "
        "a wider search might gain more."
    )


def _verdict(is_shown: bool, over: Interval) -> str:
    if not over.is_from_enough:
        return f"not decided, with {many(over.n, 'data set')}"
    return "shown" if is_shown else "not shown"


def _points(found: Interval) -> str:
    return f"{found.mean:+.2f} points [{found.low:+.2f}, {found.high:+.2f}]"


def make_report(rows: Sequence[Row], problems: Sequence[Problem], arm: str, folder: Path) -> str:
    """Write results.md and gains.png, and return the text."""
    found = [each for each in (compare(rows, problem, arm) for problem in problems) if each]
    if not found:
        return f"No problem has all arms with {arm}."
    missing = [each.name for each in problems if each.name not in {f.problem.name for f in found}]
    failed = [row for row in rows if "error" in row and (row["arm"] == arm or row["arm"][0] == "x")]
    parts = [
        f"# Growth on real data that no controller saw: {arm}",
        *make_claims(found),
        make_table(rows, problems, arm),
        EXPLANATION,
        _describe_search(found),
    ]
    if missing:
        parts.append(f"Without results: {', '.join(missing)}.")
    parts += [f"Failed: {row['problem']}, seed {row['seed']}: {row['error']}" for row in failed]
    text = "\n\n".join(parts) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text(text)
    draw(found, folder / "gains.png")
    return text


def draw(found: Sequence[Comparison], path: Path) -> None:
    """Draw gains and FLOPs of growth and of the search, a row for each problem."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ordered = sorted(found, key=lambda each: each.gains(each.search).mean())
    places = np.arange(len(ordered))
    figure, (left, right) = plt.subplots(
        1, 2, sharey=True, figsize=(9, 1.2 + 0.28 * len(ordered)), layout="constrained"
    )
    for label, marker, colour in (("grown", "o", "#1f77b4"), ("search", "s", "#ff7f0e")):
        gains = [each.gains(getattr(each, label)).mean() for each in ordered]
        left.scatter(gains, places, marker=marker, color=colour, label=label)
    plain = [_mean(each.plain, "flops") for each in ordered]
    grown = [_mean(each.grown, "flops") for each in ordered]
    search = [float(np.mean(each.search_flops)) for each in ordered]
    right.scatter(np.divide(grown, plain), places, marker="o", color="#1f77b4")
    right.scatter(np.divide(search, plain), places, marker="s", color="#ff7f0e")
    for axis, start in ((left, 0.0), (right, 1.0)):
        axis.axvline(start, color="#444444", linewidth=1, label="given model, plain training")
        axis.grid(alpha=0.3)
    right.set_xscale("log")
    left.set_yticks(places, [each.problem.name for each in ordered])
    left.set_xlabel("gain over plain training\n(points of accuracy, or percent of the loss)")
    right.set_xlabel("FLOPs relative to plain training")
    left.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)

"""What the runs on real data show: a table, the claims with their intervals, and a figure.

Gains are in points: of accuracy, or percent of the given model's test loss. Shapes: P problems,
n seeds of a problem, K quantities, B resamples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from arms import WIDTHS
from problems import Problem

from esper.formatting import listed, many
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
    def error(self) -> float:
        """The standard error of the mean gain over seeds; NaN for a single one."""
        gains = self.gains(self.grown)
        return float(gains.std(ddof=1)) / len(gains) ** 0.5 if len(gains) > 1 else math.nan

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
        cells = (
            *scores,
            f"{gain.mean():+.2f} ± {found.error:.2f}",
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


@dataclass(frozen=True)
class Intervals:
    """What was measured over all problems."""

    gain: Interval
    """Of growth over plain training, in points."""
    cost: Interval
    """FLOPs of growth relative to those of the search."""
    same_size: Interval
    """Growth minus a fixed width of its size."""
    search_gain: float
    share: Interval | None
    """Of the search's gain; None if it gains nothing."""


def measure(found: Sequence[Comparison]) -> Intervals:
    """Return the means over problems, with their intervals."""
    groups = [each.problem.source for each in found]
    n_groups = len(set(groups))
    tables = [each.quantities() for each in found]
    means = np.mean([table.mean(0) for table in tables], axis=0)
    drawn = resample(tables, groups)
    gain = interval(means[0], drawn[:, 0], n_groups)
    cost = interval(means[3], drawn[:, 3], n_groups)
    same = interval(means[0] - means[2], drawn[:, 0] - drawn[:, 2], n_groups)
    share = None
    if means[1] > 0.0:
        # Where the search hardly gains in a resample, the share of its gain says nothing.
        shares = drawn[:, 0] / np.maximum(drawn[:, 1], 1e-3)
        share = interval(means[0] / means[1], shares, n_groups)
    return Intervals(gain, cost, same, float(means[1]), share)


def make_claims(found: Sequence[Comparison]) -> list[str]:
    """Return what was and was not shown, a paragraph for each claim."""
    over = measure(found)
    is_not_worse, plain = _claim_plain(found, over.gain)
    is_as_good, search = _claim_search(over.share, over.cost, over.search_gain)
    both = _verdict(is_not_worse and is_as_good, over.gain)
    same = _points(over.same_size)
    return [
        plain,
        search,
        f"Both on data that the controller never saw: {both}, with "
        f"{many(len(found), 'problem')} on {many(over.gain.n, 'data set')}.",
        f"Against a fixed width of about the grown size, trained from scratch: {same}.",
        _describe_mean(found),
        _describe_search(found),
    ]


def claim_rows(found: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return the claims for the controller's card (see esper.evidence.model_card)."""
    over, where = measure(found), f"{many(len(found), 'problem')} on real data"
    is_not_worse = _claim_plain(found, over.gain)[0]
    is_better = over.same_size.is_above_zero

    def row(claim: str, against: str, values: Interval, verdict: str, unit: str) -> dict[str, Any]:
        scale = 1.0 if unit == "points" else 100.0
        ends = [scale * values.low, scale * values.high]
        return {
            "claim": f"{claim}, {where}",
            "against": against,
            "result": scale * values.mean,
            "interval": ends,
            "verdict": verdict,
            "unit": unit,
        }

    rows = [
        row(
            "never worse than plain training",
            "the given model, same epochs",
            over.gain,
            "yes" if is_not_worse else "no",
            "points",
        )
    ]
    search = "the best of four widths by validation"
    if over.share is not None:
        verdict = "yes" if over.share.low >= SHARE_OF_GAIN else "no"
        rows.append(row("90% of a search's gain", search, over.share, verdict, "% of its gain"))
    verdict = "yes" if over.cost.high <= SHARE_OF_FLOPS else "no"
    rows.append(row("at most 45% of its FLOPs", search, over.cost, verdict, "% of its FLOPs"))
    verdict = "yes" if is_better else "worse" if over.same_size.high < 0.0 else "no"
    same = "a fixed width of the grown size, from scratch"
    rows.append(row("better than the same size", same, over.same_size, verdict, "points"))
    return rows


def _claim_plain(found: Sequence[Comparison], gain: Interval) -> tuple[bool, str]:
    worse = sorted((each for each in found if each.margin < 0.0), key=lambda each: each.margin)
    is_shown = gain.is_above_zero and not worse
    names = ", ".join(
        f"{each.problem.name} ({each.gains(each.grown).mean():+.2f} ± {each.error:.2f})"
        for each in worse
    )
    return is_shown, (
        f"Never worse than plain training: {_verdict(is_shown, gain)}. The mean gain is "
        f"{_points(gain)}. Problems that lose more than {TOLERATED_POINTS} points or "
        f"{TOLERATED_PERCENT:.0f}% of the loss: {names or 'none'}."
    )


def _claim_search(share: Interval | None, cost: Interval, gain: float) -> tuple[bool, str]:
    start = "As good as a search at a fraction of its cost"
    costs = (
        f"It costs {_percent(cost)} of the search's FLOPs; the aim is at most "
        f"{100 * SHARE_OF_FLOPS:.0f}%."
    )
    if share is None:
        return False, f"{start}: not shown. The search itself gains {gain:+.2f} points. {costs}"
    is_shown = share.mean >= SHARE_OF_GAIN and cost.mean <= SHARE_OF_FLOPS
    is_sure = share.low >= SHARE_OF_GAIN and cost.high <= SHARE_OF_FLOPS
    verdict = _verdict(is_shown, cost)
    if verdict == "shown" and not is_sure:
        verdict = "reached on average, but the intervals do not exclude the opposite"
    return is_shown and is_sure, (
        f"{start}: {verdict}. Growth reaches {_percent(share)} of the search's gain of "
        f"{gain:+.2f} points; the aim is at least {100 * SHARE_OF_GAIN:.0f}%. {costs}"
    )


def _describe_mean(found: Sequence[Comparison]) -> str:
    """Say which problems the mean gain of the search comes from."""
    gains = {each.problem.name: float(each.gains(each.search).mean()) for each in found}
    largest = sorted(gains, key=lambda name: -gains[name])[:3]
    share = sum(gains[name] for name in largest) / max(sum(gains.values()), 1e-9)
    return (
        "Means count every problem alike, and a percent of a loss as a point of accuracy. "
        f"{share:.0%} of the search's gain comes from {listed(largest)}."
    )


def _describe_search(found: Sequence[Comparison]) -> str:
    chosen = [row["arm"] for each in found for row in each.search]
    largest = f"x{WIDTHS[-1]}"
    share = chosen.count(largest) / len(chosen)
    return (
        f"The search chose its largest width, {largest}, in {share:.0%} of all runs; there, "
        "a wider search might gain more."
    )


def _verdict(is_shown: bool, over: Interval) -> str:
    if not over.is_from_enough:
        return f"not decided, with {many(over.n, 'data set')}"
    return "shown" if is_shown else "not shown"


def _percent(found: Interval) -> str:
    return f"{100 * found.mean:.0f}% [{100 * found.low:.0f}, {100 * found.high:.0f}]"


def _points(found: Interval) -> str:
    return f"{found.mean:+.2f} points [{found.low:+.2f}, {found.high:+.2f}]"


def make_report(rows: Sequence[Row], problems: Sequence[Problem], arm: str, folder: Path) -> str:
    """Write results.md, claims.json and gains.png, and return the text."""
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
    ]
    if missing:
        parts.append(f"Without results: {', '.join(missing)}.")
    parts += [f"Failed: {row['problem']}, seed {row['seed']}: {row['error']}" for row in failed]
    text = "\n\n".join(parts) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text(text)
    (folder / "claims.json").write_text(json.dumps(claim_rows(found), indent=1) + "\n")
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
    plain = np.array([_mean(each.plain, "flops") for each in ordered])
    looks: dict[str, dict[str, Any]] = {
        "grown": {"marker": "o", "color": "#1f77b4"},
        "search": {"marker": "s", "facecolors": "none", "edgecolors": "#d95f02"},
    }
    for label, look in looks.items():
        gains = [each.gains(getattr(each, label)).mean() for each in ordered]
        left.scatter(gains, places, label=label, **look)
    grown = np.array([_mean(each.grown, "flops") for each in ordered])
    search = np.array([np.mean(each.search_flops) for each in ordered])
    right.scatter(grown / plain, places, **looks["grown"])
    right.scatter(search / plain, places, **looks["search"])
    for axis, start in ((left, 0.0), (right, 1.0)):
        axis.axvline(start, color="#444444", linewidth=1, label="given model, plain training")
        axis.grid(alpha=0.3)
    right.set_xscale("log")
    right.set_xticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])
    left.set_yticks(places, [each.problem.name for each in ordered])
    left.set_xlabel("gain over plain training\n(points of accuracy, or percent of the loss)")
    right.set_xlabel("FLOPs relative to plain training")
    left.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)

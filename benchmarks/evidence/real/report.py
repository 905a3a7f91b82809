"""What the runs on real data show: score, seconds and parameters of every arm, and the aims.

Gains are in points: of accuracy, or percent of the given model's test loss. Shapes: P problems,
n seeds of a problem, K quantities, B resamples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from arms import WIDTHS
from problems import Problem

from esper.formatting import many
from esper.statistics import ENDS, Interval, expansion

N_RESAMPLES = 10_000
TOLERANCE = 0.01
"""How far the smaller of two sizes may be behind, as `esper.grow` takes it by default."""
LARGE = 100_000
"""Parameters of a large model."""
EXPLANATION = """\
Every arm keeps its best epoch on validation and is tested once, on the same split, with the same
batches, optimizer and epochs. Seconds are CPU seconds of one thread, relative to those of the given
model on the same problem; parameters are relative to the given model's. Means over problems count
every problem alike: of gains and seconds they are arithmetic (geometric means of seconds in
brackets), of parameters geometric. Search: the best of the four widths by validation; its seconds
are their sum. Two sizes: x1 if its validation is within 1 point, or 1% of the loss, of that of x4,
else x4. Half the epochs: the given model's best of the first half. A width suffices if its mean
test is within 1 point, or 1% of the loss, of that of the best width. Intervals resample data sets
with all their problems, and seeds. Seconds are of the seeds of which all arms were timed side by
side.\
"""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Arm:
    """The outcomes of one arm on one problem, ``[n]`` each."""

    test: np.ndarray
    seconds: np.ndarray
    """NaN for seeds whose arms were not all timed side by side."""
    parameters: np.ndarray


@dataclass(frozen=True)
class Comparison:
    """All arms on one problem, for the seeds of which all are done."""

    problem: Problem
    arms: dict[str, Arm]

    @property
    def n_seeds(self) -> int:
        """The number of seeds."""
        return len(self.arms["x1"].test)

    def gain(self, arm: str, over: str = "x1") -> np.ndarray:
        """Return the gain of an arm over another one, ``[n]``, in points."""
        own, other = self.arms[arm].test, self.arms[over].test
        if self.problem.is_loss:
            return 100.0 * (other - own) / self.arms["x1"].test.mean()
        return 100.0 * (own - other)

    def times(self, arm: str, over: str = "x1") -> float:
        """Return the seconds of an arm relative to those of another one; NaN if not timed."""
        own, other = self.arms[arm].seconds, self.arms[over].seconds
        timed = np.isfinite(own + other)
        return float(own[timed].mean() / other[timed].mean()) if timed.any() else math.nan

    def size(self, arm: str, over: str = "x1") -> float:
        """Return the parameters of an arm relative to those of another one."""
        ratios = self.arms[arm].parameters / self.arms[over].parameters
        return float(np.exp(np.log(ratios).mean()))

    @property
    def sufficient(self) -> str:
        """The smallest width whose mean test is within a point of the best width's."""
        gains = {f"x{width}": float(self.gain(f"x{width}").mean()) for width in WIDTHS}
        return next(arm for arm, gain in gains.items() if max(gains.values()) - gain <= 1.0)


def compare(rows: Sequence[Row], problem: Problem, arms: Sequence[str]) -> Comparison | None:
    """Return the comparison of the seeds for which all arms are done; None if there are none."""
    by_seed: dict[int, dict[str, Row]] = {}
    for row in rows:
        if row["problem"] == problem.name and "error" not in row:
            by_seed.setdefault(row["seed"], {})[row["arm"]] = row
    names = [*(f"x{width}" for width in WIDTHS), *arms]
    whole = [own for _, own in sorted(by_seed.items()) if all(name in own for name in names)]
    if not whole:
        return None
    found = {name: _arm([own[name] for own in whole]) for name in names}
    widths = [[own[f"x{width}"] for width in WIDTHS] for own in whole]
    found["search"] = _chosen(widths, [_best(each, problem) for each in widths])
    pairs = [[own["x1"], own["x4"]] for own in whole]
    found["two sizes"] = _chosen(pairs, [_smaller(*pair, problem) for pair in pairs])
    half = [own["x1"]["details"] for own in whole]
    found["half the epochs"] = Arm(
        np.array([each["half"] for each in half]),
        np.array([each["half_seconds"] for each in half], float),
        found["x1"].parameters,
    )
    return Comparison(problem, found)


def _arm(rows: Sequence[Row]) -> Arm:
    names = ("test", "seconds", "parameters")
    return Arm(*(np.array([row[name] for row in rows], float) for name in names))


def _chosen(trained: Sequence[Sequence[Row]], chosen: Sequence[Row]) -> Arm:
    """Return the arm that trains several models for each seed and takes one."""
    seconds = np.sum([_arm(rows).seconds for rows in trained], axis=1)
    own = _arm(chosen)
    return Arm(own.test, seconds, own.parameters)


def _best(rows: Sequence[Row], problem: Problem) -> Row:
    return (min if problem.is_loss else max)(rows, key=lambda row: row["validation"])


def _smaller(small: Row, large: Row, problem: Problem) -> Row:
    """Return the smaller of two models unless its validation is worse by more than a point."""
    lead = large["validation"] - small["validation"]
    if problem.is_loss:
        lead = -lead / min(large["validation"], small["validation"])
    return large if lead > TOLERANCE else small


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


def mean_over(
    found: Sequence[Comparison], values: Callable[[Comparison], np.ndarray], *, is_log: bool = False
) -> Interval:
    """Return the mean over problems of values of each seed, or their geometric mean."""
    tables = [(np.log(values(each)) if is_log else values(each))[:, None] for each in found]
    groups = [each.problem.source for each in found]
    mean = float(np.mean([table.mean() for table in tables]))
    own = interval(mean, resample(tables, groups)[:, 0], len(set(groups)))
    if not is_log:
        return own
    return Interval(*(float(np.exp(end)) for end in (own.mean, own.low, own.high)), own.n)


def make_table(
    found: Sequence[Comparison], arm: str, others: Mapping[str, Sequence[Comparison]]
) -> str:
    """Return the mean of every arm in Markdown: gain, seconds and parameters.

    Others are compared with all arms on the problems and seeds for which they are done.
    """
    lines = [
        "| arm | gain over the given model | minus four times | seconds | parameters |",
        "|---|---:|---:|---:|---:|",
    ]
    names = ["x1", "half the epochs", "x2", "x4", "x8", "search", "two sizes", arm]
    lines += [_table_row(found, name, TITLES.get(name, name)) for name in names]
    for name, own in others.items():
        seeds = many(max(each.n_seeds for each in own), "seed")
        where = f"{many(len(own), 'problem')}, {seeds}"
        lines += [_table_row(own, name, f"{name} ({where})")]
        lines += [_table_row(own, arm, f"`esper.grow` on the same ({where})")]
    return "\n".join(lines)


def _table_row(found: Sequence[Comparison], name: str, title: str) -> str:
    gain = mean_over(found, lambda each: each.gain(name))
    over = mean_over(found, lambda each: each.gain(name, "x4"))
    seconds = np.array([each.times(name) for each in found])
    times = f"{seconds.mean():.2f}x ({np.exp(np.log(seconds).mean()):.2f}x)"
    times = times if np.isfinite(seconds).all() else "not timed"
    size = float(np.exp(np.mean([np.log(each.size(name)) for each in found])))
    return f"| {title} | {_points(gain)} | {_points(over)} | {times} | {size:.2f}x |"


TITLES = {
    "x1": "the given model",
    "half the epochs": "the given model, half the epochs",
    "x2": "twice the width, from scratch",
    "x4": "four times",
    "x8": "eight times",
    "search": "search over the four widths",
    "two sizes": "two sizes, x1 and x4",
    "race": "**`esper.grow`**",
}


def make_aims(found: Sequence[Comparison], arm: str) -> str:
    """Return what the default has to reach, and whether it does, as a table in Markdown."""
    over = mean_over(found, lambda each: each.gain(arm, "x4"))
    worse = [each for each in found if _is_worse(each.gain(arm, "x4"))]
    gains = [float(np.mean([each.gain(name).mean() for each in found])) for name in (arm, "search")]
    cost = sum(each.times(arm) for each in found) / sum(each.times("search") for each in found)
    two = mean_over(found, lambda each: each.gain(arm, "two sizes"))
    faster = mean_over(found, _ratio("seconds", arm, "two sizes"), is_log=True)
    smaller = mean_over(found, _ratio("parameters", arm, "two sizes"), is_log=True)
    eight = mean_over(found, _ratio("seconds", arm, "x8"), is_log=True)
    suffices = [each.size(arm) for each in found if each.sufficient == "x1"]
    others = [each.size(arm, each.sufficient) for each in found if each.sufficient != "x1"]
    large = [each for each in found if each.arms["x1"].parameters.mean() >= LARGE]
    own = [float(np.nanmean(each.arms[arm].seconds / _own_seconds(each, arm))) for each in large]
    names = ", ".join(f"{e.problem.name} ({e.gain(arm, 'x4').mean():+.1f})" for e in worse)
    better = two.low >= -0.5 and (faster.high < 1.0 or smaller.high < 1.0)
    rows = [
        ("score against four times the width", "above -0.5", _points(over), over.low > -0.5),
        (
            "problems worse than it beyond a point and their error",
            "none",
            names or "none",
            not worse,
        ),
        (
            "share of the search's gain",
            "95%",
            f"{gains[0] / gains[1]:.0%}",
            gains[0] >= 0.95 * gains[1],
        ),
        ("seconds of the search's", "40%", f"{cost:.0%}", cost <= 0.4),
        (
            "against two sizes: score; seconds; parameters",
            "not below; less of one",
            f"{_points(two)}; {_times(faster)}; {_times(smaller)}",
            better,
        ),
        (
            "parameters where the given model suffices, median",
            "1.5x",
            _median(suffices),
            _at_most(suffices, 1.5),
        ),
        (
            "elsewhere, of the smallest sufficient width, median",
            "2x",
            _median(others),
            _at_most(others, 2.0),
        ),
        (
            "seconds of eight times the width, geometric mean",
            "1x",
            _times(eight),
            eight.mean <= 1.0,
        ),
        (
            "seconds of training its own final size, from 100k parameters, mean",
            "1.2x",
            f"{np.mean(own):.2f}x" if own else "no such model",
            bool(own) and float(np.mean(own)) <= 1.2,
        ),
    ]
    lines = ["| aim | reach | measured | reached |", "|---|---|---|---|"]
    lines += [f"| {a} | {b} | {c} | {'yes' if d else '**no**'} |" for a, b, c, d in rows]
    return "\n".join(lines)


def _ratio(what: str, arm: str, over: str) -> Callable[[Comparison], np.ndarray]:
    def ratio(each: Comparison) -> np.ndarray:
        found = getattr(each.arms[arm], what) / getattr(each.arms[over], what)
        return found[np.isfinite(found)]

    return ratio


def _own_seconds(each: Comparison, arm: str) -> np.ndarray:
    """Return the seconds of the width nearest in size to each model of an arm, ``[n]``."""
    widths = [each.arms[f"x{width}"] for width in WIDTHS]
    sizes = np.log(np.stack([width.parameters for width in widths]))
    nearest = np.abs(sizes - np.log(each.arms[arm].parameters)).argmin(0)
    return np.stack([width.seconds for width in widths])[nearest, np.arange(len(nearest))]


def _is_worse(gains: np.ndarray) -> bool:
    """Return whether a loss is above a point by more than its standard error."""
    error = float(gains.std(ddof=1)) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
    return float(gains.mean()) + error < -1.0


def _median(values: Sequence[float]) -> str:
    return f"{np.median(values):.2f}x, {many(len(values), 'problem')}" if values else "no problem"


def _at_most(values: Sequence[float], limit: float) -> bool:
    return bool(values) and float(np.median(values)) <= limit


def _points(found: Interval) -> str:
    return f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def _times(found: Interval) -> str:
    return f"{found.mean:.2f}x [{found.low:.2f}, {found.high:.2f}]"


def make_problem_table(found: Sequence[Comparison], arms: Sequence[str]) -> str:
    """Return the test score, seconds and parameters on each problem in Markdown."""
    names = ["x1", "x2", "x4", "x8", "search", "two sizes", *arms]
    lines = [
        f"| problem | model | score | {' | '.join(names)} | CPU s x1, x8, {', '.join(arms)} "
        f"| parameters x1, {', '.join(arms)} | seeds |",
        f"|---|---|---|{'---:|' * len(names)}---|---|---:|",
    ]
    for each in found:
        scale, digits = (1.0, 4) if each.problem.is_loss else (100.0, 1)
        scores = [f"{scale * each.arms[name].test.mean():.{digits}f}" for name in names]
        times = [f"{np.nanmean(each.arms[name].seconds):.1f}" for name in ("x1", "x8", *arms)]
        sizes = [f"{each.arms[name].parameters.mean():,.0f}" for name in ("x1", *arms)]
        lines.append(
            f"| {each.problem.name} | {each.problem.title} | {each.problem.metric} | "
            f"{' | '.join(scores)} | {', '.join(times)} | {', '.join(sizes)} | {each.n_seeds} |"
        )
    return "\n".join(lines)


def claim_rows(found: Sequence[Comparison], arm: str) -> list[dict[str, Any]]:
    """Return the claims for the controller's card (see esper.evidence.model_card)."""
    where = f"{many(len(found), 'problem')} on real data"
    rows: list[dict[str, Any]] = []
    for title, over in (("the given model", "x1"), ("four times the width", "x4")):
        own = mean_over(found, lambda each, over=over: each.gain(arm, over))
        verdict = "yes" if own.is_above_zero else "worse" if own.is_below_zero else "no"
        rows.append(
            {
                "claim": f"better than {title} from scratch, {where}",
                "against": f"{title}, same epochs",
                "result": own.mean,
                "interval": [own.low, own.high],
                "verdict": verdict,
                "unit": "points",
            }
        )
    return rows


def make_report(
    rows: Sequence[Row], problems: Sequence[Problem], arms: Sequence[str], folder: Path
) -> str:
    """Write results.md, claims.json and gains.png, and return the text."""
    arm = arms[0]
    found = _compare_all(rows, problems, [arm])
    if not found:
        return f"No problem has all widths and {arm}."
    others = {name: _compare_all(rows, problems, [arm, name]) for name in arms[1:]}
    others = {name: own for name, own in others.items() if own}
    missing = [each.name for each in problems if each.name not in {f.problem.name for f in found}]
    seeds = sorted({each.n_seeds for each in found})
    sets = {each.problem.source for each in found}
    fresh = [each for each in found if each.problem.is_fresh]
    parts = [
        "# The right size on real data",
        f"{many(len(found), 'problem')} on {many(len(sets), 'data set')}, with "
        f"{' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} seeds each. No controller "
        f"learned on them. The rule of the race was chosen on curves of {len(found) - len(fresh)} "
        f"of them; {len(fresh)} were added afterwards.",
        make_table(found, arm, others),
        "## What `esper.grow` is to reach, at its defaults",
        make_aims(found, arm),
    ]
    if 0 < len(fresh) < len(found):
        names = ", ".join(each.problem.name for each in fresh)
        parts += [
            "## The problems that were added after the rule was chosen",
            f"{names[0].upper()}{names[1:]}.",
            make_table(fresh, arm, {}),
            make_aims(fresh, arm),
        ]
    parts += [
        "## Each problem",
        make_problem_table(found, [arm]),
        EXPLANATION,
    ]
    if missing:
        parts.append(f"Without results: {', '.join(missing)}.")
    failed = [row for row in rows if "error" in row]
    parts += [f"Failed: {row['problem']}, seed {row['seed']}: {row['error']}" for row in failed]
    text = "\n\n".join(parts) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text(text)
    claims = [claim for name, own in others.items() for claim in claim_rows(own, name)]
    (folder / "claims.json").write_text(json.dumps(claims, indent=1) + "\n")
    draw(found, arm, folder / "gains.png")
    return text


def _compare_all(
    rows: Sequence[Row], problems: Sequence[Problem], arms: Sequence[str]
) -> list[Comparison]:
    return [each for each in (compare(rows, problem, arms) for problem in problems) if each]


def draw(found: Sequence[Comparison], arm: str, path: Path) -> None:
    """Draw gains and seconds of `esper.grow` and of fixed sizes, a row for each problem."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ordered = sorted(found, key=lambda each: each.gain("search").mean())
    places = np.arange(len(ordered))
    figure, (left, right) = plt.subplots(
        1, 2, sharey=True, figsize=(9, 1.2 + 0.28 * len(ordered)), layout="constrained"
    )
    looks: dict[str, dict[str, Any]] = {
        arm: {"marker": "o", "color": "#1f77b4", "label": "esper.grow"},
        "search": {"marker": "s", "facecolors": "none", "edgecolors": "#d95f02", "label": "search"},
        "x4": {"marker": "x", "color": "#444444", "label": "four times the width"},
    }
    for name, look in looks.items():
        left.scatter([each.gain(name).mean() for each in ordered], places, **look)
        right.scatter([each.times(name) for each in ordered], places, **look)
    for axis, start in ((left, 0.0), (right, 1.0)):
        axis.axvline(start, color="#444444", linewidth=1)
        axis.grid(alpha=0.3)
    right.set_xscale("log")
    right.set_xticks([1, 3, 10, 30], ["1", "3", "10", "30"])
    left.set_yticks(places, [each.problem.name for each in ordered])
    left.set_xlabel("gain over plain training\n(points of accuracy, or percent of the loss)")
    right.set_xlabel("CPU seconds relative to plain training")
    left.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)

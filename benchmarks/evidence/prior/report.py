"""What the arms did on the prior's held-out tasks: tables, a figure and what they show.

Shapes: R = training runs, N = tasks, C = treatments, T = stopping shares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blocks import ABLATIONS, PLAIN, RANDOM, STOPS, allowed_stops, families, make_jobs, run_price
from headroom import HindsightScores, choose_by_luck, choose_for_each

from esper.arrays import Floats
from esper.environment.draws import Purpose
from esper.errors import EvidenceError
from esper.formatting import listed, many, points, probability
from esper.statistics import (
    Interval,
    holm,
    mean_interval,
    nested_interval,
    p_value,
    paired_differences,
)
from esper.storage.files import write_atomic

LEVEL = 0.05
TUNED = ("fixed", "heuristic", "progressive")
LABELS = {
    "learned": "learned controller",
    "fixed": "tuned fixed schedule",
    "heuristic": "tuned heuristic",
    "progressive": "tuned progressive growth",
    "no-growth": "no growth",
    "random": "random growth",
    "shuffled": "itself, shuffled observations",
    "wrong task": "itself, another task's actions",
}
OTHERS = tuple(LABELS)[1:]
CLAIMS = {
    "It adapts": ("fixed", "heuristic", "progressive"),
    "It uses what it sees": ABLATIONS,
}
"""What is claimed, and the arms that it must be above at every price."""
ALL = "all"
"""Stands for the mean over all prices."""


class Blocks:
    """The results of blocks of tasks, as their files hold them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(
        self, purpose: Purpose, n_tasks: int, family: str, name: str, arm: str, price: float = 0.0
    ) -> dict[str, Any] | None:
        """Return the columns of an arm on so many tasks; None if a block is missing."""
        columns: dict[str, list[Any]] = {}
        for job in make_jobs(purpose, n_tasks, family, name, price):
            path = job.path(self._folder, arm)
            if not path.exists():
                return None
            row = json.loads(path.read_text())
            for key, values in row.items():
                if isinstance(values, list):
                    columns.setdefault(key, []).extend(values)
        return {key: np.array(values) for key, values in columns.items()}


@dataclass(frozen=True)
class Choice:
    """A treatment that was chosen for a price, and when it stops."""

    name: str
    stop: int
    """Index of the share of the budget."""

    @property
    def words(self) -> str:
        """The treatment in words."""
        share = STOPS[self.stop]
        return self.name if share == 1.0 else f"{self.name}; stop at {share:.0%}"


def choose_treatments(
    blocks: Blocks, prices: Sequence[float], n_tuning: int
) -> dict[tuple[str, float], Choice]:
    """Return the treatment of each family with the best mean return on tuning tasks, by price."""
    chosen: dict[tuple[str, float], Choice] = {}
    for family in TUNED:
        for price in prices:
            at = run_price(family, price)
            found = {
                name: blocks.read("tuning", n_tuning, family, name, family, at)
                for name in families()[family]
            }
            if not all(found.values()):
                raise EvidenceError(
                    f"the {family} treatments have not been tuned; run without --report."
                )
            chosen[family, price] = best_choice(found, price)  # type: ignore[arg-type]
    return chosen


def best_choice(found: Mapping[str, Mapping[str, Any]], price: float) -> Choice:
    """Return the treatment and stopping share with the best mean return."""
    names = list(found)
    means = np.stack(
        [(found[name]["score"] - price * found[name]["flops"]).mean(0) for name in names]
    )
    allowed = np.arange(means.shape[1])[allowed_stops(price)]
    best, place = np.unravel_index(means[:, allowed].round(9).argmax(), (len(names), len(allowed)))
    return Choice(names[int(best)], int(allowed[place]))


@dataclass(frozen=True, eq=False)
class ArmResults:
    """The results of an arm at a price, ``[R, N]``."""

    score: Floats
    flops: Floats
    setting: str = ""

    @property
    def n_tasks(self) -> int:
        """Number of tasks."""
        return self.score.shape[1]

    def returns(self, price: float) -> Floats:
        """Return scores minus what FLOPs cost."""
        return self.score - price * self.flops


Results = dict[float, dict[str, ArmResults]]
"""The arms at each price."""


def read_results(
    blocks: Blocks,
    *,
    controllers: Sequence[str],
    prices: Sequence[float],
    n_tasks: int,
    n_ablated: int,
    chosen: Mapping[tuple[str, float], Choice],
) -> Results:
    """Return all arms whose blocks are complete; ablations have the first tasks only."""
    results: Results = {}
    for price in prices:
        arms: dict[str, ArmResults] = {}
        for arm in ("learned", *ABLATIONS):
            n_arm = n_ablated if arm in ABLATIONS else n_tasks
            found = [
                blocks.read("evaluation", n_arm, "learned", name, arm, price)
                for name in controllers
            ]
            if found and all(found):
                columns = {
                    key: np.stack([one[key][:, -1] for one in found if one])
                    for key in ("score", "flops")
                }
                arms[arm] = ArmResults(columns["score"], columns["flops"])
        picked = {family: chosen[family, price] for family in TUNED}
        last = len(STOPS) - 1
        picked |= {"no-growth": Choice(PLAIN, last), "random": Choice(RANDOM, last)}
        for arm, choice in picked.items():
            family = "fixed" if arm == "no-growth" else arm
            at = run_price(family, price)
            one = blocks.read("evaluation", n_tasks, family, choice.name, family, at)
            if one:
                score, flops = (one[key][None, :, choice.stop] for key in ("score", "flops"))
                arms[arm] = ArmResults(score, flops, choice.words)
        results[price] = arms
    return results


@dataclass(frozen=True)
class Comparison:
    """The learned controller's return minus another arm's, at a price or over all."""

    arm: str
    price: float | str
    difference: Interval
    p: float
    corrected_p: float

    @property
    def verdict(self) -> str:
        """What is shown."""
        if self.corrected_p >= LEVEL or not self.difference.excludes_zero:
            return "not shown"
        return "above" if self.difference.mean > 0.0 else "below"


def compare(results: Results, own: str = "learned") -> list[Comparison]:
    """Return the comparisons of an arm with all others, corrected for their number.

    An arm that ran on the first tasks only is compared on those.
    """
    differences: dict[tuple[str, float | str], Floats] = {}
    for arm in OTHERS:
        by_price = {
            price: paired_differences(
                arms[own].returns(price)[:, : arms[arm].n_tasks], arms[arm].returns(price)
            )
            for price, arms in results.items()
            if own in arms and arm in arms
        }
        differences |= {(arm, price): found for price, found in by_price.items()}
        if len(by_price) == len(results) > 1:
            differences[arm, ALL] = np.mean(list(by_price.values()), axis=0)
    p_values = [p_value(found) for found in differences.values()]
    return [
        Comparison(arm, price, nested_interval(found), p, corrected)
        for ((arm, price), found), p, corrected in zip(
            differences.items(), p_values, holm(p_values), strict=True
        )
    ]


@dataclass(frozen=True)
class HeadroomRow:
    """How much better the best schedule of each task is than the best one for all."""

    price: float
    kind: str
    n_tasks: int
    own: Interval
    """The schedule of each task chosen by its validation score, measured on the test split."""
    lucky: Interval
    """The same, chosen by the test score itself."""
    by_kind: Interval
    """The best schedule for each kind of problem, chosen on other tasks of the kind."""


def measure_headroom(
    found: Mapping[str, Mapping[str, Any]], best: Choice, price: float
) -> list[HeadroomRow]:
    """Return the headroom over a schedule for all tasks, of all kinds together and of each."""
    names, first = list(found), next(iter(found.values()))
    judge, chooser = (
        np.stack([found[name][key] - price * found[name]["flops"] for name in names])
        for key in ("score", "validation")
    )
    fixed = judge[names.index(best.name), :, best.stop]
    judge, chooser = (each[:, :, allowed_stops(price)] for each in (judge, chooser))
    scores = HindsightScores(chooser=chooser, judge=judge)
    gains = {
        "own": choose_for_each(scores) - fixed,
        "lucky": choose_by_luck(scores) - fixed,
        "by_kind": choose_by_group(judge, first["kind"]) - fixed,
    }
    kinds: dict[str, Any] = {ALL: np.ones(len(fixed), np.bool_)}
    kinds |= {kind: first["kind"] == kind for kind in dict.fromkeys(sorted(first["kind"]))}
    return [
        HeadroomRow(
            price=price,
            kind=kind,
            n_tasks=int(chosen.sum()),
            **{name: mean_interval(gain[chosen]) for name, gain in gains.items()},
        )
        for kind, chosen in kinds.items()
    ]


def choose_by_group(judge: Floats, groups: Any, *, seed: int = 0) -> Floats:
    """Return the return ``[N]`` with the best setting for each task's group.

    The setting is chosen on the other half of the group's tasks; a group of one task gets that of
    all others.

    Args:
        judge: ``[C, N, T]`` returns of all settings.
        groups: ``[N]`` the group of each task.
        seed: Determines the halves.
    """
    flat = judge.transpose(0, 2, 1).reshape(-1, judge.shape[1])
    found, rng = np.zeros(flat.shape[1]), np.random.default_rng(seed)
    for group in sorted(set(groups.tolist())):
        tasks = rng.permutation(np.flatnonzero(groups == group))
        halves = tasks[: len(tasks) // 2], tasks[len(tasks) // 2 :]
        for half, other in (halves, halves[::-1]):
            if len(half):
                seen = other if len(other) else np.setdiff1d(np.arange(flat.shape[1]), half)
                found[half] = flat[flat[:, seen].mean(1).argmax(), half]
    return found


def write_report(
    blocks: Blocks,
    folder: Path,
    *,
    controllers: Sequence[str],
    prices: Sequence[float],
    n_tasks: int,
    n_tuning: int,
    n_ablated: int,
    n_headroom: int,
) -> None:
    """Write results.md, claims.json, results.json and the figure, and print the report."""
    chosen = choose_treatments(blocks, prices, n_tuning)
    results = read_results(
        blocks,
        controllers=controllers,
        prices=prices,
        n_tasks=n_tasks,
        n_ablated=n_ablated,
        chosen=chosen,
    )
    comparisons = compare(results)
    schedules = {
        name: blocks.read("evaluation", n_headroom, "fixed", name, "fixed")
        for name in families()["fixed"]
    }
    headroom: list[HeadroomRow] = []
    if all(schedules.values()):
        for price in prices:
            headroom += measure_headroom(schedules, chosen["fixed", price], price)  # type: ignore[arg-type]
    kinds = _kinds(blocks, n_tasks)
    parts = [
        "# Controllers on held-out tasks of the prior",
        _describe_setting(controllers, n_tasks, n_tuning, prices),
        *make_claims(comparisons, results),
        *_section("Learned controller minus each arm", comparison_table(comparisons)),
        *_section("Return of every arm", arm_table(results)),
        *_section("By kind of problem", kind_table(results, kinds)),
        *_section("Headroom", headroom_table(headroom), HEADROOM_NOTE if headroom else ""),
    ]
    text = "\n\n".join(part for part in parts if part) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "results.md", text)
    write_atomic(folder / "claims.json", json.dumps(claim_rows(comparisons), indent=1) + "\n")
    write_atomic(folder / "results.json", json.dumps(_to_json(results, kinds, controllers)) + "\n")
    if comparisons:
        draw(comparisons, folder / "differences.png")
    print(text)


def claim_rows(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return the claims over all prices for the card (see esper.evidence.model_card)."""
    names = {arm: claim for claim, arms in CLAIMS.items() for arm in arms}
    verdicts = {"above": "yes", "below": "worse", "not shown": "no"}
    return [
        {
            "claim": f"{names[one.arm][3:]}, held-out random tasks at four prices",
            "against": LABELS[one.arm],
            "result": 100.0 * one.difference.mean,
            "interval": [100.0 * one.difference.low, 100.0 * one.difference.high],
            "verdict": verdicts[one.verdict],
            "unit": "points",
        }
        for one in comparisons
        if one.price == ALL and one.arm in names
    ]


def _kinds(blocks: Blocks, n_tasks: int) -> Any:
    """Return the kind of problem of each task; None if plain training has not been run."""
    found = blocks.read("evaluation", n_tasks, "fixed", PLAIN, "fixed")
    return None if found is None else found["kind"]


def _section(title: str, *parts: str) -> list[str]:
    return [f"## {title}", *parts] if parts[0] else []


def _describe_setting(
    controllers: Sequence[str], n_tasks: int, n_tuning: int, prices: Sequence[float]
) -> str:
    who = listed(list(controllers)) if controllers else "none yet"
    return (
        f"Controllers: {who}. {many(n_tasks, 'task')} that nothing was trained or chosen on, the "
        "same for every arm; each has its own problem, host, learning rate and budget of 8 to 64 "
        "epochs. The epoch with the best validation score counts for every arm and is scored on "
        "the test split. The return is that score minus price times FLOPs, in units of the host's "
        "plain training. Treatments, and the share of the budget at which they stop, were chosen "
        f"for each price on {many(n_tuning, 'other task')}; at price 0 every host trains to the "
        "end, as the task demands of all arms. Prices: "
        f"{', '.join(f'{price:g}' for price in prices)}. A point is 0.01 of the score: accuracy, "
        "or the share of the error that is removed."
    )


def make_claims(comparisons: Sequence[Comparison], results: Results) -> list[str]:
    """Return a sentence for each claim: whether it is shown, and where it is not."""
    if not comparisons:
        return ["No learned controller was evaluated; this report is about treatments alone."]
    n_runs = max(arms["learned"].score.shape[0] for arms in results.values() if "learned" in arms)
    sentences: list[str] = []
    for claim, arms in CLAIMS.items():
        asked = [one for one in comparisons if one.arm in arms and one.price != ALL]
        lacking = [one for one in asked if one.verdict != "above"]
        missing = len(arms) * len(results) - len(asked)
        where = "; ".join(
            f"{LABELS[one.arm]} at price {one.price:g}: {points(one.difference)}"
            + (" (below)" if one.verdict == "below" else "")
            for one in lacking
        )
        verdict = "shown" if asked and not lacking and not missing else "not shown"
        against = listed([f"the {LABELS[arm]}".replace("the itself", "itself") for arm in arms])
        words = f"{claim}: {verdict}. The learned controller is above {against} in "
        words += f"{len(asked) - len(lacking)} of {len(arms) * len(results)} comparisons"
        words += f". Not above: {where}" if where else ""
        sentences.append(
            f"{words}. {many(missing, 'comparison')} missing." if missing else f"{words}."
        )
    scope = f"Intervals and p-values are over {many(n_runs, 'training run')} and all tasks, paired "
    scope += f"by task; p is Holm's over all {len(comparisons)} comparisons in the table."
    few = {arms[arm].n_tasks for arms in results.values() for arm in ABLATIONS if arm in arms}
    scope += "".join(f" Ablations ran on the first {many(n, 'task')}." for n in sorted(few))
    if n_runs == 1:
        scope += " With a single training run they say nothing about other runs."
    return [*sentences, scope]


def comparison_table(comparisons: Sequence[Comparison]) -> str:
    """Return the comparisons as a table; empty without any."""
    if not comparisons:
        return ""
    rows = [
        "| against | price | difference | p | corrected p | shown |",
        "|---|---|---|---|---|---|",
    ]
    for one in comparisons:
        price = one.price if isinstance(one.price, str) else f"{one.price:g}"
        p, corrected = probability(one.p), probability(one.corrected_p)
        rows.append(
            f"| {LABELS[one.arm]} | {price} | {points(one.difference)} | {p} | {corrected} | "
            f"{one.verdict} |"
        )
    return "\n".join(rows)


def arm_table(results: Results) -> str:
    """Return the mean return, score and FLOPs of each arm at each price."""
    rows = ["| arm | price | return | score | FLOPs | setting |", "|---|---|---|---|---|---|"]
    for arm in LABELS:
        for price, arms in results.items():
            if arm in arms:
                one = arms[arm]
                mean = nested_interval(one.returns(price)).text(signed=False)
                rows.append(
                    f"| {LABELS[arm]} | {price:g} | {mean} | {one.score.mean():.3f} | "
                    f"{one.flops.mean():.2f} | {one.setting} |"
                )
    return "\n".join(rows) if len(rows) > 2 else ""


def kind_table(results: Results, kinds: Any) -> str:
    """Return the learned controller minus the tuned schedule by kind of problem and price."""
    prices = [price for price, arms in results.items() if {"learned", "fixed"} <= set(arms)]
    if not prices or kinds is None:
        return ""
    rows = [
        "Learned controller minus the tuned fixed schedule, in points; not corrected, to describe "
        "and not to claim.",
        "",
        f"| kind | tasks | {' | '.join(f'price {price:g}' for price in prices)} |",
        f"|---|---|{'---|' * len(prices)}",
    ]
    for kind in sorted(set(kinds.tolist())):
        chosen, cells = kinds == kind, list[str]()
        for price in prices:
            arms = results[price]
            own, other = (arms[arm].returns(price)[:, chosen] for arm in ("learned", "fixed"))
            cells.append(_short(nested_interval(paired_differences(own, other))))
        rows.append(f"| {kind} | {chosen.sum()} | {' | '.join(cells)} |")
    return "\n".join(rows)


HEADROOM_NOTE = (
    "Headroom is what a controller could gain over the tuned fixed schedule by choosing, for each "
    "task, among the same schedules and stopping shares. *Own* chooses by the validation score "
    "and measures on the test split, with the weight of a task's own scores tuned on other tasks. "
    "It is biased downward, because the validation score that chooses is noisy, and upward, "
    "because both scores are of the same training: luck in weights and batches that no controller "
    "could foresee counts as headroom. *Luck* chooses by the test score itself and is an upper "
    "bound for these schedules. *By kind* knows only the kind of problem and is chosen on other "
    "tasks. A controller may also do what no schedule here does, so these are no bounds on "
    "learning. Rows of few tasks tell little."
)


def headroom_table(rows: Sequence[HeadroomRow]) -> str:
    """Return the headroom by price and kind, in points, and where none is shown."""
    if not rows:
        return ""
    lines = ["| price | kind | tasks | own | luck | by kind |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {row.price:g} | {row.kind} | {row.n_tasks} | {_short(row.own)} | {_short(row.lucky)} | "
        f"{_short(row.by_kind)} |"
        for row in rows
    ]
    none = [f"{row.kind} at {row.price:g}" for row in rows if not row.own.is_above_zero]
    lines += ["", f"No headroom is shown (own): {', '.join(none) or 'nowhere'}."]
    return "\n".join(lines)


def _short(interval: Interval) -> str:
    return points(interval).removesuffix(" points")


def _to_json(results: Results, kinds: Any, controllers: Sequence[str]) -> dict[str, Any]:
    """Return the results task by task, from which all intervals can be computed again."""
    return {
        "controllers": list(controllers),
        "kinds": None if kinds is None else kinds.tolist(),
        "prices": {
            f"{price:g}": {
                arm: {
                    "setting": one.setting,
                    "score": one.score.round(4).tolist(),
                    "flops": one.flops.round(4).tolist(),
                }
                for arm, one in arms.items()
            }
            for price, arms in results.items()
        },
    }


def draw(comparisons: Sequence[Comparison], path: Path) -> None:
    """Draw the differences with their intervals, a panel for each price."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    prices = list(dict.fromkeys(one.price for one in comparisons))
    arms = [arm for arm in OTHERS if any(one.arm == arm for one in comparisons)]
    figure, axes = plt.subplots(
        1,
        len(prices),
        sharey=True,
        squeeze=False,
        figsize=(1.8 + 2.1 * len(prices), 1.2 + 0.32 * len(arms)),
        layout="constrained",
    )
    colours = {"above": "#0072B2", "below": "#D55E00", "not shown": "#888888"}
    for axis, price in zip(axes[0], prices, strict=True):
        axis.axvline(0.0, color="#444444", linewidth=1)
        for one in (one for one in comparisons if one.price == price):
            mean, low, high = (
                100.0 * end
                for end in (one.difference.mean, one.difference.low, one.difference.high)
            )
            place = len(arms) - 1 - arms.index(one.arm)
            axis.plot([low, high], [place, place], color=colours[one.verdict], linewidth=2)
            axis.plot(mean, place, "o", color=colours[one.verdict])
        axis.set_title("all prices" if price == ALL else f"price {price:g}", fontsize=10)
        axis.grid(axis="x", alpha=0.3)
    axes[0][0].set_yticks(range(len(arms)), [LABELS[arm] for arm in reversed(arms)])
    figure.supxlabel("learned controller minus the arm, points (95% interval; grey: not shown)")
    figure.savefig(path, dpi=150)
    plt.close(figure)

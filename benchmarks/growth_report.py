"""What `growth_pays.py` found, in tables, words and a figure.

The regret of an arm at a budget is its mean test loss minus that of the best fixed size there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from esper.statistics import Interval, mean_interval, paired_interval
from growth_campaign import EXTRA, SETTINGS, Campaign, SettingsCampaign, WarmStartCampaign, arms_of

REACH = 0.25
"""Largest worst regret of growth, relative to that of the best single fixed size."""

Losses = Mapping[str, Mapping[float, Sequence[float]]]
"""Test losses of each seed, by arm and budget. The seeds of all arms are the same."""


@dataclass(frozen=True)
class Comparison:
    """Fixed sizes and growing networks at equal budgets."""

    fixed: Losses
    grown: Losses

    @property
    def arms(self) -> Losses:
        """All arms."""
        return {**self.fixed, **self.grown}

    @property
    def budgets(self) -> list[float]:
        """The budgets at which every arm has results."""
        found = [set(by_budget) for by_budget in self.arms.values()]
        return sorted(set.intersection(*found)) if found else []

    def mean(self, arm: str, budget: float) -> float:
        """Return the mean loss of an arm."""
        losses = self.arms[arm][budget]
        return math.fsum(losses) / len(losses)

    def best_fixed(self, budget: float) -> str:
        """Return the fixed size with the lowest loss at a budget."""
        return min(self.fixed, key=lambda arm: self.mean(arm, budget))

    def regrets(self, arm: str) -> list[float]:
        """Return the regret of an arm at each budget."""
        best = [self.mean(self.best_fixed(budget), budget) for budget in self.budgets]
        own = [self.mean(arm, budget) for budget in self.budgets]
        return [loss - minimum for loss, minimum in zip(own, best, strict=True)]

    def difference(self, arm: str, budget: float) -> Interval:
        """Return an arm's loss minus that of the best fixed size, paired by seed."""
        best = self.fixed[self.best_fixed(budget)][budget]
        return paired_interval(self.arms[arm][budget], best)

    def best_single(self) -> str:
        """Return the fixed size whose worst regret is lowest."""
        return min(self.fixed, key=lambda arm: max(self.regrets(arm)))

    def flops_to_reach(self, arm: str, budget: float) -> float | None:
        """Return the budget at which an arm has the loss of the best fixed size at ``budget``.

        Between budgets, the loss is linear in the logarithm of the FLOPs. None if it is not
        reached, 0 if the smallest budget is already enough.
        """
        target = self.mean(self.best_fixed(budget), budget)
        points = [(math.log(flops), self.mean(arm, flops)) for flops in self.budgets]
        if points[0][1] <= target:
            return self.budgets[0] if points[0][1] == target else 0.0
        for (left, above), (right, below) in pairwise(points):
            if below <= target < above:
                return math.exp(left + (right - left) * (above - target) / (above - below))
        return None

    def wins(self, arm: str) -> list[float]:
        """Return the budgets at which an arm's paired interval lies below zero."""
        return [budget for budget in self.budgets if self.difference(arm, budget).high < 0.0]

    def verdict(self) -> str:
        """Return in words whether growth has a small regret at every budget and wins at one."""
        single = self.best_single()
        bound = REACH * max(self.regrets(single))
        if not bound:
            return f"**Nothing to gain**: {single} is the best fixed size at every budget."
        arm = min(self.grown, key=lambda name: max(self.regrets(name)))
        worst, wins = max(self.regrets(arm)), self.wins(arm)
        is_small = worst <= bound
        small = (
            f"the worst regret of {arm} is {worst:.3f}, {'at most' if is_small else 'more than'} a "
            f"quarter of the {max(self.regrets(single)):.3f} of {single}, the best single fixed "
            "size"
        )
        win = "no budget has a paired interval below zero"
        if wins:
            best = min(wins, key=lambda budget: self.difference(arm, budget).mean)
            budgets = ", ".join(f"{budget:g}" for budget in wins)
            win = (
                f"it is better than every fixed size at {budgets} GF "
                f"({self.difference(arm, best).text()} at {best:g} GF)"
            )
        is_met = is_small and wins
        joint = "and" if bool(is_small) == bool(wins) else "but"
        return f"**{'Growth pays' if is_met else 'Not shown'}**: {small}, {joint} {win}."


def compare(campaign: Campaign) -> Comparison:
    """Return what a campaign has found so far."""
    fixed: dict[str, dict[float, list[float]]] = {}
    grown: dict[str, dict[float, list[float]]] = {}
    for arm in arms_of(campaign.problem):
        found = (fixed if arm.how == "fixed" else grown).setdefault(arm.name, {})
        for budget in campaign.problem.budgets:
            runs = campaign.reported(arm, budget)
            losses = [campaign.results.loss(run, "test") for run in runs]
            # No verdict is based on runs that diverged.
            if losses and all(map(math.isfinite, losses)):
                found[budget] = losses
    return Comparison(fixed, grown)


def report(campaigns: Sequence[Campaign]) -> str:
    """Return all results as Markdown."""
    return "\n\n".join(_report(campaign) for campaign in campaigns) + "\n"


def _report(campaign: Campaign) -> str:
    if isinstance(campaign, SettingsCampaign):
        return _report_settings(campaign)
    if isinstance(campaign, WarmStartCampaign):
        return _report_warm_start(campaign)
    found = compare(campaign)
    problem = campaign.problem
    lines = [f"## {problem.title}", "", _loss_table(found, problem.budgets)]
    if found.budgets:
        lines += ["", _regret_table(found), ""]
    missing = len(problem.budgets) - len(found.budgets)
    if missing:
        lines += ["", f"Not complete: {missing} of {len(problem.budgets)} budgets have no verdict."]
    else:
        lines += [found.verdict()]
    return "\n".join(lines)


def _loss_table(found: Comparison, budgets: Sequence[float]) -> str:
    """Return the mean loss of every arm, the best fixed size in bold."""
    rows: list[list[str]] = []
    for arm, by_budget in found.arms.items():
        row = [arm]
        for budget in budgets:
            text = f"{found.mean(arm, budget):.4f}" if budget in by_budget else ""
            is_best = budget in found.budgets and arm == found.best_fixed(budget)
            row.append(f"**{text}**" if is_best else text)
        rows.append(row)
    return table(["test loss", *(f"{budget:g} GF" for budget in budgets)], rows)


def _regret_table(found: Comparison) -> str:
    """Return regrets, paired intervals and the FLOPs to the best fixed size's loss."""
    rows: list[list[str]] = []
    for arm in found.arms:
        regrets = found.regrets(arm)
        row = [arm, f"{sum(regrets) / len(regrets):.4f}", f"{max(regrets):.4f}"]
        for budget in found.budgets:
            is_best = arm == found.best_fixed(budget)
            text = "best" if is_best else found.difference(arm, budget).text()
            row.append(f"{text}; {_flops_text(found, arm, budget)}")
        rows.append(row)
    names = ["regret", "mean", "worst"]
    return table([*names, *(f"at {budget:g} GF; FLOPs" for budget in found.budgets)], rows)


def _flops_text(found: Comparison, arm: str, budget: float) -> str:
    flops = found.flops_to_reach(arm, budget)
    if flops is None:
        return f">{found.budgets[-1] / budget:.2g}x"
    return f"{flops / budget:.2f}x" if flops else f"<{found.budgets[0] / budget:.2g}x"


def _report_settings(campaign: SettingsCampaign) -> str:
    """Return the losses of every setting, and the differences from the first."""
    first = campaign.runs(next(iter(SETTINGS.values())))
    rows: list[list[str]] = []
    for name, settings in SETTINGS.items():
        if not (runs := campaign.runs(settings)) or not first:
            rows.append([name, "", ""])
            continue
        losses = [campaign.results.loss(run) for run in runs]
        others = [campaign.results.loss(run) for run in first]
        change = "" if runs == first else paired_interval(losses, others).text()
        rows.append([name, f"{sum(losses) / len(losses):.4f}", change])
    title = f"## Settings of growth, {campaign.budget:g} GF"
    return f"{title}\n\n" + table(["setting", "validation loss", "difference"], rows)


def _report_warm_start(campaign: WarmStartCampaign) -> str:
    """Return the losses of continuing, growing and beginning again."""
    names = ("continue", "grow", "begin again")
    rows: list[list[str]] = []
    for extra in EXTRA:
        row = [f"{extra:.0%}"]
        found = [campaign.warm(arm, extra) for arm in campaign.arms()]
        losses = [[campaign.results.loss(run, "test") for run in runs] for runs in found]
        row += [mean_interval(loss).text(signed=False) if loss else "" for loss in losses]
        both = losses[0] and losses[1]
        row.append(paired_interval(losses[1], losses[0]).text() if both else "")
        rows.append(row)
    title = f"## Warm start of {campaign.arms()[0].name}"
    return f"{title}\n\n" + table(["extra budget", *names, "grow minus continue"], rows)


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; numbers are on the right."""
    lines = [names, ["---", *("---:" for _ in names[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(campaigns: Sequence[Campaign], path: Path) -> None:
    """Draw the loss of every arm by budget, with intervals over seeds."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullLocator

    # Settings and warm starts have tables alone.
    plain = [(campaign, compare(campaign)) for campaign in campaigns if type(campaign) is Campaign]
    shown = [pair for pair in plain if any(pair[1].arms.values())]
    if not shown:
        return
    figure, axes = plt.subplots(
        1, len(shown), figsize=(4.2 * len(shown), 3.6), layout="constrained", squeeze=False
    )
    for axis, (campaign, found) in zip(axes.flat, shown, strict=True):
        for number, arm in enumerate(found.arms):
            is_fixed = arm in found.fixed
            color = plt.cm.Blues(0.4 + 0.15 * number) if is_fixed else f"C{number % 3 + 1}"
            _draw_arm(axis, arm, found.arms[arm], style="o-" if is_fixed else "s--", color=color)
        budgets = campaign.problem.budgets
        axis.set_title(campaign.problem.title, fontsize=9)
        axis.set(xscale="log", yscale="log")
        axis.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
        axis.xaxis.set_minor_locator(NullLocator())
        axis.tick_params(labelsize=7, which="both")
        axis.legend(fontsize=7, frameon=False)
    figure.supxlabel("training FLOPs, billions", fontsize=9)
    figure.supylabel("test loss", fontsize=9)
    figure.savefig(path, dpi=90)
    plt.close(figure)


def _draw_arm(
    axis: Any, arm: str, losses: Mapping[float, Sequence[float]], *, style: str, color: Any
) -> None:
    """Draw the mean loss of an arm by budget, with its interval over seeds."""
    if not losses:
        return
    found = [mean_interval(by_seed) for by_seed in losses.values()]
    means = [one.mean for one in found]
    below, above = [one.mean - one.low for one in found], [one.high - one.mean for one in found]
    look = {"markersize": 3, "linewidth": 1.2, "elinewidth": 0.8, "color": color}
    axis.errorbar(list(losses), means, [below, above], fmt=style, label=arm, **look)

"""Which training runs `growth_pays.py` needs next, and the file of their results.

Learning rates and the times of growth are chosen on seeds that are not reported.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from growth_problems import Problem
from growth_runs import Arm, Base, Run, Settings

TUNING_SEED = 1000
FIRST_RATES = (1e-2, 2e-2)
"""Where the search for a learning rate begins at the smallest budget."""
TIMINGS = (0.4, 0.2, 0.6)
"""Shares of the budget after which a network may grow; rates are tuned at the first."""
SETTINGS = {
    "no moments, copied weights": Settings(moments="zero"),
    "copied moments": Settings(moments="copied"),
    "fresh weights": Settings(moments="zero", inner="fresh"),
    "learning rate rises over 5%": Settings(moments="zero", rewarm=0.05),
    "weight decay 0.01": Settings(moments="zero", weight_decay=0.01),
    "weight decay 0.1": Settings(moments="zero", weight_decay=0.1),
}
"""Settings of growth that are compared; each differs from the first in one thing."""
EXTRA = (0.1, 0.25, 0.5, 1.0)
"""More FLOPs for a trained network, relative to those it was trained with."""


class Results:
    """The results of finished runs. Each is one line of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: dict[Run, dict[str, Any]] = {}
        text = path.read_text() if path.exists() else ""
        self._is_cut = not text.endswith("\n") and text != ""
        for number, line in enumerate(text.splitlines(), start=1):
            self._read(line, number)

    def _read(self, line: str, number: int) -> None:
        """Read a result; one that was cut off by a kill is computed again."""
        try:
            row = json.loads(line)
            self._found[Run.from_json(row["run"])] = row["result"]
        except (ValueError, KeyError, TypeError) as error:
            print(f"ignored {self.path.name}, line {number}: no result ({error})", file=sys.stderr)

    def __contains__(self, run: Run) -> bool:
        return run in self._found

    def __iter__(self) -> Iterator[Run]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, run: Run) -> dict[str, Any]:
        return self._found[run]

    def drop_other_data(self, problem: str, digest: str) -> None:
        """Leave out results on other data than this machine has; they are not comparable."""
        others = [
            run
            for run, result in self._found.items()
            if run.problem == problem and result.get("data") != digest
        ]
        if others:
            print(f"{problem}: ignored {len(others)} results on other data", file=sys.stderr)
        for run in others:
            del self._found[run]

    def loss(self, run: Run, split: str = "validation") -> float:
        """Return the loss of a finished run; infinity if it diverged."""
        value = self._found[run][split]
        return float("inf") if value is None else value

    def add(self, run: Run, result: dict[str, Any]) -> None:
        """Append a result; it is on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"run": asdict(run), "result": result}, allow_nan=False)
        with self.path.open("a") as file:
            file.write("\n" * self._is_cut + line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._is_cut = False
        self._found[run] = result


def arms_of(problem: Problem) -> list[Arm]:
    """Return every fixed depth, every growth, and the largest growth by stacking."""
    fixed = [Arm(size, size) for size in problem.sizes]
    grown = [Arm(start, final, "identity") for start, final in problem.growths]
    return [*fixed, *grown, replace(grown[-1], how="stacked")]


def search_rate(
    losses: Mapping[float, float], rates: Sequence[float], first: Sequence[float]
) -> tuple[float | None, list[float]]:
    """Return the best learning rate, once its neighbours are known to be worse, or what to try.

    The search begins at ``first`` and moves towards the better side.
    """
    if missing := [rate for rate in first if rate not in losses]:
        return None, missing
    best = min(losses, key=losses.__getitem__)
    place = rates.index(best)
    neighbours = [rates[i] for i in (place - 1, place + 1) if 0 <= i < len(rates)]
    missing = [rate for rate in neighbours if rate not in losses]
    return (None, missing) if missing else (best, [])


@dataclass
class Campaign:
    """All runs on one problem: tuning first, then what is reported."""

    problem: Problem
    results: Results
    n_seeds: int = 5
    needed: list[Run] = field(default_factory=list)
    """Runs that can be done now and are not in the results."""

    def plan(self) -> list[Run]:
        """Return the missing runs that nothing else has to precede, small budgets first."""
        self.needed = []
        for arm in arms_of(self.problem):
            for budget in self.problem.budgets:
                self.reported(arm, budget)
        return sorted(dict.fromkeys(self.needed), key=lambda run: run.budget)

    def reported(self, arm: Arm, budget: float) -> list[Run]:
        """Return the runs whose results count; none if their settings are not chosen yet."""
        rate, grow_at = self.rate(arm, budget), self.timing(arm)
        if rate is None or (arm.how != "fixed" and grow_at is None):
            return []
        first = Run(self.problem.name, arm, budget, rate, 0, grow_at)
        return self._need([replace(first, seed=seed) for seed in range(self.n_seeds)])

    def rate(self, arm: Arm, budget: float) -> float | None:
        """Return the learning rate chosen for an arm at a budget; None if it is not known yet."""
        grow_at = None if arm.how == "fixed" else TIMINGS[0]
        budgets, rates = self.problem.budgets, self.problem.rates
        run = Run(self.problem.name, arm, budget, rates[0], TUNING_SEED, grow_at)
        if budget == budgets[0]:
            return self._search(run, FIRST_RATES)
        before = self.rate(arm, budgets[budgets.index(budget) - 1])
        if before is None:
            return None
        # Longer training needs a lower rate, if another.
        place = rates.index(before)
        candidates = [replace(run, rate=rate) for rate in rates[max(0, place - 1) : place + 1]]
        losses = {one.rate: self._tuning_loss(one) for one in candidates}
        known = {rate: loss for rate, loss in losses.items() if loss is not None}
        return min(known, key=known.__getitem__) if len(known) == len(candidates) else None

    def timing(self, arm: Arm) -> float | None:
        """Return when an arm grows at every budget, chosen at two of them; None if unknown."""
        if arm.how == "fixed":
            return None
        losses = dict.fromkeys(TIMINGS, 0.0)
        is_known = True
        for budget in self.problem.timing_budgets:
            rate = self.rate(arm, budget)
            if rate is None:
                return None
            for timing in TIMINGS:
                run = Run(self.problem.name, arm, budget, rate, TUNING_SEED, timing)
                loss = self._tuning_loss(run)
                is_known = is_known and loss is not None
                losses[timing] += loss or 0.0
        return min(TIMINGS, key=losses.__getitem__) if is_known else None

    def _search(self, run: Run, first: Sequence[float]) -> float | None:
        """Return the best learning rate; None if the search goes on."""
        losses: dict[float, float] = {}
        while True:
            best, missing = search_rate(losses, self.problem.rates, first)
            if best is not None:
                return best
            found = {rate: self._tuning_loss(replace(run, rate=rate)) for rate in missing}
            losses |= {rate: loss for rate, loss in found.items() if loss is not None}
            if None in found.values():
                return None

    def _tuning_loss(self, run: Run) -> float | None:
        """Return the mean validation loss over the tuning seeds; None if a run is missing."""
        seeds = range(TUNING_SEED, TUNING_SEED + self.problem.n_tuning_seeds)
        runs = self._need([replace(run, seed=seed) for seed in seeds])
        return sum(map(self.results.loss, runs)) / len(runs) if runs else None

    def _need(self, runs: list[Run]) -> list[Run]:
        """Note the runs that are missing; return all if there are none."""
        missing = [run for run in runs if run not in self.results]
        self.needed += missing
        return [] if missing else runs


@dataclass
class SettingsCampaign(Campaign):
    """Runs that differ only in how new blocks are treated, on seeds that are not reported."""

    budget: float = 166.0
    n_seeds: int = 3

    def plan(self) -> list[Run]:
        """Return the missing runs."""
        self.needed = []
        for settings in SETTINGS.values():
            self.runs(settings)
        return self.needed

    def runs(self, settings: Settings) -> list[Run]:
        """Return the runs of a setting; none if one is missing."""
        start, final = self.problem.growths[-1]
        arm = Arm(start, final, "identity")
        first = Run(self.problem.name, arm, self.budget, FIRST_RATES[0], 0, TIMINGS[0], settings)
        seeds = range(TUNING_SEED, TUNING_SEED + self.n_seeds)
        return self._need([replace(first, seed=seed) for seed in seeds])


@dataclass
class WarmStartCampaign(Campaign):
    """Runs that start from a trained network: continue, grow, or begin again with a larger one."""

    n_seeds: int = 3

    def plan(self) -> list[Run]:
        """Return the missing runs."""
        self.needed = []
        for extra in EXTRA:
            for arm in self.arms():
                self.warm(arm, extra)
        return sorted(dict.fromkeys(self.needed), key=lambda run: run.budget)

    def arms(self) -> tuple[Arm, Arm, Arm]:
        """Return what continues, what grows and what begins again."""
        start, final = self.problem.growths[0]
        return Arm(start, start), Arm(start, final, "identity"), Arm(final, final)

    def base(self) -> Base | None:
        """Return how the trained network was trained; None if its rate is not chosen yet."""
        start, budget = self.problem.growths[0][0], self.problem.budgets[-1]
        rate = self.rate(Arm(start, start), budget)
        return None if rate is None else Base(budget, rate)

    def warm(self, arm: Arm, extra: float) -> list[Run]:
        """Return the runs of an arm with more budget; none if one is missing."""
        base = self.base()
        if base is None:
            return []
        budget = extra * base.budget
        run = Run(
            self.problem.name,
            arm,
            budget,
            FIRST_RATES[0],
            TUNING_SEED,
            grow_at=0.0 if arm.how == "identity" else None,
            base=base if arm.start == self.arms()[0].start else None,
        )
        rate = self._search(run, FIRST_RATES)
        if rate is None:
            return []
        return self._need([replace(run, rate=rate, seed=seed) for seed in range(self.n_seeds)])

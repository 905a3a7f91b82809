"""Arms whose setting is chosen on draws for tuning, then run on those for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from esper.simic.evaluation.arms.results import ArmEnds, ends_of, join_ends
from esper.simic.evaluation.bench import Bench, OnShare
from esper.simic.evaluation.contexts import ContextTable, best_of, tune_contexts
from esper.simic.evaluation.families import (
    fixed_candidates,
    heuristic_candidates,
    static_candidates,
)
from esper.simic.evaluation.host_runs import HostRuns
from esper.simic.evaluation.result_cache import ResultCache
from esper.simic.evaluation.treating import treat
from esper.simic.evaluation.tuning import Choice, Tuned, TuningRuns, halve

FAMILIES = ("static", "fixed", "heuristic")
"""What is tuned for all hosts alike."""
CONTEXTS = {"context_table": ("static", "fixed"), "context_heuristic": ("heuristic",)}
"""What is tuned by the kind of host, and from which families."""
N_HEURISTICS = 64
"""Heuristics that are tried with a moderate budget; more with a large one."""

Tell = Callable[[str], OnShare]
"""Gives for each piece of work what is to be told how far it is."""


def count_heuristics(budget: int) -> int:
    """Return how many heuristics are worth trying with so many host runs."""
    return max(2, min(budget // 16, max(N_HEURISTICS, budget // 32)))


class TunedArms:
    """Chooses settings at a price, and runs what was chosen."""

    def __init__(
        self,
        tuning: Bench,
        evaluation: Bench,
        *,
        budget: int,
        cache: ResultCache,
        tell: Tell = lambda _: lambda _: None,
    ) -> None:
        """Get ready.

        Args:
            tuning: Where settings are chosen.
            evaluation: Where they are run then.
            budget: Host runs that may be spent on each family.
            cache: Where runs are kept.
            tell: Told what is done.
        """
        self._runs = TuningRuns(tuning, cache)
        self._bench, self._cache = evaluation, cache
        self._budget, self._tell = budget, tell
        self._tuned: dict[tuple[str, float], Tuned] = {}

    def run(self, arm: str, hosts: Sequence[int], price: float) -> ArmEnds:
        """Return how an arm did, tuned for this price."""
        if arm in FAMILIES:
            tuned = self.tune(arm, price)
            choices = [tuned.best] * len(hosts)
            words, n_runs = tuned.best.words(), len(tuned.runs)
        else:
            table = self.tune_contexts(arm, price)
            choices = table.choose(*self._bench.contexts(hosts))
            words = table.words()
            n_runs = table.n_runs
        runs = self._evaluate(arm, choices, hosts)
        return join_ends([ends_of(runs)], setting=words, tuning_runs=n_runs)

    def tune(self, family: str, price: float) -> Tuned:
        """Choose a setting of a family for all hosts."""
        key = family, price
        if key not in self._tuned:
            config = self._runs.bench.slot_config
            n_heuristics = count_heuristics(self._budget)
            candidates = {
                "static": lambda: static_candidates(config),
                "fixed": lambda: fixed_candidates(config, self._bench.task.budget.n_epochs),
                "heuristic": lambda: heuristic_candidates(config, n_heuristics),
            }[family]()
            self._tuned[key] = halve(
                self._runs,
                candidates,
                price=price,
                budget=self._budget,
                on_share=self._tell(f"tuning {family.replace('_', ' ')}"),
            )
        return self._tuned[key]

    def tune_best(self, families: Sequence[str], price: float) -> Choice:
        """Choose the best setting for all hosts among several families."""
        return best_of(self._runs, [self.tune(family, price) for family in families], price)

    def tune_contexts(self, arm: str, price: float) -> ContextTable:
        """Choose a setting for each kind of host."""
        families = [self.tune(family, price) for family in CONTEXTS[arm]]
        return tune_contexts(
            self._runs,
            families,
            price=price,
            budget=self._budget,
            on_share=self._tell(f"tuning {arm.replace('_', ' ')}"),
        )

    def _evaluate(self, arm: str, choices: list[Choice], hosts: Sequence[int]) -> HostRuns:
        """Run each host by its choice; hosts with the same choice lie side by side."""
        order = sorted(range(len(hosts)), key=lambda place: (str(choices[place]), place))
        pairs = [(choices[place].candidate, hosts[place]) for place in order]
        stops = np.array([choices[place].stop for place in order], np.int64)
        decided_by = {
            "treated": [[candidate.to_json(), host] for candidate, host in pairs],
            "stops": stops.tolist(),
        }
        tell = self._tell(arm.replace("_", " "))
        runs = self._cache.runs(
            decided_by, lambda: treat(self._bench, pairs, stops=stops, on_share=tell)
        )
        back = np.argsort(np.array(order))
        return runs.picked(back)

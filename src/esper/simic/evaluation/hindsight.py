"""How much better hosts would do if each had its own best setting. Shapes: C, N hosts, T epochs.

C = candidates. A setting is a candidate and a stopping epoch. Choosing each host's best by the very
scores it is judged by would count luck as skill, so that the choice is made on validation samples
and judged on test samples; how far a host's own scores are trusted against the mean of all hosts is
chosen on the other half of the hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esper.simic.evaluation.bench import Bench, OnShare
from esper.simic.evaluation.candidates import Candidate
from esper.simic.evaluation.result_cache import ResultCache
from esper.simic.evaluation.treating import treat

Floats = NDArray[np.float64]

TRUSTS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0)
"""How far a host's own scores count: 0 chooses the same for all hosts, 1 each host's own best."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HindsightScores:
    """What settings come to on hosts: ``[C, N, T + 1]`` each."""

    chooser: Floats
    """Score on samples that serve for choosing."""
    judge: Floats
    """Score on samples that serve for judging."""


def score_candidates(
    bench: Bench,
    candidates: Sequence[Candidate],
    hosts: Sequence[int],
    *,
    price: float,
    cache: ResultCache,
    on_share: OnShare = lambda _: None,
) -> HindsightScores:
    """Train every host by every candidate, and score it after every epoch by both splits."""
    shape = len(candidates), len(hosts), -1
    pairs = [(candidate, host) for candidate in candidates for host in hosts]
    decided_by = {"hindsight": [[candidate.to_json(), host] for candidate, host in pairs]}

    def run() -> dict[str, Floats]:
        runs = treat(bench, pairs, every_epoch=("validation", "final"), on_share=on_share)
        return {
            "validation": runs.validation_by_epoch,
            "final": runs.accuracy_by_epoch,
            "flops": runs.flops_by_epoch,
        }

    found = cache.get(decided_by, run)
    costs, stops = price * found["flops"], list(bench.stops)
    chooser, judge = (
        (found[split] - costs)[:, stops].reshape(shape) for split in ("validation", "final")
    )
    return HindsightScores(chooser=chooser, judge=judge)


def choose_for_each(scores: HindsightScores, *, seed: int = 0) -> Floats:
    """Return what each host comes to with a setting of its own, ``[N]``, chosen without luck.

    Args:
        scores: Of all settings on all hosts.
        seed: Decides the halves of the hosts.
    """
    n_hosts = scores.judge.shape[1]
    order = np.random.default_rng(seed).permutation(n_hosts)
    halves = order[: n_hosts // 2], order[n_hosts // 2 :]
    by_trust = np.stack([_judge_choice(scores, trust) for trust in TRUSTS])
    found = np.zeros(n_hosts)
    for own, other in (halves, halves[::-1]):
        best = int(by_trust[:, other].mean(1).argmax()) if len(other) else 0
        found[own] = by_trust[best, own]
    return found


def choose_by_luck(scores: HindsightScores) -> Floats:
    """Return each host's best score, ``[N]``, by the very scores that judge it: too optimistic."""
    return _settings_first(scores.judge).max(0)


def _judge_choice(scores: HindsightScores, trust: float) -> Floats:
    """Return the judged scores ``[N]`` of what is chosen with so much trust in own scores."""
    chooser, judge = _settings_first(scores.chooser), _settings_first(scores.judge)
    means = chooser.mean(1, keepdims=True)
    chosen = (means + trust * (chooser - means)).argmax(0)
    return judge[chosen, np.arange(judge.shape[1])]


def _settings_first(scores: Floats) -> Floats:
    """Return scores as ``[C * (T + 1), N]``."""
    n_candidates, n_hosts, n_stops = scores.shape
    return scores.transpose(0, 2, 1).reshape(n_candidates * n_stops, n_hosts)

"""How much better hosts would do if each had its own best setting. Shapes: C, N hosts, T epochs.

C = candidates. A setting is a candidate and a stopping epoch. Choosing each host's best by the very
scores it is judged by would count luck as skill, so that the choice is made by another training of
the same draw, with other weights and batches, and on validation samples, and judged on test
samples; how far a host's own scores are trusted against the mean of all hosts is chosen on the
other half of the hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esper.growth.populations.host_data import Split
from esper.simic.evaluation.bench import Bench, OnShare
from esper.simic.evaluation.candidates import Candidate
from esper.simic.evaluation.result_cache import ResultCache
from esper.simic.evaluation.treating import treat
from esper.simic.evaluation.tuning import within

Floats = NDArray[np.float64]

_SPLITS: tuple[Split, Split] = ("final", "validation")
"""What the first training of each host is scored by, and what the other."""
TRUSTS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0)
"""How far a host's own scores count: 0 chooses the same for all hosts, 1 each host's own best."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HindsightScores:
    """What settings come to on hosts: ``[C, N, T + 1]`` each."""

    chooser: Floats
    """Score of the training that serves for choosing."""
    judge: Floats
    """Score of the training that serves for judging."""


def score_candidates(
    bench: Bench,
    candidates: Sequence[Candidate],
    hosts: Sequence[int],
    *,
    price: float,
    cache: ResultCache,
    on_share: OnShare = lambda _: None,
) -> HindsightScores:
    """Train every host by every candidate twice, and score it after every epoch.

    The first training is scored by the final split; the other, with other weights and batches, by
    the validation samples.
    """
    shape = len(candidates), len(hosts), -1
    pairs = [(candidate, host) for candidate in candidates for host in hosts]
    decided_by = {"hindsight": [[candidate.to_json(), host] for candidate, host in pairs]}

    def run(place: int) -> dict[str, Floats]:
        own = bench.again() if place else bench
        tell = within(on_share, place, 2)
        runs = treat(own, pairs, every_epoch=(_SPLITS[place],), on_share=tell)
        scores = runs.validation_by_epoch if place else runs.accuracy_by_epoch
        return {"scores": scores, "flops": runs.flops_by_epoch}

    judge, chooser = (
        cache.get({**decided_by, "training": place}, lambda place=place: run(place))
        for place in range(2)
    )
    stops = list(bench.stops)
    settled = [
        (one["scores"] - price * one["flops"])[:, stops].reshape(shape) for one in (chooser, judge)
    ]
    return HindsightScores(chooser=settled[0], judge=settled[1])


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

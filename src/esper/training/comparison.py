"""Comparing controllers on the same hosts, in numbers and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Floats
from esper.formatting import too_few
from esper.statistics import Interval, mean_interval, paired_interval

LEARNED = "learned"
OTHERS = ("wait", "random", "fixed", "heuristic")
"""The controllers that the learned one is compared with at the end of a run."""

SELDOM = 0.05
"""A controller that commits a seed in fewer hosts than this share hardly grows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmResults:
    """How one controller did, host by host, ``[N]`` each; hosts in the same order for all."""

    returns: Floats
    scores: Floats
    flops: Floats
    n_epochs: Floats
    host_parameters: Floats
    seed_parameters: Floats


@dataclass(frozen=True, kw_only=True)
class ArmSummary:
    """How one controller did, in means."""

    name: str
    ep_rew: Interval
    score: Interval
    flops: float
    n_epochs: float
    host_parameters: float
    seed_parameters: float
    grown_share: float
    """Share of hosts in which it committed a seed."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The learned controller minus another, on the same hosts."""

    against: str
    ep_rew: Interval
    score: Interval


@dataclass(frozen=True, kw_only=True)
class BestHost:
    """The episode with the highest return, so that its host can be grown again."""

    number: int
    """Of the host, counted from 0."""
    ep_rew: float
    score: float
    actions: list[list[int]]
    """What was done at each step, a choice for each head."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a run came to, beside other controllers, on hosts that nothing was chosen by."""

    n_hosts: int
    split: str
    arms: tuple[ArmSummary, ...]
    differences: tuple[Difference, ...]
    sentences: tuple[str, ...]
    """What the numbers support, and nothing more."""
    best_host: BestHost | None = None
    """The learned controller's best episode."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Comparison:
        """Return what :meth:`to_json` gave."""

        def intervals(entry: dict[str, Any]) -> dict[str, Any]:
            return entry | {name: Interval(**entry[name]) for name in ("ep_rew", "score")}

        return cls(
            n_hosts=values["n_hosts"],
            split=values["split"],
            arms=tuple(ArmSummary(**intervals(arm)) for arm in values["arms"]),
            differences=tuple(Difference(**intervals(one)) for one in values["differences"]),
            sentences=tuple(values["sentences"]),
            best_host=None if values["best_host"] is None else BestHost(**values["best_host"]),
        )


def compare_arms(
    results: Mapping[str, ArmResults],
    *,
    learned: str = LEARNED,
    split: str = "test",
    actions: NDArray[np.int64] | None = None,
) -> Comparison:
    """Compare the learned controller with the others, on the same hosts.

    Args:
        results: Of each controller, by name.
        learned: The name of the learned one.
        split: What hosts were scored on.
        actions: ``[N, T, H]`` what the learned controller did in each host; -1 after its end.
    """
    own = results[learned]
    differences = tuple(
        Difference(
            against=name,
            ep_rew=paired_interval(own.returns, other.returns),
            score=paired_interval(own.scores, other.scores),
        )
        for name, other in results.items()
        if name != learned
    )
    arms = tuple(_summarise(name, arm) for name, arm in results.items())
    return Comparison(
        n_hosts=len(own.returns),
        split=split,
        arms=arms,
        differences=differences,
        sentences=tuple(_sentences(results, differences, learned)),
        best_host=None if actions is None else _find_best(own, actions),
    )


def difference_in_words(interval: Interval) -> str:
    """Return what an interval of differences supports."""
    spread = interval.text()
    if not interval.is_from_enough:
        return f"{too_few(interval)}, {spread}"
    if not interval.excludes_zero:
        return f"no difference that stands out from noise, {spread}"
    return f"{'better' if interval.is_above_zero else 'worse'}, {spread}"


def _find_best(own: ArmResults, actions: NDArray[np.int64]) -> BestHost:
    number = int(own.returns.argmax())
    taken = actions[number]
    return BestHost(
        number=number,
        ep_rew=float(own.returns[number]),
        score=float(own.scores[number]),
        actions=taken[taken[:, 0] >= 0].tolist(),
    )


def _summarise(name: str, arm: ArmResults) -> ArmSummary:
    return ArmSummary(
        name=name,
        ep_rew=mean_interval(arm.returns),
        score=mean_interval(arm.scores),
        flops=float(arm.flops.mean()),
        n_epochs=float(arm.n_epochs.mean()),
        host_parameters=float(arm.host_parameters.mean()),
        seed_parameters=float(arm.seed_parameters.mean()),
        grown_share=float((arm.seed_parameters > 0).mean()),
    )


def _sentences(
    results: Mapping[str, ArmResults], differences: tuple[Difference, ...], learned: str
) -> list[str]:
    """Return what the comparison says, the answer to "did growth help?" first."""
    own, found = results[learned], list[str]()
    wait = results.get("wait")
    if wait is not None:
        found.append(_about_growth(own, wait))
    for difference in differences:
        against = _NAMES.get(difference.against, difference.against)
        found.append(
            f"Return (score minus costs) against {against}: "
            f"{difference_in_words(difference.ep_rew)}."
        )
    return found


_NAMES = {
    "wait": "leaving hosts alone",
    "random": "random legal growth",
    "fixed": "the fixed schedule",
    "heuristic": "the heuristic",
}


def _about_growth(own: ArmResults, wait: ArmResults) -> str:
    """Say whether growing helped, as far as that can be told from stopping early."""
    is_grown = own.seed_parameters > 0
    grown = f"{int(is_grown.sum())} of {len(is_grown)} hosts"
    if is_grown.mean() < SELDOM:
        return (
            f"Growth was not shown to help: the controller grew {grown}. "
            f"{_computing(own, wait)}; {_gain(own, wait)}."
        )
    score = paired_interval(own.scores[is_grown], wait.scores[is_grown])
    value = paired_interval(own.returns[is_grown], wait.returns[is_grown])
    overall = paired_interval(own.scores, wait.scores)
    there = f"in the {grown} that it grew, the score was {score.text()} against hosts left alone"
    if not score.is_from_enough:
        verdict = f"Growth was not shown to help: {there}; so few hosts are too few to tell"
    elif score.is_below_zero:
        verdict = f"Growth did not help: {there}"
    elif not score.is_above_zero:
        verdict = f"Growth was not shown to help: {there}, which is within noise"
    elif value.is_below_zero:
        verdict = f"Growth raised the score and cost more than it brought: {there}"
        verdict += f" and the return {value.text()}"
    elif overall.is_below_zero:
        verdict = f"Growth helped some hosts and not all of them together: {there}"
        verdict += f", but over all hosts {overall.text()}"
    else:
        verdict = f"Growth helped: {there}"
    if value.is_above_zero and not score.is_above_zero:
        verdict += f" (the return was {value.text()})"
    return f"{verdict}. {_computing(own, wait)}."


def _gain(own: ArmResults, wait: ArmResults) -> str:
    """Say what a controller that hardly grows gains over hosts left alone, and by what."""
    value = paired_interval(own.returns, wait.returns)
    if not value.is_above_zero:
        return "it gains nothing over them that stands out from noise"
    if paired_interval(wait.flops, own.flops).is_above_zero:
        return "what it gains over them is computing saved by stopping in time"
    return f"its return is {value.text()} of theirs"


def _computing(own: ArmResults, wait: ArmResults) -> str:
    """Say how much computing all hosts took, beside hosts left alone."""
    theirs = float(wait.flops.mean())
    share = float(own.flops.mean()) / theirs if theirs > 0 else 1.0
    if abs(share - 1.0) < 0.005:
        return "All hosts together took as much computing as hosts left alone"
    more = "more" if share > 1.0 else "less"
    return f"All hosts together took {abs(share - 1.0):.0%} {more} computing than hosts left alone"

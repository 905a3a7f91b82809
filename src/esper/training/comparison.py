"""The comparison at the end of a run: controllers on the same hosts, in numbers and sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Floats
from esper.errors import RunError
from esper.formatting import html_details, html_lines, html_table, too_few
from esper.statistics import Interval, mean_interval, paired_interval
from esper.storage.files import read_json, verified, with_checksum, write_atomic

LEARNED = "learned"
OTHERS = ("wait", "random", "fixed", "heuristic", "progressive")
"""The controllers that the learned one is compared with at the end of a run."""

SELDOM = 0.05
"""A controller that commits a seed in a smaller share of hosts than this hardly grows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmResults:
    """The results of one controller, ``[N]`` each; all controllers share the order of hosts."""

    returns: Floats
    scores: Floats
    flops: Floats
    n_epochs: Floats
    host_parameters: Floats
    seed_parameters: Floats


@dataclass(frozen=True, kw_only=True)
class ArmSummary:
    """The mean results of one controller."""

    name: str
    ep_rew: Interval
    score: Interval
    flops: float
    n_epochs: float
    host_parameters: float
    seed_parameters: float
    grown_share: float
    """Share of hosts in which the controller committed a seed."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Results of the learned controller minus those of another, on the same hosts."""

    against: str
    ep_rew: Interval
    score: Interval


@dataclass(frozen=True, kw_only=True)
class BestHost:
    """The episode with the highest return, so that its host can be grown again."""

    number: int
    """Number of the host, from 0."""
    ep_rew: float
    score: float
    actions: list[list[int]]
    """The action of each step, a choice for each head."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The results of a run and of other controllers, on held-out hosts."""

    n_hosts: int
    split: str
    arms: tuple[ArmSummary, ...]
    differences: tuple[Difference, ...]
    sentences: tuple[str, ...]
    """What the intervals support, in words; the first is about the strongest opponent."""
    best_host: BestHost | None = None
    """The learned controller's best episode."""

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def __repr__(self) -> str:
        names = ", ".join(arm.name for arm in self.arms)
        return f"Comparison of {names} on {self.n_hosts} held-out hosts\n{self}"

    @property
    def gain(self) -> Interval | None:
        """The score minus that of the same hosts left alone; None if that was not measured."""
        return next((one.score for one in self.differences if one.against == "wait"), None)

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self, *, is_folded: bool = False) -> str:
        """Return the comparison as HTML for a notebook.

        Args:
            is_folded: Whether everything but the conclusion is folded away.
        """
        rows = [
            (
                arm.name,
                arm.ep_rew.text(signed=False),
                arm.score.text(signed=False),
                f"{arm.flops:.3f}",
                f"{arm.n_epochs:.1f}",
                f"{arm.host_parameters:,.0f}",
                f"{arm.seed_parameters:,.0f}",
            )
            for arm in self.arms
        ]
        headers = ("controller", "return", "score", "FLOPs", "epochs", "parameters", "grown")
        caption = f"Means on {self.n_hosts} held-out hosts, {self.split} split, with 95% intervals."
        table = html_table(headers, rows, caption=caption)
        rest = table + html_lines(self.sentences[1:])
        if is_folded:
            rest = html_details("Comparison with other controllers", rest)
        return html_lines(self.sentences[:1], is_headed=True) + rest

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Comparison:
        """Return the comparison from what :meth:`to_json` returned."""

        def intervals(entry: dict[str, Any]) -> dict[str, Any]:
            return entry | {name: Interval(**entry[name]) for name in ("ep_rew", "score")}

        differences = tuple(Difference(**intervals(one)) for one in values["differences"])
        return cls(
            n_hosts=values["n_hosts"],
            split=values["split"],
            arms=tuple(ArmSummary(**intervals(arm)) for arm in values["arms"]),
            differences=differences,
            sentences=_with_verdict(values["sentences"], differences),
            best_host=None if values["best_host"] is None else BestHost(**values["best_host"]),
        )


FORMAT = 1
"""The format of summary.json. Files of Esper 0.1 have no format and no checksum."""


def write_summary(path: Path, comparison: Comparison) -> None:
    """Write the comparison at the end of a run to its ``summary.json``."""
    values = with_checksum({"format": FORMAT, **comparison.to_json()})
    write_atomic(path, json.dumps(values, indent=1) + "\n")


def read_summary(path: Path) -> Comparison:
    """Return the comparison in the ``summary.json`` of a run.

    Raises:
        OSError: If it cannot be read.
        RunError: If it is damaged or of another version.
    """
    try:
        values = read_json(path, allow_nan=True)
        found = verified(values, may_lack="format" not in values)
        version = found.pop("format", FORMAT)
        if version == FORMAT:
            return Comparison.from_json(found)
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged; delete it and resume the run.") from error
    raise RunError(f"{path} has format {version!r}; this version of Esper reads {FORMAT}.")


def compare_arms(
    results: Mapping[str, ArmResults],
    *,
    learned: str = LEARNED,
    split: str = "test",
    actions: NDArray[np.int64] | None = None,
) -> Comparison:
    """Compare the learned controller with the others, on the same hosts.

    Args:
        results: Results of each controller, by name.
        learned: Name of the learned controller.
        split: Split that hosts were scored on.
        actions: ``[N, T, H]`` actions of the learned controller; -1 after the end of an episode.
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
    arms = tuple(_summarize(name, arm) for name, arm in results.items())
    return Comparison(
        n_hosts=len(own.returns),
        split=split,
        arms=arms,
        differences=differences,
        sentences=tuple(_sentences(results, differences, learned)),
        best_host=None if actions is None else _find_best(own, actions),
    )


def difference_in_words(interval: Interval) -> str:
    """Return what an interval of differences supports, in words."""
    spread = interval.text()
    if not interval.is_from_enough:
        return f"{too_few(interval)}, {spread}"
    if not interval.excludes_zero:
        return f"no significant difference, {spread}"
    return f"{'better' if interval.is_above_zero else 'worse'}, {spread}"


def _find_best(learned: ArmResults, actions: NDArray[np.int64]) -> BestHost:
    number = int(learned.returns.argmax())
    taken = actions[number]
    return BestHost(
        number=number,
        ep_rew=float(learned.returns[number]),
        score=float(learned.scores[number]),
        actions=taken[taken[:, 0] >= 0].tolist(),
    )


def _summarize(name: str, arm: ArmResults) -> ArmSummary:
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
    """Return the conclusions: the strongest opponent, "did growth help?", then arm by arm."""
    found: list[str] = []
    wait = results.get("wait")
    if wait is not None:
        found.append(_growth_sentence(results[learned], wait))
    for difference in differences:
        against = LABELS.get(difference.against, difference.against)
        found.append(
            f"Return (score minus costs) against {against}: "
            f"{difference_in_words(difference.ep_rew)}."
        )
    return list(_with_verdict(found, differences))


def _with_verdict(sentences: Sequence[str], differences: Sequence[Difference]) -> tuple[str, ...]:
    """Return sentences with the verdict first, which files of earlier versions do not have."""
    strongest = min(differences, key=lambda one: one.ep_rew.mean, default=None)
    if strongest is None:
        return tuple(sentences)
    verdict = verdict_sentence(
        "The controller",
        LABELS.get(strongest.against, strongest.against),
        outcome_of(strongest.ep_rew),
        n_opponents=len(differences),
        difference=f"return {strongest.ep_rew.text()}",
    )
    return (verdict, *(one for one in sentences if one != verdict))


Outcome = Literal["better", "worse", "as good", "not shown", "too few"]
"""What a difference to an opponent shows."""


def outcome_of(difference: Interval) -> Outcome:
    """Return what an interval of differences shows."""
    if not difference.is_from_enough:
        return "too few"
    if difference.is_above_zero:
        return "better"
    return "worse" if difference.is_below_zero else "not shown"


def verdict_sentence(
    subject: str, opponent: str, outcome: Outcome, *, n_opponents: int, difference: str
) -> str:
    """Return the sentence that a result opens with, about the strongest opponent.

    Args:
        subject: Who is compared, at the start of a sentence.
        opponent: The strongest opponent, in words.
        outcome: What the difference shows.
        n_opponents: The number of opponents.
        difference: What differs, and by how much.
    """
    phrase = {
        "better": "beats",
        "worse": "loses to",
        "as good": "is as accurate as",
        "not shown": "is not shown to beat",
        "too few": "was tried on too few hosts to tell whether it beats",
    }[outcome]
    strongest = f", the strongest of {n_opponents} opponents" if n_opponents > 1 else ""
    return f"{subject} {phrase} {opponent}{strongest}: {difference}."


LABELS = {
    "wait": "hosts left alone",
    "random": "random legal growth",
    "fixed": "the fixed schedule",
    "heuristic": "the heuristic",
    "progressive": "progressive growth",
}
"""The controllers that a learned one is compared with, in words."""


def _growth_sentence(learned: ArmResults, wait: ArmResults) -> str:
    """Return whether growth helped, judged by the hosts that were grown."""
    is_grown = learned.seed_parameters > 0
    grown = f"{int(is_grown.sum())} of {len(is_grown)} hosts"
    if is_grown.mean() < SELDOM:
        return (
            f"Growth was not shown to help: the controller grew {grown}. "
            f"{_overall_sentence(learned, wait)}; {_return_sentence(learned, wait)}."
        )
    score = paired_interval(learned.scores[is_grown], wait.scores[is_grown])
    value = paired_interval(learned.returns[is_grown], wait.returns[is_grown])
    overall = paired_interval(learned.scores, wait.scores)
    grown_hosts = (
        f"in the {grown} that it grew, the score was {score.text()} against hosts left alone"
    )
    if not score.is_from_enough:
        verdict = f"Growth was not shown to help: {grown_hosts}; these are too few hosts to tell"
    elif score.is_below_zero:
        verdict = f"Growth did not help: {grown_hosts}"
    elif not score.is_above_zero:
        verdict = f"Growth was not shown to help: {grown_hosts}, which is within noise"
    elif value.is_below_zero:
        verdict = f"Growth raised the score but cost more than it gained: {grown_hosts}"
        verdict += f" and the return {value.text()}"
    elif overall.is_below_zero:
        verdict = f"Growth helped some hosts but not all hosts together: {grown_hosts}"
    else:
        verdict = f"Growth helped: {grown_hosts}"
    if value.is_above_zero and not score.is_above_zero:
        verdict += f" (the return was {value.text()})"
    return f"{verdict}. {_overall_sentence(learned, wait)}."


def _return_sentence(learned: ArmResults, wait: ArmResults) -> str:
    """Return how the return of a controller that hardly grows compares with hosts left alone."""
    value, returned = paired_interval(learned.returns, wait.returns), "return (score minus costs)"
    if not value.is_above_zero:
        return f"its {returned} is not shown to be higher than theirs"
    if paired_interval(wait.flops, learned.flops).is_above_zero:
        return f"its higher {returned} is computing saved by stopping early"
    return f"its {returned} minus theirs is {value.text()}"


def _overall_sentence(learned: ArmResults, wait: ArmResults) -> str:
    """Return the gain over all hosts, and how much computing they took."""
    theirs = float(wait.flops.mean())
    share = float(learned.flops.mean()) / theirs if theirs > 0 else 1.0
    computing = f"{abs(share - 1.0):.0%} {'more' if share > 1.0 else 'less'} computing than"
    if abs(share - 1.0) < 0.005:
        computing = "as much computing as"
    gain = paired_interval(learned.scores, wait.scores)
    return f"Over all hosts, the gain in score is {gain.text()}, with {computing} hosts left alone"

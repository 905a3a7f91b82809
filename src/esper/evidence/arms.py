"""The arms of an evaluation, in words: what each is called, and what it is for the learned one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esper.arrays import Floats, Integers
from esper.errors import ConfigError, did_you_mean
from esper.evidence.host_runs import HostRuns
from esper.evidence.results import Arm, Kind


@dataclass(frozen=True, kw_only=True, eq=False)
class HostEnds:
    """How hosts ended, ``[N]`` each."""

    accuracy: Floats
    flops: Floats
    parameters: Floats
    n_epochs: Floats
    grown: Integers
    """Seeds that were committed while the host trained."""
    n_reads: Integers
    """How often the host was scored on the final split."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmEnds:
    """How an arm did: ``[R, N]``, and ``[R]`` where it says so."""

    accuracy: Floats
    flops: Floats
    parameters: Floats
    n_epochs: Floats
    grown_share: Floats
    """``[R]`` share of hosts in which something was committed while they trained."""
    setting: str = ""
    """What was chosen, in words."""
    tuning_runs: int = 0
    """Host runs that the choice is from."""
    n_reads: int = 1
    """How often a host was scored on the final split, at most."""

    def score(self, price: float) -> Floats:
        """Return accuracy minus the price of the FLOPs."""
        return self.accuracy - price * self.flops


def join_ends(ends: Sequence[HostEnds], *, setting: str = "", tuning_runs: int = 0) -> ArmEnds:
    """Return the arm whose training runs ended so; arms without training have one."""
    stacked = {
        name: np.stack([np.asarray(getattr(one, name), np.float64) for one in ends])
        for name in ("accuracy", "flops", "parameters", "n_epochs")
    }
    grown_share = np.array([float(np.mean(one.grown > 0)) for one in ends])
    return ArmEnds(
        **stacked,
        grown_share=grown_share,
        setting=setting,
        tuning_runs=tuning_runs,
        n_reads=max(int(one.n_reads.max()) for one in ends),
    )


def ends_of(runs: HostRuns) -> HostEnds:
    """Return how hosts ended."""
    return HostEnds(
        accuracy=runs.accuracy,
        flops=runs.flops,
        parameters=runs.parameters.astype(np.float64),
        n_epochs=runs.n_epochs.astype(np.float64),
        grown=runs.grown,
        n_reads=runs.n_reads,
    )


def ends_at(runs: HostRuns, epochs: Integers) -> HostEnds:
    """Return how hosts would have ended had each stopped after its own number of epochs ``[N]``."""
    at = np.arange(len(epochs)), epochs
    return HostEnds(
        accuracy=runs.accuracy_by_epoch[at],
        flops=runs.flops_by_epoch[at],
        parameters=runs.parameters_by_epoch[at],
        n_epochs=np.minimum(epochs, runs.n_epochs).astype(np.float64),
        grown=runs.grown,
        n_reads=runs.n_reads,
    )


LEARNED = "learned"
OTHER_WAY = "learned_other"
"""The learned controller, greedy where it usually draws its actions and the other way round."""


@dataclass(frozen=True)
class ArmFacts:
    """What an arm is, whoever is evaluated."""

    label: str
    kind: Kind
    summary: str
    """What it does, for lists."""


ARMS: dict[str, ArmFacts] = {
    LEARNED: ArmFacts("the learned controller", "learned", "acts as it usually does"),
    OTHER_WAY: ArmFacts(
        "the learned controller", "learned", "greedy if it usually draws its actions, or drawing"
    ),
    "wait": ArmFacts("hosts left alone", "simple", "trained for the whole budget"),
    "random": ArmFacts(
        "random legal growth",
        "simple",
        "as many actions and epochs as the learned controller had in the same host",
    ),
    "fixed": ArmFacts("the best fixed schedule", "tuned", "seeds, start, tempo and stop tuned"),
    "heuristic": ArmFacts("the tuned heuristic", "tuned", "all of its settings tuned"),
    "static": ArmFacts(
        "the best static network", "tuned", "what hosts have from the start and stop tuned"
    ),
    "wide_static": ArmFacts(
        "a static network with as many parameters",
        "same_parameters",
        "widened from the start to about the same size, for as many epochs",
    ),
    "scratch_same_epochs": ArmFacts(
        "the same architecture trained from scratch",
        "same_epochs",
        "what was grown, from the start, with the same initialisation, for as many epochs",
    ),
    "scratch_same_flops": ArmFacts(
        "the same architecture trained from scratch",
        "same_flops",
        "the same, until it has spent as many FLOPs",
    ),
    "context_table": ArmFacts(
        "the best setting for each kind of host",
        "tuned",
        "a fixed schedule or static network for each bucket of classes and samples",
    ),
    "context_heuristic": ArmFacts(
        "a heuristic tuned for each kind of host",
        "tuned",
        "a heuristic for each bucket of classes and samples",
    ),
    "shuffled": ArmFacts(
        "itself with shuffled observations", "ablation", "sees other hosts than it steers"
    ),
    "wrong_task": ArmFacts(
        "its own actions on other tasks", "ablation", "does what it did in another host"
    ),
}
"""All arms by name, in the order in which they are shown."""


def choose_arms(wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Return the arms that are asked for, the learned one among them, in their order.

    Raises:
        ConfigError: If there is no arm of a name.
    """
    if wanted is None:
        return tuple(ARMS)
    if isinstance(wanted, str):
        raise ConfigError(f"arms is {wanted!r}; a list of names is needed.")
    for name in wanted:
        if name not in ARMS:
            hint = did_you_mean(name, ARMS)
            raise ConfigError(f"there is no arm {name!r}; there are {', '.join(ARMS)}.{hint}")
    return tuple(name for name in ARMS if name == LEARNED or name in wanted)


def as_evidence(name: str, ends: ArmEnds, *, is_greedy: bool) -> Arm:
    """Return what an arm came to, in the form that is reported.

    Args:
        name: Of the arm.
        ends: Its results.
        is_greedy: Whether the learned controller usually takes its likeliest action.
    """
    facts, label = ARMS[name], ARMS[name].label
    shown = name
    if name == OTHER_WAY:
        way = "sampled" if is_greedy else "greedy"
        shown, label = f"learned_{way}", f"{facts.label} acting {_WAYS[way]}"
    return Arm(
        name=shown,
        label=label,
        kind=facts.kind,
        setting=ends.setting,
        accuracy=ends.accuracy,
        flops=ends.flops,
        parameters=ends.parameters,
        n_epochs=ends.n_epochs,
        grown_share=ends.grown_share,
        tuning_runs=ends.tuning_runs,
        test_reads=ends.n_reads,
    )


_WAYS = {"greedy": "greedily", "sampled": "at random"}

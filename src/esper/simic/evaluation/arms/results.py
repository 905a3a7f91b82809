"""What an arm of an evaluation came to. Shapes: R = training runs, N = hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esper.simic.evaluation.host_runs import HostRuns

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


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

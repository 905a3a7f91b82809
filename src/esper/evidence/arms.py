"""The arms of an evaluation: their names, labels and kinds. Shapes: R = runs, N = hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from esper.errors import ConfigError, did_you_mean
from esper.evidence.host_runs import HostRuns
from esper.evidence.results import Arm, Kind
from esper.training.comparison import LEARNED

OTHER_MODE = "learned_other"
"""The learned controller, greedy if it usually samples its actions, or sampling if not."""


@dataclass(frozen=True)
class ArmSpec:
    """What an arm is, whichever controller is evaluated."""

    label: str
    """The arm in a sentence."""
    kind: Kind


ARMS: dict[str, ArmSpec] = {
    LEARNED: ArmSpec("the learned controller", "learned"),
    OTHER_MODE: ArmSpec("the learned controller", "learned"),
    "wait": ArmSpec("hosts left alone", "simple"),
    "random": ArmSpec("random legal growth", "simple"),
    "fixed": ArmSpec("the best fixed schedule", "tuned"),
    "heuristic": ArmSpec("the tuned heuristic", "tuned"),
    "static": ArmSpec("the best static network", "tuned"),
    "wide_static": ArmSpec("a static network with as many parameters", "same_parameters"),
    "scratch_same_epochs": ArmSpec("the same architecture trained from scratch", "same_epochs"),
    "scratch_same_flops": ArmSpec("the same architecture trained from scratch", "same_flops"),
    "context_table": ArmSpec("the best setting for each kind of host", "tuned"),
    "context_heuristic": ArmSpec("a heuristic tuned for each kind of host", "tuned"),
    "shuffled": ArmSpec("itself with shuffled observations", "ablation"),
    "wrong_task": ArmSpec("its own actions on other tasks", "ablation"),
}
"""All arms by name, in the order in which they are shown; docs/evidence.md describes each."""


def choose_arms(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the requested arms in the order of :data:`ARMS`; the learned arm is always included.

    Raises:
        ConfigError: If a name is unknown.
    """
    if names is None:
        return tuple(ARMS)
    if isinstance(names, str):
        raise ConfigError(f"arms is {names!r}; it must be a list of names.")
    for name in names:
        if name not in ARMS:
            hint = did_you_mean(name, ARMS)
            raise ConfigError(f"unknown arm {name!r}; arms are {', '.join(ARMS)}.{hint}")
    return tuple(name for name in ARMS if name == LEARNED or name in names)


def make_arm(
    name: str,
    runs: Sequence[HostRuns],
    *,
    setting: str = "",
    tuning_runs: int = 0,
    is_greedy: bool = False,
) -> Arm:
    """Return the results of an arm.

    Args:
        name: Name of the arm.
        runs: Its host runs, one entry per training run; arms without training have one entry.
        setting: What was chosen, in words.
        tuning_runs: Host runs spent on the choice.
        is_greedy: Whether the learned controller usually takes its likeliest action.
    """
    spec = ARMS[name]
    label = spec.label
    if name == OTHER_MODE:
        name, how = (
            ("learned_sampled", "at random") if is_greedy else ("learned_greedy", "greedily")
        )
        label = f"{label} acting {how}"
    return Arm(
        name=name,
        label=label,
        kind=spec.kind,
        setting=setting,
        tuning_runs=tuning_runs,
        **stack_runs(runs),
    )


def stack_runs(runs: Sequence[HostRuns]) -> dict[str, Any]:
    """Return the fields of an :class:`Arm` that hold results, ``[R, N]`` or ``[R]``."""
    stacked = {
        name: np.stack([np.asarray(getattr(one, name), np.float64) for one in runs])
        for name in ("accuracy", "flops", "parameters", "n_epochs")
    }
    return {
        **stacked,
        "grown_share": np.array([float(np.mean(one.grown > 0)) for one in runs]),
        "test_reads": max(int(one.n_reads.max()) for one in runs),
    }

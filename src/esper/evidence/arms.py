"""The arms of an evaluation: their names and kinds. Shapes: R = runs, N = hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from esper.errors import ConfigError, did_you_mean
from esper.results.arms import LABELS, LEARNED, NO_GROWTH, Arm, Kind
from esper.tamiyo.policy.ablation import shuffled_columns
from esper.training.host_runs import HostRuns, make_arm

SHUFFLED = "shuffled"
ARMS: dict[str, Kind] = {
    LEARNED: "learned",
    NO_GROWTH: "simple",
    "random": "simple",
    "fixed": "tuned",
    "heuristic": "tuned",
    "progressive": "simple",
    "fixed-size": "tuned",
    "scratch-same-epochs": "same_epochs",
    "scratch-same-flops": "same_flops",
    SHUFFLED: "ablation",
    "wrong-task": "ablation",
}
"""All arms and their kinds, in the order in which they are shown; see docs/evidence.md."""


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
        family, _, pattern = name.partition(":")
        if name not in ARMS and not (family == SHUFFLED and pattern):
            hint = did_you_mean(name, ARMS)
            raise ConfigError(
                f"unknown arm {name!r}; arms are {', '.join(ARMS)}, and {SHUFFLED}:slots or "
                f"{SHUFFLED} with the names of other observations.{hint}"
            )
        if pattern:
            shuffled_columns([pattern], 1)
    order = list(ARMS)
    chosen = dict.fromkeys((LEARNED, *names))
    return tuple(sorted(chosen, key=lambda name: order.index(name.partition(":")[0])))


def kind_of(name: str) -> Kind:
    """Return the kind of an arm by its name; simple for controllers that are no arms."""
    return ARMS.get(name.partition(":")[0], "simple")


def evaluated_arm(name: str, runs: Sequence[HostRuns], price: float, **facts: Any) -> Arm:
    """Return the result of an arm of an evaluation.

    Args:
        name: Name of the arm.
        runs: Its host runs, one entry per training run; arms without training have one entry.
        price: Score that the FLOPs of one reference run cost.
        **facts: Further fields of :class:`Arm`.
    """
    family, _, pattern = name.partition(":")
    label = LABELS.get(family, name) + (pattern and f" ({pattern})")
    if name in ("fixed", "heuristic"):
        label = label.replace("the ", "the tuned ", 1)
    own: dict[str, Any] = {
        "label": label,
        "kind": kind_of(name),
        "test_reads": max(int(one.n_reads.max()) for one in runs),
    }
    return make_arm(name, runs, price=price, **(own | facts))

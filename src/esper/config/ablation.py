"""Ablations: what is taken away from a controller, or changed in its world."""

from __future__ import annotations

from dataclasses import dataclass, field

from esper.config.checks import Settings


@dataclass(frozen=True, kw_only=True)
class AblationConfig(Settings):
    """What is taken away from the controller, or changed in its world; nothing by default.

    Examples:
        >>> esper.RunConfig().ablation.grows
        True
    """

    grows: bool = True
    """Whether the controller may grow; without, it learns only when to stop."""

    blueprints: tuple[str, ...] = ()
    """Blueprints that the controller is offered; all if empty."""

    hidden: tuple[str, ...] = ()
    """Observations that the controller does not see: names, patterns such as gradient_*, or slots
    for all of the slots'."""

    shuffled: tuple[str, ...] = ()
    """Observations, named likewise, that the controller sees of another host, drawn anew at each
    step. A host that is alone keeps its own."""

    heads: dict[str, int | float | str] = field(default_factory=dict[str, int | float | str])
    """Choices that are fixed, by head: style, tempo, alpha_target, alpha_speed or alpha_curve, such
    as tempo = 3."""

    rewards: dict[str, float] = field(default_factory=dict[str, float])
    """Weights of reward terms in training, 1 by default: progress, settlement, flops_cost, rent,
    penalty or shaping. Evaluations weigh all terms by 1."""

    growth: dict[str, bool | int | float | str] = field(
        default_factory=dict[str, bool | int | float | str]
    )
    """Rules of growth that differ from the task's, such as commits_at_once."""

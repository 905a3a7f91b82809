"""The stages of a seed's life, and which stage may follow which.

dormant > germinated > training > blending > holding > fossilized > dormant
              |            |          |          |
              +------------+----------+----------+--> pruned > embargoed > resetting > dormant
"""

from __future__ import annotations

from enum import IntEnum


class Stage(IntEnum):
    """The stage of a slot's seed.

    Examples:
        >>> esper.Stage.DORMANT.name
        'DORMANT'
    """

    DORMANT = 0
    GERMINATED = 1
    TRAINING = 2
    BLENDING = 3
    HOLDING = 4
    FOSSILIZED = 5
    PRUNED = 6
    EMBARGOED = 7
    RESETTING = 8

    __hash__ = int.__hash__  # faster than an enum's own


TRANSITIONS: dict[Stage, frozenset[Stage]] = {
    Stage.DORMANT: frozenset({Stage.GERMINATED}),
    Stage.GERMINATED: frozenset({Stage.TRAINING, Stage.PRUNED}),
    Stage.TRAINING: frozenset({Stage.BLENDING, Stage.PRUNED}),
    Stage.BLENDING: frozenset({Stage.HOLDING, Stage.PRUNED}),
    Stage.HOLDING: frozenset({Stage.BLENDING, Stage.FOSSILIZED, Stage.PRUNED}),
    Stage.FOSSILIZED: frozenset({Stage.DORMANT}),
    Stage.PRUNED: frozenset({Stage.EMBARGOED}),
    Stage.EMBARGOED: frozenset({Stage.RESETTING}),
    Stage.RESETTING: frozenset({Stage.DORMANT}),
}
"""Legal successors of each stage.

A held seed blends again when it gets a new alpha target. A slot whose seed was fossilized can grow
another after an embargo.
"""

LIVE_STAGES = frozenset({Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING})
"""Stages of a seed that is neither committed nor pruned. A seed limit counts these."""

COOLING_STAGES = frozenset({Stage.PRUNED, Stage.EMBARGOED, Stage.RESETTING})
"""Stages of a slot whose seed was pruned and that is not free yet."""


def may_follow(stage: Stage, successor: Stage) -> bool:
    """Return whether a slot may go from ``stage`` to ``successor``."""
    return successor in TRANSITIONS[stage]

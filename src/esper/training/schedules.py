"""Rates that change from the first round to the last."""

from __future__ import annotations

import math

from esper.config.run import RunConfig


def scheduled(kind: str, start: float, end_share: float, progress: float) -> float:
    """Return the rate at a point of a run.

        constant  start
        linear    start to end_share * start, in equal steps
        cosine    the same ends, slow at both of them

    Args:
        kind: ``"constant"``, ``"linear"`` or ``"cosine"``.
        start: The rate of the first round.
        end_share: The rate of the last round, as a share of the first.
        progress: 0 in the first round, 1 in the last.
    """
    if kind == "constant":
        return start
    way = progress if kind == "linear" else 0.5 * (1.0 - math.cos(math.pi * progress))
    return start * (1.0 + (end_share - 1.0) * way)


def rates_of(config: RunConfig, round_number: int) -> dict[str, float]:
    """Return ``learning_rate`` and ``ent_coef`` of a round, counted from 1."""
    progress = min(1.0, (round_number - 1) / max(1, config.rounds - 1))
    schedule, ppo = config.schedule, config.ppo
    return {
        "learning_rate": scheduled(
            schedule.learning_rate, ppo.learning_rate, schedule.learning_rate_end, progress
        ),
        "ent_coef": scheduled(schedule.ent_coef, ppo.ent_coef, schedule.ent_coef_end, progress),
    }

"""The reward: what a host's score gains minus what that costs. Shapes: N = hosts, S = slots.

The terms of a terminated episode sum to its final score minus its costs:

    progress    change of the validation score in this step
    settlement  at the end: final score minus all progress paid so far
    flops_cost  minus the price of the FLOPs spent in this step
    rent        minus the rent on the parameters that seeds add
    penalty     minus the price of a step that the governor rolled back
    shaping     gamma * potential after the step - potential before it; the potential of an end is 0

Two forms subtract what a baseline would have got, which is the same host: with no growth in the
paired form, and grown by the fixed schedule that suits its price in the scheduled form. The
progress of a step is relative to the baseline's in the same epoch, and so are the final score and
the FLOPs. A controller that does as the baseline does gets 0 in every step, so only what it does
differently makes a difference, however hard the task is.

The sparse form pays the settlement, flops, rent and penalty of the whole episode at its end and
nothing before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from esper.arrays import Flags, Floats, Integers
from esper.config.growth import RewardConfig
from esper.environment.records import EpisodeRecords
from esper.lifecycle.stages import Stage

STAGE_POTENTIALS: dict[Stage, float] = {
    Stage.GERMINATED: 0.2,
    Stage.TRAINING: 0.4,
    Stage.BLENDING: 0.6,
    Stage.HOLDING: 0.8,
    Stage.FOSSILIZED: 1.0,
}
"""How close each stage is to being committed; 0 for all others.

A slot with a fossil has the potential of a committed seed, whatever else grows there.
"""

_POTENTIALS = np.array([STAGE_POTENTIALS.get(stage, 0.0) for stage in Stage])


@dataclass(frozen=True, eq=False)
class RewardTerms:
    """The terms of a step's reward, ``[N]`` each."""

    progress: Floats
    settlement: Floats
    flops_cost: Floats
    rent: Floats
    penalty: Floats
    shaping: Floats

    @property
    def total(self) -> Floats:
        """The reward, the sum of all terms."""
        costs = self.flops_cost + self.rent + self.penalty
        return self.progress + self.settlement + costs + self.shaping

    def weighted(self, weights: Mapping[str, float]) -> Floats:
        """Return the sum of all terms by their weights, which are 1 unless they are given."""
        if not weights:
            return self.total
        terms = self.by_name().items()
        return np.sum([weights.get(name, 1.0) * term for name, term in terms], axis=0)

    def by_name(self) -> dict[str, Floats]:
        """Return each term by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


REWARD_TERMS: tuple[str, ...] = tuple(field.name for field in fields(RewardTerms))


def potential(stage: Integers, n_fossils: Integers, config: RewardConfig) -> Floats:
    """Return the potential ``[N]`` of hosts, given each slot's stage and fossils ``[N, S]``."""
    by_slot = np.where(n_fossils > 0, _POTENTIALS[Stage.FOSSILIZED], _POTENTIALS[stage])
    return config.shaping * by_slot.mean(axis=1)


def settle_step(
    records: EpisodeRecords,
    config: RewardConfig,
    *,
    progress: Floats,
    flops: Floats,
    rent: Floats,
    shaping: Floats,
    is_end: Flags,
    final_score: Floats,
) -> RewardTerms:
    """Return the reward of a step and add the step to its episode's totals, ``[N]`` each.

    What is relative to a baseline has the baseline's part subtracted.

    Args:
        records: The episodes, after the step; the FLOPs that they used are up to date.
        config: Settings of the reward.
        progress: Change of the validation score.
        flops: FLOPs spent in this step, as a share of a reference run's.
        rent: Minus the rent for this step.
        shaping: Change of the potential.
        is_end: Episodes that terminated.
        final_score: Final score of the settled host; only read where ``is_end``.
    """
    penalty = np.where(records.was_restored, -config.governor_penalty, 0.0)
    records.paid_progress[:] += progress
    records.paid_rent[:] += rent
    records.paid_penalty[:] += penalty
    if config.reward == "sparse":
        nothing = np.zeros_like(rent)
        return RewardTerms(
            progress=nothing,
            settlement=np.where(is_end, final_score, 0.0),
            flops_cost=np.where(is_end, -records.flop_price * records.flops_used, 0.0),
            rent=np.where(is_end, records.paid_rent, 0.0),
            penalty=np.where(is_end, records.paid_penalty, 0.0),
            shaping=nothing,
        )
    return RewardTerms(
        progress=progress,
        settlement=np.where(is_end, final_score - records.paid_progress, 0.0),
        flops_cost=-records.flop_price * flops,
        rent=rent,
        penalty=penalty,
        shaping=shaping,
    )

"""The reward: what a host's score gains minus what that costs. Shapes: N = hosts, S = slots.

The terms of a terminated episode sum to its final score minus its costs:

    progress    change of the validation score in this step
    settlement  at the end: final score minus all progress paid so far
    flops       minus the price of the FLOPs spent in this step
    rent        minus the rent on the parameters that seeds add
    penalty     minus the price of a step that the governor rolled back
    shaping     gamma * potential after the step - potential before it; the potential of an end is 0

Two forms subtract what a rival would have got, which is the same host: left alone in the paired
form, and grown by the fixed schedule that suits its price in the scheduled form. The progress of a
step is relative to the rival's in the same epoch, and so are the final score and the FLOPs. A
controller that does as the rival does gets 0 in every step, so only what it does differently makes
a difference, however hard the task is.

The sparse form pays the settlement, flops, rent and penalty of the whole episode at its end and
nothing before.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Floats, Integers
from esper.config.growth import RewardConfig
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
    flops: Floats
    rent: Floats
    penalty: Floats
    shaping: Floats

    @property
    def total(self) -> Floats:
        """The reward, the sum of all terms."""
        costs = self.flops + self.rent + self.penalty
        return self.progress + self.settlement + costs + self.shaping

    def by_name(self) -> dict[str, Floats]:
        """Return each term by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


REWARD_TERMS: tuple[str, ...] = tuple(field.name for field in fields(RewardTerms))


@dataclass(frozen=True, kw_only=True, eq=False)
class RivalAccount:
    """What the same step did to the hosts' rivals, ``[N]`` each."""

    score_change: Floats
    flops: Floats
    """As a share of a reference run's; at the end of an episode, all that are left to spend."""
    final_score: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class StepAccount:
    """What a step did to each host, ``[N]`` each."""

    score_change: Floats
    """Change of the validation score."""
    flops: Floats
    """FLOPs spent in this step, as a share of a reference run's."""
    added_parameters: Floats
    """Parameters of the seeds that trained, as a share of the reference host's."""
    was_restored: NDArray[np.bool_]
    """Hosts that the governor rolled back."""
    potential_before: Floats
    potential_after: Floats
    is_end: NDArray[np.bool_]
    """Episodes that terminated."""
    final_score: Floats
    """Final score of the settled host; only read where ``is_end``."""
    flop_price: Floats
    """Price of a reference run's FLOPs."""
    epoch_rent: Floats
    """Rent for an epoch on as many parameters as the reference host has."""
    rival: RivalAccount | None = None
    """The hosts' rivals, if rewards are relative to them."""


@dataclass(eq=False)
class EpisodeAccount:
    """Running totals of each host's episode, ``[N]`` each."""

    progress: Floats
    flops: Floats
    """FLOPs spent, as a share of a reference run's."""
    rent: Floats
    """Sum of the rent terms, at most 0."""
    penalty: Floats
    """Sum of the penalty terms, at most 0."""


def potential(stage: Integers, n_fossils: Integers, config: RewardConfig) -> Floats:
    """Return the potential ``[N]`` of hosts, given each slot's stage and fossils ``[N, S]``."""
    by_slot = np.where(n_fossils > 0, _POTENTIALS[Stage.FOSSILIZED], _POTENTIALS[stage])
    return config.shaping * by_slot.mean(axis=1)


def settle_step(step: StepAccount, episode: EpisodeAccount, config: RewardConfig) -> RewardTerms:
    """Return the reward of a step and add the step to its episode's totals."""
    rent = -step.epoch_rent * step.added_parameters
    penalty = np.where(step.was_restored, -config.governor_penalty, 0.0)
    progress, flops, final = step.score_change, step.flops, step.final_score
    if step.rival is not None:
        progress = progress - step.rival.score_change
        flops = flops - step.rival.flops
        final = final - step.rival.final_score
    episode.progress += progress
    episode.flops += step.flops
    episode.rent += rent
    episode.penalty += penalty
    if config.reward == "sparse":
        end, nothing = step.is_end, np.zeros_like(rent)
        return RewardTerms(
            progress=nothing,
            settlement=np.where(end, final, 0.0),
            flops=np.where(end, -step.flop_price * episode.flops, 0.0),
            rent=np.where(end, episode.rent, 0.0),
            penalty=np.where(end, episode.penalty, 0.0),
            shaping=nothing,
        )
    after = np.where(step.is_end, 0.0, step.potential_after)
    return RewardTerms(
        progress=progress,
        settlement=np.where(step.is_end, final - episode.progress, 0.0),
        flops=-step.flop_price * flops,
        rent=rent,
        penalty=penalty,
        shaping=config.gamma * after - step.potential_before,
    )

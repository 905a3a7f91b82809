"""The reward of growing a host: what its score gains, minus what that costs. Shapes: N = hosts.

The terms of an episode that ends by itself sum to its final score minus its costs:

    progress    the validation score's change in this step
    settlement  at the end: the final score minus all progress that was paid
    flops       minus the price of the FLOPs spent in this step
    rent        minus the rent on the parameters that seeds add
    penalty     minus the price of a step that the governor had to undo
    shaping     gamma * potential after the step - potential before it; 0 after the end

The sparse form pays settlement, flops, rent and penalty of the whole episode at its end, nothing
before.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Floats
from esper.config.growth import Budget, RewardConfig
from esper.lifecycle.stages import Stage

STAGE_POTENTIALS: dict[Stage, float] = {
    Stage.GERMINATED: 0.2,
    Stage.TRAINING: 0.4,
    Stage.BLENDING: 0.6,
    Stage.HOLDING: 0.8,
    Stage.FOSSILIZED: 1.0,
}
"""How far each stage is on the way to being committed; 0 for the others."""

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
        """The reward."""
        costs = self.flops + self.rent + self.penalty
        return self.progress + self.settlement + costs + self.shaping

    def by_name(self) -> dict[str, Floats]:
        """Return each term by its name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


REWARD_TERMS: tuple[str, ...] = tuple(field.name for field in fields(RewardTerms))


@dataclass(frozen=True, kw_only=True, eq=False)
class StepAccount:
    """What a step did to each host, ``[N]``."""

    score_change: Floats
    """Of the validation score."""
    flops: Floats
    """Spent in this step, as a share of a reference run's."""
    added_parameters: Floats
    """Held in this step, as a share of the reference host's."""
    was_restored: NDArray[np.bool_]
    """Hosts that the governor put back to an earlier state."""
    potential_before: Floats
    potential_after: Floats
    is_end: NDArray[np.bool_]
    """Episodes that ended by themselves."""
    final_score: Floats
    """Score of the committed host at its end; read where ``is_end``."""


@dataclass(eq=False)
class EpisodeAccount:
    """What the episode of each host has come to so far, ``[N]``."""

    progress: Floats
    flops: Floats
    """As a share of a reference run's."""
    rent: Floats
    """Minus what was owed for parameters."""
    penalty: Floats
    """Minus what was owed for steps that the governor had to undo."""


def potential(stage: NDArray[np.int64], config: RewardConfig) -> Floats:
    """Return the potential ``[N]`` of hosts whose slots are in these stages ``[N, S]``."""
    return config.shaping * _POTENTIALS[stage].mean(axis=1)


def settle_step(
    step: StepAccount, episode: EpisodeAccount, budget: Budget, config: RewardConfig
) -> RewardTerms:
    """Return a step's reward and enter the step in its episode's account."""
    rent = -budget.parameter_rent * step.added_parameters / budget.n_epochs
    penalty = np.where(step.was_restored, -config.governor_penalty, 0.0)
    episode.progress += step.score_change
    episode.flops += step.flops
    episode.rent += rent
    episode.penalty += penalty
    if config.reward == "sparse":
        end, nothing = step.is_end, np.zeros_like(rent)
        return RewardTerms(
            progress=nothing,
            settlement=np.where(end, step.final_score, 0.0),
            flops=np.where(end, -budget.flop_price * episode.flops, 0.0),
            rent=np.where(end, episode.rent, 0.0),
            penalty=np.where(end, episode.penalty, 0.0),
            shaping=nothing,
        )
    after = np.where(step.is_end, 0.0, step.potential_after)
    return RewardTerms(
        progress=step.score_change,
        settlement=np.where(step.is_end, step.final_score - episode.progress, 0.0),
        flops=-budget.flop_price * step.flops,
        rent=rent,
        penalty=penalty,
        shaping=config.gamma * after - step.potential_before,
    )

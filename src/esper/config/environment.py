"""Settings of the growth environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from esper.config.checks import require_choice, require_number

REWARDS = ("dense", "sparse")


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """How an episode's result is spread over its steps.

    With gamma 1 the sum is the same for all settings; with another gamma the discounted sum is the
    same for all shapings.
    """

    reward: Literal["dense", "sparse"] = "dense"
    """Pay as it happens, or everything at the end."""

    shaping: float = 0.02
    """Potential, in score, of a host all of whose slots are fossilized; 0 for no shaping."""

    governor_penalty: float = 0.01
    """Score that each epoch costs in which the governor had to put a host back."""

    gamma: float = 1.0
    """Discount of the agent that learns from the reward, which shaping must know."""

    def __post_init__(self) -> None:
        require_choice("reward", self.reward, REWARDS)
        require_number("shaping", self.shaping, least=0.0)
        require_number("governor_penalty", self.governor_penalty, least=0.0)
        require_number("gamma", self.gamma, above=0.0, most=1.0)

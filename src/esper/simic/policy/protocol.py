"""What the agent needs of a policy. :class:`esper.tamiyo.policy.RecurrentPolicy` is one.

Shapes: ``B`` environments, ``L`` rows and ``R`` columns of a sequence grid, ``N`` steps, ``D``
observation size, ``H`` heads, ``K`` choices of the widest head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from esper.simic.policy.action_spec import ActionSpec


@dataclass(frozen=True)
class Decision:
    """What a policy chose for each environment, and what the update needs to know of it."""

    actions: Tensor
    """``[B, H]`` int64."""

    log_probs: Tensor
    """``[B, H]`` of each head's choice."""

    values: Tensor
    """``[B]`` value of the observed states, in units of reward."""

    legal: Tensor
    """``[B, H, K]`` bool, the choices each head was drawn from."""

    state: Tensor
    """``[B, state size]`` recurrent state before the step."""

    next_state: Tensor
    """``[B, state size]`` recurrent state after the step."""


class Policy(Protocol):
    """A recurrent policy with a value, over a factored action."""

    spec: ActionSpec
    observation_size: int

    @property
    def state_size(self) -> int:
        """Numbers that an environment's recurrent state has."""
        ...

    def act(
        self, observations: Tensor, masks: Any, state: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return actions, log-probabilities, values, legal choices and the next state."""
        ...

    def value(self, observations: Tensor, state: Tensor) -> Tensor:
        """Return the value ``[B]`` of observations ``[B, D]``."""
        ...

    def lay_out_masks(self, legal: Tensor) -> Any:
        """Return masks ``[N, H, K]`` in the form that :meth:`evaluate` reads."""
        ...

    def evaluate(
        self,
        observations: Tensor,
        resets: Tensor | None,
        state: Tensor,
        cells: Tensor | None,
        legal: Any,
        actions: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities ``[N, H]``, entropies ``[N, H]`` and values ``[N]``."""
        ...

    def rescale_value(self, scale: Tensor, shift: Tensor) -> None:
        """Replace the value ``v`` by ``scale * v + shift`` for every state."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return what is trained."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything that is learned."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take over what :meth:`state_dict` gave."""
        ...

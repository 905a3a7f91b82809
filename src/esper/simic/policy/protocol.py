"""What an agent needs of a policy.

Shapes: ``B`` environments, ``L`` rows and ``R`` columns of a sequence grid, ``N`` steps, ``H``
heads, ``D`` discrete heads, ``K`` choices of the widest, ``P`` choices of all discrete heads, ``C``
numbers of continuous heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.observations import Observations, ObservationSpec


@dataclass(frozen=True)
class Decision:
    """What a policy chose for each environment, and what the update needs to know about it."""

    actions: Tensor
    """``[B, D]`` int64, the choices of the discrete heads."""

    log_probs: Tensor
    """``[B, H]`` of what each head chose."""

    values: Tensor
    """``[B]`` value of the observed states, in units of reward."""

    legal: Tensor
    """``[B, D, K]`` bool, the choices each discrete head was drawn from."""

    state: Tensor
    """``[B, state size]`` recurrent state before the step."""

    next_state: Tensor
    """``[B, state size]`` recurrent state after the step."""

    numbers: Tensor | None = None
    """``[B, C]`` drawn by the continuous heads, before clipping or squashing."""

    outputs: Tensor | None = None
    """``[B, P + C]`` the network's outputs that the heads drew from, if it keeps them."""


class Policy(Protocol):
    """A policy with a value, over a factored action; with memory or without."""

    spec: ActionSpec
    observation_size: int | ObservationSpec
    """Length of an observation that is a vector, or what it consists of."""

    @property
    def state_size(self) -> int:
        """Length of an environment's recurrent state; 0 without memory."""
        ...

    def act(
        self,
        observations: Observations,
        masks: Any,
        state: Tensor,
        generator: torch.Generator | None,
    ) -> Decision:
        """Choose an action for each environment.

        Args:
            observations: ``[B, ...]``.
            masks: The legal choices, in any form that :func:`as_choice_masks` reads.
            state: ``[B, state size]``; zeros where an episode starts.
            generator: The source of randomness, or None for the most likely action.

        Returns:
            The decision; its values are in the units the critic learns in.
        """
        ...

    def value(self, observations: Observations, state: Tensor) -> Tensor:
        """Return the value ``[B]`` of observations ``[B, ...]``."""
        ...

    def lay_out_masks(self, legal: Tensor, *, is_everything: bool = False) -> Any:
        """Return masks ``[N, D, K]`` in the form that :meth:`evaluate` reads.

        Args:
            legal: The legal choices.
            is_everything: Whether all choices are known to be legal.
        """
        ...

    def evaluate(
        self,
        observations: Observations,
        resets: Tensor | None,
        state: Tensor,
        cells: Tensor | None,
        legal: Any,
        actions: Tensor,
        numbers: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities ``[N, H]``, entropies ``[N, H]`` and values ``[N]``.

        Args:
            observations: ``[L, R, ...]``, a grid of sequences side by side; ``[N, ...]`` for a
                policy without memory.
            resets: ``[L, R]`` bool, cells that only set the state to zero; None for none.
            state: ``[R, state size]`` before the first row.
            cells: ``[N]`` the cells of the grid, row by row, that are steps; None for all.
            legal: The legal choices of the N steps.
            actions: ``[N, D]`` the choices taken.
            numbers: ``[N, C]`` the numbers drawn by continuous heads.
        """
        ...

    def rescale_value(self, scale: Tensor, shift: Tensor) -> None:
        """Replace the value ``v`` by ``scale * v + shift`` for every state."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the trained parameters."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything that is learned."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Restore what :meth:`state_dict` returned."""
        ...


def note_weights(policy: nn.Module) -> list[int]:
    """Return what tells whether a policy's weights have been changed since, in whatever way."""
    return [hash(parameter.detach().cpu().numpy().tobytes()) for parameter in policy.parameters()]

"""Policies: what an agent needs of a network over factored, masked actions.

Shapes: ``B`` environments, ``L`` rows and ``R`` columns of a sequence grid, ``N`` steps, ``H``
heads, ``D`` discrete heads, ``K`` choices of the widest, ``P`` choices of all discrete heads, ``C``
numbers of continuous heads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from esper.simic import tensors
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.distribution import raise_unsound
from esper.simic.policy.heads import ActionHeads
from esper.simic.policy.mask_reader import as_choice_masks
from esper.simic.policy.networks import Encoder
from esper.simic.policy.observations import Observations, ObservationSpec, batch_size


@dataclass(eq=False)
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

    def read(self, spec: ActionSpec) -> tuple[NDArray[np.int64], NDArray[np.float32] | None]:
        """Return actions and numbers on the host, in one transfer.

        Raises:
            NoLegalActionError: If a head has no legal choice, naming head and environment.
            NonFiniteError: If the policy's output is not finite.
        """
        if self.actions.is_cpu:
            return self.actions.numpy(), None if self.numbers is None else self.numbers.numpy()
        is_sound = torch.isfinite(self.log_probs).all(dim=1, keepdim=True)
        numbers = self.log_probs[:, :0] if self.numbers is None else self.numbers
        both = tensors.to_host(torch.cat([self.actions.float(), numbers, is_sound.float()], dim=1))
        if not both[:, -1].all():
            raise_unsound(spec, self.log_probs.cpu(), self.legal.cpu())
        n_discrete = self.actions.shape[1]
        return (
            both[:, :n_discrete].astype(np.int64),
            None if self.numbers is None else both[:, n_discrete:-1],
        )


class Evaluation(NamedTuple):
    """What a policy's network says about steps. Gradients flow through all of it."""

    outputs: Tensor
    """``[N, P + C]`` that the heads turn into probabilities."""
    values: Tensor
    """``[N]`` in the units that the critic learns in."""
    features: Tensor
    """``[N, F]`` that the heads read."""


class Policy(nn.Module, ABC):
    """A policy with a value, with memory or without: one step of a network, and heads on it."""

    spec: ActionSpec
    heads: ActionHeads
    observation_spec: ObservationSpec
    fresh_weights: Any = None
    """Tells an agent that the weights are still those of the default seed; see `note_weights`."""

    @property
    @abstractmethod
    def state_size(self) -> int:
        """Length of an environment's recurrent state; 0 without memory."""

    @abstractmethod
    def initialize(self, generator: torch.Generator) -> None:
        """Draw all weights."""

    @abstractmethod
    def evaluate(
        self,
        observations: Observations,
        resets: Tensor | None,
        state: Tensor,
        cells: Tensor | None,
    ) -> Evaluation:
        """Return outputs, values and features of steps.

        Args:
            observations: ``[L, R, ...]``, a grid of sequences side by side; ``[N, ...]`` for a
                policy without memory.
            resets: ``[L, R]`` bool, cells that only set the state to zero; None for none.
            state: ``[R, state size]`` before the first row.
            cells: ``[N]`` the cells of the grid, row by row, that are steps; None for all.
        """

    @property
    @abstractmethod
    def _value_layer(self) -> nn.Linear:
        """The layer whose last output is the value."""

    @property
    def is_value_trained(self) -> bool:
        """Whether the layer that gives the value is trained; one that is frozen stays as it is."""
        return self._value_layer.weight.requires_grad

    @torch.no_grad()
    def rescale_value(self, scale: float | Tensor, shift: float | Tensor) -> None:
        """Replace the value ``v`` by ``scale * v + shift``, exactly, for every state."""
        self._value_layer.weight[-1].mul_(scale)
        self._value_layer.bias[-1].mul_(scale).add_(shift)

    @abstractmethod
    def _step(self, observations: Any, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs ``[B, P + C]``, values ``[B]`` and the next state ``[B, state size]``."""

    @property
    @abstractmethod
    def _output_weight(self) -> Tensor:
        """The weight of the layer that gives the outputs."""

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
        self._check(observations, state)
        choices = as_choice_masks(self.spec, masks, state.shape[0], self._output_weight.device)
        outputs, values, next_state = self._step(observations, state)
        actions, numbers, log_probs, legal = self.heads.draw(outputs, choices, generator)
        return Decision(actions, log_probs, values, legal, state, next_state, numbers, outputs)

    def value(self, observations: Observations, state: Tensor) -> Tensor:
        """Return the value ``[B]`` of observations ``[B, ...]`` in states ``[B, state size]``."""
        self._check(observations, state)
        return self._step(observations, state)[1]

    def learn_observations(self, observations: Any) -> None:
        """Update the running statistics of observations ``[N, ...]``, if there are any."""
        for module in self.modules():
            if isinstance(module, Encoder):
                module.learn_observations(observations)

    @torch.no_grad()
    def probabilities(self, decision: Decision) -> Tensor:
        """Return the probability ``[B, P]`` of each choice in a decision of this policy."""
        assert decision.outputs is not None, "the policy keeps its outputs"
        return self.heads.probabilities(decision.outputs, decision.legal)

    @torch.no_grad()
    def is_finite(self, observations: Observations, state: Tensor) -> bool:
        """Return whether outputs and values of observations ``[B, ...]`` are all finite."""
        outputs, values, _ = self._step(observations, state)
        return bool(torch.isfinite(outputs).all() & torch.isfinite(values).all())

    def _initialize_with(self, generator: torch.Generator | None) -> None:
        """Draw all weights, from the default seed if there is no generator."""
        self.initialize(generator or torch.Generator().manual_seed(0))
        self.fresh_weights = note_weights(self) if generator is None else None

    def _check(self, observations: Observations, state: Tensor) -> None:
        """Reject observations and states that do not fit the network."""
        weight = self._output_weight
        self.observation_spec.require_fit(observations, weight)
        shape = (batch_size(observations), self.state_size)
        tensors.check_tensor("state", state, shape, weight.dtype, weight.device)


def note_weights(policy: nn.Module) -> list[int]:
    """Return what tells whether a policy's weights have been changed since, in whatever way."""
    return [hash(parameter.detach().cpu().numpy().tobytes()) for parameter in policy.parameters()]

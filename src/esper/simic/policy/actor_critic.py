"""Actor-critic policies over a network that turns observations into features.

Shapes: ``B`` environments, ``N`` steps, ``L`` rows and ``R`` columns of a grid of sequences, ``F``
features, ``H`` heads, ``D`` discrete heads, ``K`` choices of the widest.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from esper.errors import ConfigError
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.heads import ActionHeads, LossGradient
from esper.simic.policy.masks import LegalChoices
from esper.simic.policy.networks import (
    EncoderTowers,
    backpropagate_towers,
    initialize,
    tower_layers,
)
from esper.simic.policy.observations import Observations, ObservationSpec, batch_size, map_leaves
from esper.simic.policy.policy import Policy


class ActorCriticPolicy(Policy):
    """A policy and a value on the features of any network.

    The network may have memory. Sequences then pass through it one step after another; the
    :class:`~esper.simic.policy.recurrent.RecurrentPolicy` does the same in one call.
    """

    def __init__(
        self,
        spec: ActionSpec,
        observation_spec: ObservationSpec,
        network: nn.Module,
        *,
        squash: bool = False,
        log_std_init: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        """Add the output layers to a network.

        Args:
            spec: The heads of an action.
            observation_spec: What observations consist of.
            network: As :mod:`esper.simic.policy.networks` describes it.
            squash: Squash continuous actions by tanh.
            log_std_init: Initial logarithm of the standard deviation of continuous actions.
            generator: Draws the weights; without one, a network keeps those it has.
        """
        super().__init__()
        size = getattr(network, "output_size", None)
        if not isinstance(size, int) or size < 1:
            raise ConfigError(
                f"the network {type(network).__name__} has output_size {size!r}; it must have an "
                "attribute output_size, the number of features that forward returns."
            )
        self.spec, self.observation_spec = spec, observation_spec
        self.network = network
        self.heads = ActionHeads(spec, squash=squash, log_std_init=log_std_init)
        self.policy_layer = nn.Linear(size, self.heads.n_outputs)
        self.value_layer = nn.Linear(size, 1)
        self._state_size = int(getattr(network, "state_size", 0))
        self._initialize_with(generator)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights: near-uniform actions, a value of zero."""
        # A network of the user's own keeps the weights that it drew itself.
        if hasattr(self.network, "learn_observations"):
            initialize(self.network, generator)
        nn.init.orthogonal_(self.policy_layer.weight, gain=0.01, generator=generator)
        for layer in (self.policy_layer.bias, self.value_layer.weight, self.value_layer.bias):
            nn.init.zeros_(layer)

    @property
    def state_size(self) -> int:
        """Length of an environment's recurrent state; 0 without memory."""
        return self._state_size

    def evaluate(
        self,
        observations: Observations,
        resets: Tensor | None,
        state: Tensor,
        cells: Tensor | None,
        legal: LegalChoices,
        actions: Tensor,
        numbers: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities, entropies and values; see :meth:`Policy.evaluate`."""
        if self.state_size:
            outputs, values = self._run_sequences(observations, resets, state)
            if cells is not None:
                outputs, values = outputs.index_select(0, cells), values.index_select(0, cells)
        else:
            outputs, values, _ = self._step(observations, state)
        log_probs, entropies = self.heads.evaluate(outputs, legal, actions, numbers)
        return log_probs, entropies, values

    def backpropagate(
        self,
        observations: Observations,
        legal: LegalChoices,
        actions: Tensor,
        numbers: Tensor | None,
        loss: LossGradient,
    ) -> bool:
        """Write the gradients of a loss into ``grad`` of all parameters, if it can.

        Two towers on vectors are so small that autograd's bookkeeping takes longer than their
        arithmetic; their chain rule is written out. Other networks leave it to autograd. Call it
        under ``torch.no_grad()``.
        """
        network = self.network
        if not isinstance(network, EncoderTowers) or network.encoder.images:
            return False
        inputs, hidden, outputs, values = self._run_towers(network, observations)
        for_policy, for_value = hidden[-1][0], hidden[-1][1]
        policy, value, towers = self.policy_layer, self.value_layer, network.towers
        d_outputs, d_values = self.heads.differentiate(
            outputs, values, legal, actions, numbers, loss
        )
        torch.mm(d_outputs.t(), for_policy, out=policy.weight.grad)
        torch.sum(d_outputs, 0, out=policy.bias.grad)
        torch.mm(d_values.unsqueeze(0), for_value, out=value.weight.grad)
        torch.sum(d_values, 0, keepdim=True, out=value.bias.grad)
        d_last = torch.empty_like(hidden[-1], memory_format=torch.contiguous_format)
        torch.mm(d_outputs, policy.weight, out=d_last[0])
        torch.outer(d_values, value.weight[0], out=d_last[1])
        backpropagate_towers(inputs, hidden, d_last, towers.activation, towers.layers())
        return True

    def _run_towers(
        self, network: EncoderTowers, observations: Observations
    ) -> tuple[Tensor, list[Tensor], Tensor, Tensor]:
        """Return the towers' inputs and activations, outputs ``[N, P + C]`` and values ``[N]``."""
        inputs, towers = network.encoder.forward(observations), network.towers
        hidden = tower_layers(inputs, towers.activation, *towers.layers())
        policy, value = self.policy_layer, self.value_layer
        outputs = torch.addmm(policy.bias, hidden[-1][0], policy.weight.t())
        return inputs, hidden, outputs, torch.addmv(value.bias, hidden[-1][1], value.weight[0])

    @torch.no_grad()
    def rescale_value(self, scale: float | Tensor, shift: float | Tensor) -> None:
        """Replace the value ``v`` by ``scale * v + shift``, exactly, for every state."""
        self.value_layer.weight.mul_(scale)
        self.value_layer.bias.mul_(scale).add_(shift)

    def learn_observations(self, observations: Observations) -> None:
        """Update running statistics of observations ``[N, ...]``, if the network has any."""
        if hasattr(self.network, "learn_observations"):
            cast(Any, self.network).learn_observations(observations)

    @property
    def _output_weight(self) -> Tensor:
        return self.policy_layer.weight

    def _step(self, observations: Observations, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs ``[B, P + C]``, values ``[B]`` and the next state."""
        if isinstance(self.network, EncoderTowers):
            _, _, outputs, values = self._run_towers(self.network, observations)
            return outputs, values, state
        if self.state_size:
            features, state = self.network(observations, state)
        else:
            features = self.network(observations)
        is_pair = isinstance(features, tuple)
        for_policy, for_value = cast(
            "tuple[Tensor, Tensor]", features if is_pair else (features, features)
        )
        outputs = self.policy_layer(for_policy)
        return outputs, self.value_layer(for_value).squeeze(-1), state

    def _run_sequences(
        self, observations: Observations, resets: Tensor | None, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return outputs and values of all cells of a grid ``[L, R]``, row by row."""
        outputs, values = list[Tensor](), list[Tensor]()
        n_rows = batch_size(observations)
        for row in range(n_rows):

            def take(tensor: Tensor, row: int = row) -> Tensor:
                return tensor[row]

            output, value, state = self._step(map_leaves(take, observations), state)
            if resets is not None:
                state = state.masked_fill(resets[row].unsqueeze(-1), 0.0)
            outputs.append(output)
            values.append(value)
        return torch.cat(outputs), torch.cat(values)

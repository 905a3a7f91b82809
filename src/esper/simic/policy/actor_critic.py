"""Actor-critic policies over a network that turns observations into features.

Shapes: ``B`` environments, ``N`` steps, ``L`` rows and ``R`` columns of a grid of sequences, ``F``
features, ``H`` heads, ``D`` discrete heads, ``K`` choices of the widest.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from esper.errors import ConfigError
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.heads import ActionHeads
from esper.simic.policy.networks import EncoderTowers, initialize
from esper.simic.policy.observations import Observations, ObservationSpec, batch_size, map_leaves
from esper.simic.policy.policy import Evaluation, Policy


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
        self.value_layer = nn.Linear(getattr(network, "value_size", size), 1)
        self._state_size = int(getattr(network, "state_size", 0))
        self._initialize_with(generator)

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weights: near-uniform actions, a value of zero."""
        # A network of the user's own keeps the weights that it drew itself.
        if isinstance(self.network, EncoderTowers):
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
    ) -> Evaluation:
        """Return what the network says about steps; see :meth:`Policy.evaluate`."""
        if self.state_size:
            features, for_value = self._run_sequences(observations, resets, state)
            if cells is not None:
                features = features.index_select(0, cells)
                for_value = for_value.index_select(0, cells)
        else:
            features, for_value, _ = self._features(observations, state)
        return Evaluation(*self._output(features, for_value), features)

    @property
    def _value_layer(self) -> nn.Linear:
        return self.value_layer

    @property
    def _output_weight(self) -> Tensor:
        return self.policy_layer.weight

    def _step(self, observations: Observations, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs ``[B, P + C]``, values ``[B]`` and the next state."""
        features, for_value, state = self._features(observations, state)
        return *self._output(features, for_value), state

    def _features(self, observations: Observations, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return features ``[B, F]`` for the policy and for the value, and the next state."""
        if self.state_size:
            found, state = self.network(observations, state)
        else:
            found = self.network(observations)
        if isinstance(found, tuple):
            return *cast("tuple[Tensor, Tensor]", found), state
        return found, found, state

    def _output(self, for_policy: Tensor, for_value: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs ``[B, P + C]`` and values ``[B]`` for features."""
        return self.policy_layer(for_policy), self.value_layer(for_value).squeeze(-1)

    def _run_sequences(
        self, observations: Observations, resets: Tensor | None, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return both features of all cells of a grid ``[L, R]``, row by row."""
        for_policy, for_value = list[Tensor](), list[Tensor]()
        n_rows = batch_size(observations)
        for row in range(n_rows):

            def take(tensor: Tensor, row: int = row) -> Tensor:
                return tensor[row]

            features, values, state = self._features(map_leaves(take, observations), state)
            if resets is not None:
                state = state.masked_fill(resets[row].unsqueeze(-1), 0.0)
            for_policy.append(features)
            for_value.append(values)
        return torch.cat(for_policy), torch.cat(for_value)

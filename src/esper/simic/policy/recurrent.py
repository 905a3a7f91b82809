"""Recurrent actor-critics: rectified features, one LSTM, one output layer.

Shapes: ``B`` environments, ``L`` rows of a grid of sequences, ``R`` sequences side by side, ``N``
steps, ``D`` observation size, ``F`` feature size, ``M`` LSTM size, ``H`` heads, ``K`` choices of
the widest head, ``P`` outputs of all heads side by side, ``W`` any size.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, cast

import torch
from torch import Tensor, nn

from esper.config.learning import NetworkConfig, PolicyConfig
from esper.config.memory import BYTES_PER_WEIGHT, require_memory
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.heads import ActionHeads
from esper.simic.policy.networks import Encoder, initialize
from esper.simic.policy.observations import Observations, ObservationSpec, leaves_of, map_leaves
from esper.simic.policy.policy import Evaluation, Policy

# Far below any pre-activation, yet its products stay finite: a sigmoid of it is exactly zero.
_CLOSED = -1.0e4


class RecurrentTrunk(Policy):
    """A policy and a value for partially observed environments with factored, masked actions.

    The state of an environment is one vector ``[2 * M]``: the LSTM's output and its cell.

    The last feature is not learned. Its weights are zero, so it is 0 at every real step; at a
    *reset* step it is set to 1 and closes the LSTM's input, forget and output gates, which leaves
    output and cell at exactly zero. So a sequence in which a new episode starts still passes
    through the LSTM in one call. None of these weights ever gets a gradient: a rectifier passes
    none at 0, and neither do closed gates.
    """

    features: nn.Linear
    lstm: nn.LSTM
    outputs: nn.Linear
    """What the heads read from the LSTM's output, and last the value."""

    def __init__(
        self,
        spec: ActionSpec,
        observation_size: int | ObservationSpec,
        heads: ActionHeads | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.observation_spec = ObservationSpec.of(observation_size)
        self.heads = heads or ActionHeads(spec)

    def _add_trunk(
        self, n_inputs: int, n_outputs: int, config: PolicyConfig | NetworkConfig
    ) -> None:
        """Create the layers, after any that precede them."""
        feature_size, lstm_size = config.feature_size, config.lstm_size
        n_weights = feature_size * n_inputs + lstm_size * (4 * (feature_size + lstm_size))
        require_memory(BYTES_PER_WEIGHT * n_weights, feature_size=feature_size, lstm_size=lstm_size)
        self.lstm_size = config.lstm_size
        self.features = nn.Linear(n_inputs, config.feature_size)
        self.lstm = nn.LSTM(config.feature_size, config.lstm_size)
        self.outputs = nn.Linear(config.lstm_size, n_outputs)

    @abstractmethod
    def _encode(self, observations: Any) -> tuple[Tensor, Tensor | None]:
        """Return features ``[N, F]`` of observations ``[N, ...]``, before they are rectified.

        And what the heads read besides the LSTM's output, ``[..., N, W]``; None if nothing.
        """

    @abstractmethod
    def _output(self, hidden: Tensor, extra: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return head outputs ``[N, P]`` and values ``[N]`` for LSTM outputs ``[N, M]``."""

    @abstractmethod
    def logit_bias(self, head: str) -> Tensor:
        """Return the bias of a head's logits, ``[choices]``; it can be changed in place."""

    @property
    def _output_weight(self) -> Tensor:
        return self.outputs.weight

    @property
    def state_size(self) -> int:
        """Length of an environment's recurrent state."""
        return 2 * self.lstm_size

    def evaluate(
        self,
        observations: Observations,
        resets: Tensor | None,
        state: Tensor,
        cells: Tensor | None,
    ) -> Evaluation:
        """Return what the network says about steps; see :meth:`Policy.evaluate`."""
        grid = next(iter(leaves_of(observations).values())).shape[:2]
        encoded, extra = self._encode(map_leaves(lambda leaf: leaf.flatten(0, 1), observations))
        features = torch.relu(encoded).view(*grid, -1)
        if resets is not None:
            closing = features.new_zeros(features.shape[-1])
            closing[-1] = 1.0
            features = torch.where(resets.unsqueeze(-1), closing, features)
        start = state.unsqueeze(0)
        hidden, _ = self.lstm(
            features,
            (start[..., : self.lstm_size].contiguous(), start[..., self.lstm_size :].contiguous()),
        )
        hidden = hidden.flatten(0, 1)
        if cells is not None:
            hidden = hidden.index_select(0, cells)
            extra = None if extra is None else extra.index_select(-2, cells)
        return Evaluation(*self._output(hidden, extra), hidden)

    @property
    def _value_layer(self) -> nn.Linear:
        return self.outputs

    def _step(self, observations: Observations, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return head outputs ``[B, P]``, values ``[B]`` and the next state ``[B, 2 * M]``."""
        encoded, extra = self._encode(observations)
        size = self.lstm_size
        start = (state[:, :size], state[:, size:])
        hidden, cell = torch.lstm_cell(torch.relu(encoded), start, *self._lstm_weights())
        return *self._output(hidden, extra), torch.cat([hidden, cell], dim=-1)

    def _lstm_weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the LSTM's input weights, recurrent weights and their two biases."""
        return cast("tuple[Tensor, Tensor, Tensor, Tensor]", tuple(self.lstm.all_weights[0]))

    @torch.no_grad()
    def _initialize_trunk(self, generator: torch.Generator) -> None:
        """Draw orthogonal weights: a lasting memory, near-uniform actions, a value of zero."""
        size = self.lstm_size
        from_input, from_state, input_bias, state_bias = self._lstm_weights()
        nn.init.orthogonal_(self.features.weight[:-1], gain=2**0.5, generator=generator)
        self.features.weight[-1] = 0.0
        nn.init.orthogonal_(self.outputs.weight[:-1], gain=0.01, generator=generator)
        # A value of zero is right whatever the size of rewards; a random one is noise to unlearn.
        nn.init.zeros_(self.outputs.weight[-1:])
        for gate in range(4):
            rows = slice(gate * size, (gate + 1) * size)
            nn.init.orthogonal_(from_state[rows], generator=generator)
            nn.init.orthogonal_(from_input[rows, :-1], generator=generator)
        for bias in (self.features.bias, self.outputs.bias, input_bias, state_bias):
            nn.init.zeros_(bias)
        # PyTorch orders the gates input, forget, cell, output.
        input_bias[size : 2 * size] = 1.0
        from_input[:, -1] = _CLOSED
        from_input[2 * size : 3 * size, -1] = 0.0


class RecurrentPolicy(RecurrentTrunk):
    """A recurrent policy and its value for observations of any kind."""

    def __init__(
        self,
        spec: ActionSpec,
        observation_size: int | ObservationSpec,
        config: NetworkConfig | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        """Build the network.

        Args:
            spec: The heads of an action.
            observation_size: Length of an observation that is a vector, or what it consists of.
            config: Sizes of the network.
            generator: Draws the weights; without one the agent's seed decides them.
        """
        config = config or NetworkConfig()
        heads = ActionHeads(spec, squash=config.squash, log_std_init=config.log_std_init)
        super().__init__(spec, observation_size, heads)
        self.encoder = Encoder(self.observation_spec, config)
        self._add_trunk(self.encoder.output_size, heads.n_outputs + 1, config)
        self._initialize_with(generator)

    def initialize(self, generator: torch.Generator) -> None:
        """Draw all weights."""
        self._initialize_trunk(generator)
        initialize(self.encoder, generator)

    def logit_bias(self, head: str) -> Tensor:
        """Return the bias of a head's logits, ``[choices]``; it can be changed in place."""
        column = self.spec.index(head)
        first = sum(self.spec.sizes[:column])
        return self.outputs.bias.detach()[first : first + self.spec.sizes[column]]

    def _encode(self, observations: Any) -> tuple[Tensor, None]:
        return self.features(self.encoder(observations)), None

    def _output(self, hidden: Tensor, extra: Tensor | None) -> tuple[Tensor, Tensor]:
        outputs = self.outputs(hidden)
        return outputs[:, :-1], outputs[:, -1]

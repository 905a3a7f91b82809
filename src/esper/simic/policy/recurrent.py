"""What recurrent actor-critics have in common: rectified features, one LSTM, one output layer.

Shapes: ``B`` environments, ``L`` rows of a grid of sequences, ``R`` sequences side by side, ``N``
steps, ``D`` observation size, ``F`` feature size, ``M`` LSTM size, ``H`` heads, ``K`` choices of
the widest head, ``P`` choices of all heads side by side, ``W`` any size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from esper.config import PolicyConfig
from esper.errors import DeviceError, DtypeError, ShapeError, TensorError
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.distribution import draw_actions, evaluate_actions, masked_log_softmax
from esper.simic.policy.encoders import CategoryColumns
from esper.simic.policy.masks import LegalChoices, MaskInput, as_choice_masks
from esper.simic.policy.normalizers import ObservationNormalizer

# Far below any pre-activation, yet its products stay finite: a sigmoid of it is exactly zero.
_CLOSED = -1.0e4


class RecurrentTrunk(nn.Module, ABC):
    """A policy and a value for partially observed environments with factored, masked actions.

    The state of an environment is one vector ``[2 * M]``: the LSTM's output and its cell.

    The last of the features is not learned. Its weights are zero, so it is 0 at every real step; at
    a *reset* step it is set to 1 and closes the LSTM's input, forget and output gates, which leaves
    output and cell at exactly zero. So a sequence in which a new episode starts still runs through
    the LSTM in one call. None of these weights ever gets a gradient: a rectifier passes none at 0,
    and neither do closed gates.
    """

    features: nn.Linear
    lstm: nn.LSTM
    outputs: nn.Linear
    """What the heads need of the LSTM's output, and last the value."""

    def __init__(self, spec: ActionSpec, observation_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.observation_size = observation_size

    def _add_trunk(self, n_inputs: int, n_outputs: int, config: PolicyConfig) -> None:
        """Make the layers; those that a policy has before them are made before."""
        self.lstm_size = config.lstm_size
        self.features = nn.Linear(n_inputs, config.feature_size)
        self.lstm = nn.LSTM(config.feature_size, config.lstm_size)
        self.outputs = nn.Linear(config.lstm_size, n_outputs)

    @abstractmethod
    def _see(self, observations: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return features ``[N, F]`` of observations ``[N, D]``, before they are rectified.

        And what the heads read beside the LSTM's output, ``[..., N, W]``; None if nothing.
        """

    @abstractmethod
    def _answer(self, hidden: Tensor, beside: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return logits ``[N, P]`` and values ``[N]`` for the LSTM's outputs ``[N, M]``."""

    @abstractmethod
    def _answer_steps(self, hidden: Tensor, beside: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the same with the steps last, logits ``[P, N]`` and values ``[N]``."""

    @abstractmethod
    def logit_bias(self, head: str) -> Tensor:
        """Return what is added to the logits of a head, ``[choices]``; can be changed in place."""

    @abstractmethod
    def learn_observations(self, observations: Tensor) -> None:
        """Take in observations ``[N, D]`` for their running statistics, if it keeps any."""

    @property
    def state_size(self) -> int:
        """Numbers that an environment's recurrent state has."""
        return 2 * self.lstm_size

    def act(
        self,
        observations: Tensor,
        masks: MaskInput,
        state: Tensor,
        generator: torch.Generator | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Choose an action for each environment.

        Args:
            observations: ``[B, D]``.
            masks: The legal choices, in any form that :func:`as_choice_masks` reads.
            state: ``[B, 2 * M]``; zeros where an episode starts.
            generator: The source of randomness, or None for the likeliest action.

        Returns:
            actions: ``[B, H]`` int64.
            log_probs: ``[B, H]`` of each head's choice, given what it was drawn from.
            values: ``[B]`` in the units the critic learns in.
            legal: ``[B, H, K]`` bool, what each head was drawn from.
            state: ``[B, 2 * M]`` after the step.
        """
        choices = as_choice_masks(self.spec, masks, observations)
        logits, values, next_state = self._step(observations, state)
        actions, log_probs, legal = draw_actions(self.spec, logits, choices, generator)
        return actions, log_probs, values, legal, next_state

    @torch.no_grad()
    def probabilities(self, observations: Tensor, state: Tensor, legal: Tensor) -> Tensor:
        """Return the probability ``[B, P]`` of each choice of each head, side by side.

        Args:
            observations: ``[B, D]``.
            state: ``[B, 2 * M]`` before the step.
            legal: ``[B, H, K]`` bool, what each head is drawn from, as :meth:`act` gives it.
        """
        logits, _, _ = self._step(observations, state)
        return masked_log_softmax(logits.t(), self.lay_out_masks(legal))[1].t()

    def value(self, observations: Tensor, state: Tensor) -> Tensor:
        """Return the value ``[B]`` of observations ``[B, D]`` in states ``[B, 2 * M]``."""
        return self._step(observations, state)[1]

    @torch.no_grad()
    def is_finite(self, observations: Tensor, state: Tensor) -> bool:
        """Return whether logits and values of observations ``[B, D]`` are all finite."""
        logits, values, _ = self._step(observations, state)
        return bool(torch.isfinite(logits).all() & torch.isfinite(values).all())

    def lay_out_masks(self, legal: Tensor) -> LegalChoices:
        """Return masks ``[N, H, K]`` in the form that :meth:`evaluate` reads."""
        # A log-probability needs at least single precision, whatever the weights are in.
        dtype = torch.promote_types(self.outputs.weight.dtype, torch.float32)
        return LegalChoices.of(self.spec, legal, dtype)

    def evaluate(
        self,
        observations: Tensor,
        resets: Tensor | None,
        state: Tensor,
        cells: Tensor | None,
        legal: LegalChoices,
        actions: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probabilities ``[N, H]``, entropies ``[N, H]`` and values ``[N]``.

        Args:
            observations: ``[L, R, D]``, a grid of sequences side by side.
            resets: ``[L, R]`` bool, cells that only set the state to zero; None for none.
            state: ``[R, 2 * M]`` before the first row.
            cells: ``[N]`` the cells of the grid, row by row, that are the steps; None for all.
            legal: The legal choices of the N steps.
            actions: ``[N, H]`` the choices taken.
        """
        # Flat, because rectifying a view in place would make the gradient copy all of it.
        seen, beside = self._see(observations.flatten(0, 1))
        features = torch.relu_(seen).view(*observations.shape[:2], -1)
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
            beside = None if beside is None else beside.index_select(-2, cells)
        logits, values = self._answer_steps(hidden, beside)
        log_probs, entropies = evaluate_actions(logits.t(), legal, actions)
        return log_probs, entropies, values

    @torch.no_grad()
    def rescale_value(self, scale: float | Tensor, shift: float | Tensor) -> None:
        """Replace the value ``v`` by ``scale * v + shift``, exactly, for every state."""
        self.outputs.weight[-1].mul_(scale)
        self.outputs.bias[-1].mul_(scale).add_(shift)

    def _step(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits ``[B, P]``, values ``[B]`` and the next state ``[B, 2 * M]``."""
        self._check(observations, state)
        seen, beside = self._see(observations)
        size = self.lstm_size
        start = (state[:, :size], state[:, size:])
        hidden, cell = torch.lstm_cell(torch.relu_(seen), start, *self._lstm_weights())
        return *self._answer(hidden, beside), torch.cat([hidden, cell], dim=-1)

    def _check(self, observations: Tensor, state: Tensor) -> None:
        """Refuse observations and states that do not fit the network."""
        weight, batch = self.features.weight, 0
        if isinstance(observations, Tensor) and observations.ndim:
            batch = observations.shape[0]
        for name, tensor, size in (
            ("observations", observations, self.observation_size),
            ("state", state, self.state_size),
        ):
            if not isinstance(tensor, Tensor):
                kind = type(tensor).__name__
                raise TensorError(f"{name} is a {kind}; a torch.Tensor is needed.")
            if tensor.shape != (batch, size) or batch == 0:
                raise ShapeError(
                    f"{name} has shape {tuple(tensor.shape)}; [batch, {size}] is needed, "
                    "with one batch size of at least 1 for observations and state."
                )
            if tensor.dtype is not weight.dtype:
                raise DtypeError(f"{name} has dtype {tensor.dtype}; {weight.dtype} is needed.")
            if tensor.device != weight.device:
                raise DeviceError(
                    f"{name} is on {tensor.device}; the policy is on {weight.device}."
                )

    def _lstm_weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the LSTM's input weights, recurrent weights and their two biases."""
        lstm = cast(Any, self.lstm)
        return lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0, lstm.bias_hh_l0

    @torch.no_grad()
    def _initialise_trunk(self, generator: torch.Generator) -> None:
        """Orthogonal weights, an LSTM that remembers at first, and near-uniform actions."""
        size = self.lstm_size
        from_input, from_state, input_bias, state_bias = self._lstm_weights()
        nn.init.orthogonal_(self.features.weight[:-1], gain=2**0.5, generator=generator)
        self.features.weight[-1] = 0.0
        nn.init.orthogonal_(self.outputs.weight[-1:], generator=generator)
        nn.init.orthogonal_(self.outputs.weight[:-1], gain=0.01, generator=generator)
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


class _StepsLastLinear(torch.autograd.Function):
    """``weight @ inputs.T + bias`` with every product laid out the way its reader wants it."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Take inputs ``[N, M]``, weight ``[P, M]`` and bias ``[P]``; return ``[P, N]``."""
        ctx.save_for_backward(inputs, weight)
        return torch.addmm(bias.unsqueeze(1), weight, inputs.t())

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of inputs, weight and bias."""
        inputs, weight = ctx.saved_tensors
        (gradient,) = gradients
        return gradient.t() @ weight, gradient @ inputs, gradient.sum(dim=1)


def steps_last_linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply a linear layer to inputs ``[N, M]`` and return ``[P, N]``, the steps contiguous."""
    return cast(Callable[..., Tensor], _StepsLastLinear.apply)(inputs, weight, bias)


class RecurrentPolicy(RecurrentTrunk):
    """A recurrent policy and its value for observations and actions of one size."""

    def __init__(
        self,
        spec: ActionSpec,
        observation_size: int,
        config: PolicyConfig | None = None,
        *,
        categories: Mapping[int, int] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """Make the network.

        Args:
            spec: The heads of an action.
            observation_size: Numbers of an observation.
            config: Sizes of the network.
            categories: Columns of the observation that hold a category, with how many there are:
                ``k / n`` is category k of n, 0 is none. Each is replaced by an embedding.
            generator: Decides the first weights.
        """
        super().__init__(spec, observation_size)
        config = config or PolicyConfig()
        self.normalize: ObservationNormalizer | None = None
        if config.normalize_observations:
            self.normalize = ObservationNormalizer(observation_size, categories or ())
        self.embed: CategoryColumns | None = None
        n_inputs = observation_size
        if categories:
            self.embed = CategoryColumns(categories, observation_size, config.embedding_size)
            n_inputs = self.embed.output_size
        self._add_trunk(n_inputs, sum(spec.sizes) + 1, config)
        generator = generator or torch.Generator().manual_seed(0)
        self._initialise_trunk(generator)
        if self.embed is not None:
            self.embed.initialise(generator)

    def logit_bias(self, head: str) -> Tensor:
        """Return what is added to the logits of a head, ``[choices]``; can be changed in place."""
        column = self.spec.index(head)
        first = sum(self.spec.sizes[:column])
        return self.outputs.bias.detach()[first : first + self.spec.sizes[column]]

    def learn_observations(self, observations: Tensor) -> None:
        """Take in observations ``[N, D]`` for their running statistics, if it keeps any."""
        if self.normalize is not None:
            self.normalize.learn(observations)

    def _see(self, observations: Tensor) -> tuple[Tensor, None]:
        if self.normalize is not None:
            observations = self.normalize(observations)
        if self.embed is not None:
            observations = self.embed(observations)
        return self.features(observations), None

    def _answer(self, hidden: Tensor, beside: Tensor | None) -> tuple[Tensor, Tensor]:
        outputs = self.outputs(hidden)
        return outputs[:, :-1], outputs[:, -1]

    def _answer_steps(self, hidden: Tensor, beside: Tensor | None) -> tuple[Tensor, Tensor]:
        outputs = steps_last_linear(hidden, self.outputs.weight, self.outputs.bias)
        logits, values = cast(tuple[Tensor, Tensor], outputs.split([len(outputs) - 1, 1]))
        return logits, values.squeeze(0)

"""From a network's outputs to actions: logits of discrete heads, means of continuous ones.

Shapes: ``B`` environments, ``N`` steps, ``H`` heads, ``D`` discrete heads, ``K`` choices of the
widest, ``P`` choices of all discrete heads side by side, ``C`` numbers of all continuous heads.

Continuous heads are independent Gaussians, clipped to their bounds or squashed by tanh. A squashed
action is ``tanh(u)`` of a Gaussian number ``u``. Steps store ``u``: the density of ``tanh(u)`` is
that of ``u`` times a factor that depends on ``u`` alone, so ratios of new and old probabilities are
those of ``u``. Only the entropy has a term of its own.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor, nn

from esper.simic.policy.action_spec import ActionSpec, all_choices
from esper.simic.policy.distribution import draw_actions, masked_log_softmax
from esper.simic.policy.masks import ChoiceMasks, HeadLayout, layout_of
from esper.simic.tensors import to_device

_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(16)


class ActionHeads(nn.Module):
    """Draws factored actions and evaluates those that were taken.

    A network gives ``P + C`` outputs for each step. The standard deviation of continuous numbers
    is a parameter of its own and does not depend on the observation.
    """

    def __init__(
        self, spec: ActionSpec, *, squash: bool = False, log_std_init: float = 0.0
    ) -> None:
        super().__init__()
        self.spec, self.squash = spec, squash
        self.n_logits = sum(spec.sizes)
        self.n_outputs = self.n_logits + spec.n_numbers
        self._drawn_layout: HeadLayout | None = None
        self.log_std: nn.Parameter | None = None
        if spec.dims:
            self.log_std = nn.Parameter(torch.full((spec.n_numbers,), float(log_std_init)))

    def draw(
        self, outputs: Tensor, choices: ChoiceMasks, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Draw actions for outputs ``[N, P + C]``, or take the mode without a generator.

        Returns:
            actions: ``[N, D]`` int64.
            numbers: ``[N, C]`` before clipping or squashing; None without continuous heads.
            log_probs: ``[N, H]``.
            legal: ``[N, D, K]`` bool, the choices each discrete head was drawn from.
        """
        if self.log_std is None:
            layout = self._layout(outputs.device)
            actions, log_probs, legal = draw_actions(layout, outputs, choices, generator)
            return actions, None, log_probs, legal
        mean = outputs[:, self.n_logits :]
        if generator is None:
            noise, numbers = torch.zeros_like(mean), mean
        else:
            noise = to_device(torch.randn(mean.shape, generator=generator), mean.device)
            numbers = torch.addcmul(mean, self.log_std.exp(), noise)
        density = sum_by_head(log_density_of_noise(noise, self.log_std), self.spec.dims)
        if not self.n_logits:
            nothing = choices.legal.new_zeros(len(mean), 0, dtype=torch.int64)
            return nothing, numbers, density, choices.legal
        logits = outputs[:, : self.n_logits]
        layout = self._layout(outputs.device)
        actions, log_probs, legal = draw_actions(layout, logits, choices, generator)
        return actions, numbers, torch.cat([log_probs, density], dim=1), legal

    def _layout(self, device: torch.device) -> HeadLayout:
        if self._drawn_layout is None or self._drawn_layout.padded.device != device:
            self._drawn_layout = layout_of(self.spec, device)
        return self._drawn_layout

    def distribution(self, outputs: Tensor, legal: Tensor | None) -> ActionDistribution:
        """Return what outputs ``[N, P + C]`` say about actions.

        Args:
            outputs: ``[N, P + C]``.
            legal: ``[N, D, K]`` bool, the choices that were legal given what was drawn before them;
                None if every choice was.
        """
        if self.log_std is None:
            return ActionDistribution(self, masked_log_softmax(self.spec, outputs, legal))
        log_p = None
        if self.n_logits:
            log_p = masked_log_softmax(self.spec, outputs[:, : self.n_logits], legal)
        # A copy, because a gradient step changes the parameter.
        return ActionDistribution(self, log_p, outputs[:, self.n_logits :], self.log_std.clone())

    def probabilities(self, outputs: Tensor, legal: Tensor) -> Tensor:
        """Return the probability ``[N, P]`` of each choice of each discrete head."""
        p = masked_log_softmax(self.spec, outputs[:, : self.n_logits], legal).exp()
        return p[:, all_choices(self.spec, p.device)]


class ActionDistribution:
    """How likely each action is at some steps. Gradients flow through all that it returns."""

    def __init__(
        self,
        heads: ActionHeads,
        log_p: Tensor | None,
        mean: Tensor | None = None,
        log_std: Tensor | None = None,
    ) -> None:
        self._heads, self._log_p, self._mean, self._log_std = heads, log_p, mean, log_std

    def log_probs(self, actions: Tensor, numbers: Tensor | None) -> Tensor:
        """Return the log-probability ``[N, H]`` of what each head chose.

        Args:
            actions: ``[N, D]`` choices taken.
            numbers: ``[N, C]`` numbers drawn, before clipping or squashing.
        """
        parts = list[Tensor]()
        if self._log_p is not None:
            parts.append(self._log_p.gather(-1, actions.unsqueeze(-1)).squeeze(-1))
        if self._mean is not None and self._log_std is not None:
            assert numbers is not None, "continuous heads store the numbers drawn"
            density = log_density(self._mean, self._log_std, numbers)
            parts.append(sum_by_head(density, self._heads.spec.dims))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def entropies(self) -> Tensor:
        """Return the entropy ``[N, H]`` of each head."""
        parts = list[Tensor]()
        if self._log_p is not None:
            parts.append(-(self._log_p.exp() * self._log_p).sum(dim=-1))
        if self._mean is not None and self._log_std is not None:
            spread = entropy(self._mean, self._log_std, squash=self._heads.squash)
            parts.append(sum_by_head(spread, self._heads.spec.dims))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def log_density(mean: Tensor, log_std: Tensor, numbers: Tensor) -> Tensor:
    """Return the log-density ``[N, C]`` of numbers under ``N(mean, exp(log_std)^2)``."""
    return log_density_of_noise((numbers - mean) / log_std.exp(), log_std)


def log_density_of_noise(noise: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-density ``[N, C]`` of numbers that are ``noise`` deviations from the mean."""
    return torch.addcmul(-_HALF_LOG_TAU - log_std, noise, noise, value=-0.5)


def entropy(mean: Tensor, log_std: Tensor, *, squash: bool) -> Tensor:
    """Return the differential entropy ``[N, C]`` of each number, of ``tanh`` of it if squashed.

        H[u]       = log std + log(2 pi e) / 2
        H[tanh(u)] = H[u] + E[log(1 - tanh(u)^2)]

    The expectation is a Gauss-Hermite sum of 16 terms.
    """
    plain = (log_std + (_HALF_LOG_TAU + 0.5)).expand_as(mean)
    if not squash:
        return plain
    nodes, weights = _quadrature(mean.device, mean.dtype)
    u = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * nodes
    # log(1 - tanh(u)^2) without cancellation for large |u|.
    log_slope = 2.0 * (math.log(2.0) - u - torch.nn.functional.softplus(-2.0 * u))
    return plain + (log_slope * weights).sum(-1)


@lru_cache(maxsize=16)
def _quadrature(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return nodes and weights on a device, made once."""
    shares = _WEIGHTS / _WEIGHTS.sum()
    return (
        torch.tensor(_NODES, dtype=dtype, device=device),
        torch.tensor(shares, dtype=dtype, device=device),
    )


def sum_by_head(values: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return the sum ``[N, G]`` over each head's numbers ``[N, C]``."""
    if len(dims) == 1:
        return values.sum(-1, keepdim=True)
    return torch.stack([part.sum(-1) for part in torch.split(values, list(dims), dim=-1)], dim=-1)

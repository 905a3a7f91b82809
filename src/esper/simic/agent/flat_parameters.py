"""All parameters of a policy in one tensor, so that one operation serves them all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn


class FlatParameters:
    """Moves parameters, and their gradients, into one tensor of which they become views.

    Clipping a gradient and Adam's step then take a handful of operations, however many layers
    there are.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = [p for p in parameters if p.requires_grad]
        parts = [parameter.detach().reshape(-1) for parameter in self._parameters]
        self.flat = nn.Parameter(torch.cat(parts))
        self.flat.grad = torch.zeros_like(self.flat)
        self._attach()

    @torch.no_grad()
    def ensure_attached(self) -> None:
        """Take parameters back that something else has moved, such as a second agent."""
        storages = {self.flat.untyped_storage().data_ptr()}
        found = {parameter.untyped_storage().data_ptr() for parameter in self._parameters}
        if found != storages or any(parameter.grad is None for parameter in self._parameters):
            self.flat.copy_(torch.cat([p.detach().reshape(-1) for p in self._parameters]))
            self._attach()

    def _attach(self) -> None:
        start = 0
        for parameter in self._parameters:
            end = start + parameter.numel()
            parameter.data = self.flat.detach()[start:end].view_as(parameter)
            parameter.grad = self.gradient[start:end].view_as(parameter)
            start = end

    @property
    def gradient(self) -> Tensor:
        """The gradient of all parameters."""
        assert self.flat.grad is not None, "the gradient is allocated once"
        return self.flat.grad

    def clip_gradient(self, max_norm: float) -> Tensor:
        """Scale the gradient down to a norm if it is larger; return the norm that it had."""
        norm = cast(Tensor, torch.linalg.vector_norm(self.gradient))
        self.gradient.mul_((max_norm / (norm + 1e-6)).clamp_(max=1.0))
        return norm

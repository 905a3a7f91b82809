"""Adam that counts its steps on the host.

PyTorch's own keeps the count in a tensor for each parameter and reads it back with every step; an
update must not wait for a number that the host knows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn


class Adam(torch.optim.Optimizer):
    """Adam (Kingma and Ba, 2015) without weight decay; the same numbers as ``torch.optim.Adam``."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-5,
    ) -> None:
        super().__init__(list(params), {"lr": lr, "betas": betas, "eps": eps, "count": 0})

    @torch.no_grad()
    def step(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, closure: Callable[[], float] | None = None
    ) -> None:
        """Take one step along the gradients that are there."""
        assert closure is None, "the gradients are computed by the caller"
        for group in self.param_groups:
            group["count"] += 1
            beta_1, beta_2 = group["betas"]
            spread = math.sqrt(1.0 - beta_2 ** group["count"])
            size = group["lr"] * spread / (1.0 - beta_1 ** group["count"])
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                mean, square = self._moments(parameter)
                mean.lerp_(parameter.grad, 1.0 - beta_1)
                square.mul_(beta_2).addcmul_(parameter.grad, parameter.grad, value=1.0 - beta_2)
                scale = square.sqrt().add_(group["eps"] * spread)
                parameter.addcdiv_(mean, scale, value=-size)

    def _moments(self, parameter: nn.Parameter) -> tuple[Tensor, Tensor]:
        """Return the running means of a parameter's gradient and of its square."""
        state = cast(dict[str, Any], self.state[parameter])
        if not state:
            state["mean"] = torch.zeros_like(parameter)
            state["square"] = torch.zeros_like(parameter)
        return state["mean"], state["square"]

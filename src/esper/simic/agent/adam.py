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
    """Adam (Kingma and Ba, 2015) without weight decay, with the steps of ``torch.optim.Adam``.

    One count serves all parameters, so a parameter that had no gradient for a while goes on with
    the count of the others.
    """

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
            moving = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not moving:
                continue
            gradients = [cast(Tensor, parameter.grad) for parameter in moving]
            means, squares = map(list, zip(*map(self._moments, moving), strict=True))
            # All parameters in one call each: what their own calls would cost exceeds the work.
            torch._foreach_lerp_(means, gradients, 1.0 - beta_1)  # pyright: ignore
            torch._foreach_mul_(squares, beta_2)  # pyright: ignore
            torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - beta_2)  # pyright: ignore
            scales = torch._foreach_sqrt(squares)  # pyright: ignore
            torch._foreach_add_(scales, group["eps"] * spread)  # pyright: ignore
            torch._foreach_addcdiv_(moving, means, scales, -size)  # pyright: ignore

    def _moments(self, parameter: nn.Parameter) -> tuple[Tensor, Tensor]:
        """Return the running means of a parameter's gradient and of its square."""
        state = cast(dict[str, Any], self.state[parameter])
        if not state:
            state["mean"] = torch.zeros_like(parameter)
            state["square"] = torch.zeros_like(parameter)
        return state["mean"], state["square"]

"""Making the optimizer of an agent: Adam, or any other of PyTorch's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.optim import Adam, Optimizer

from esper.errors import ConfigError, type_of
from esper.simic.schedules import takes_arguments

_NEEDED = "a class of torch.optim, or a function of the parameters that returns an optimizer"

MakeOptimizer = type[Optimizer] | Callable[[list[nn.Parameter]], Optimizer]
"""A class of ``torch.optim``, or a function that makes an optimizer of parameters."""


def make_optimizer(
    make: MakeOptimizer | None, parameters: list[nn.Parameter], learning_rate: float
) -> tuple[Optimizer, list[float]]:
    """Return an optimizer, and the learning rate of each parameter group relative to others.

    Raises:
        ConfigError: If ``make`` makes something else, or with another learning rate.
    """
    is_class = isinstance(make, type)
    if make is not None and (
        not issubclass(make, Optimizer)
        if is_class
        else not (callable(make) and takes_arguments(make, 1))
    ):
        raise ConfigError(
            f"optimizer is {make.__name__ if is_class else type_of(make)}; {_NEEDED}, is needed."
        )
    if make is None:
        is_fused = parameters[0].device.type in ("cpu", "cuda")
        # The eps of Stable-Baselines3, as the gradients of a policy are small.
        made: Any = Adam(parameters, learning_rate, eps=1e-5, fused=is_fused or None)
    elif isinstance(make, type):
        try:
            made = make(parameters, lr=learning_rate)  # pyright: ignore[reportCallIssue]
        except (TypeError, ValueError) as error:
            raise ConfigError(f"optimizer is {make.__name__}, which failed: {error}.") from error
    else:
        made = make(parameters)
    if not isinstance(made, Optimizer):
        raise ConfigError(f"optimizer made {type_of(made)}; {_NEEDED}, is needed.")
    if not takes_arguments(made.step, 0):
        raise ConfigError(
            f"optimizer is {type(made).__name__}, which evaluates the loss several times in a "
            "step; use one whose step() needs no closure, such as torch.optim.AdamW."
        )
    given: float = made.defaults["lr"]
    usual = inspect.signature(type(made)).parameters["lr"].default
    if given not in (usual, learning_rate):
        raise ConfigError(
            f"the optimizer has lr {given:g} and learning_rate is {learning_rate:g}; leave out lr, "
            f"and set learning_rate={given:g}."
        )
    shares = [group["lr"] / given if given else 1.0 for group in made.param_groups]
    set_learning_rate(made, learning_rate, shares)
    return made, shares


def set_learning_rate(optimizer: Optimizer, learning_rate: float, shares: Sequence[float]) -> None:
    """Change the learning rate of all parameter groups; each keeps its proportion to others."""
    for group, share in zip(optimizer.param_groups, shares, strict=True):
        group["lr"] = learning_rate * share

"""Making the optimizer of an agent: Adam, or any other of PyTorch's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Adam, Optimizer

from esper.errors import ConfigError, type_of
from esper.simic.schedules import takes_arguments

_NEEDED = "a class of torch.optim, or a function of the parameters that returns an optimizer"

MakeOptimizer = type[Optimizer] | Callable[[list[nn.Parameter]], Optimizer]
"""A class of ``torch.optim``, or a function that makes an optimizer of parameters."""


class FusedAdam(Adam):
    """``Adam(fused=True)``: the same numbers and the same state in a third of the time.

    On small networks most of a step of Adam is what leads to its kernel, and that is a sixth of an
    update of PPO. Here a step calls the kernel directly.
    """

    @staticmethod
    def profile_hook_step(func: Any) -> Any:
        """Leave a step as it is; hooks are called by :meth:`step`, and nothing is profiled."""
        return func

    def step(self, closure: Any = None) -> None:
        """Update all parameters that have a gradient."""
        for hook in self._optimizer_step_pre_hooks.values():
            hook(self, (), {})
        with torch.no_grad():
            for group in self.param_groups:
                self._step(group)
        for hook in self._optimizer_step_post_hooks.values():
            hook(self, (), {})

    def _step(self, group: dict[str, Any]) -> None:
        parameters = [p for p in group["params"] if p.grad is not None]
        states = [self.state[p] for p in parameters]
        if not all(states):  # in the first step, which makes them
            cast(Any, self)._init_group(group, [], [], [], [], [], [])
        steps = [state["step"] for state in states]
        kernels = cast(Any, torch)
        kernels._foreach_add_(steps, 1)
        kernels._fused_adam_(
            parameters,
            [p.grad for p in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            steps,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            amsgrad=False,
            maximize=False,
        )


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
        adam = partial(FusedAdam, fused=True) if is_fused else Adam
        # The eps of Stable-Baselines3, as the gradients of a policy are small.
        made: Any = adam(parameters, learning_rate, eps=1e-5)
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

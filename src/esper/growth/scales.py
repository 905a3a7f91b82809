"""Hooks that blend new units and blocks in; they are removed at full strength."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Scale:
    """A hook that multiplies by alpha, which is a tensor so that compiled graphs stay valid."""

    attribute: ClassVar[str]

    def __init__(self, factors: Tensor) -> None:
        self.factors = factors
        self.own = torch.zeros_like(factors, dtype=torch.bool)

    def set(self, alpha: float) -> None:
        """Change alpha."""
        self.factors[self.own] = alpha

    @abstractmethod
    def attach(self, layer: nn.Module) -> None:
        """Start scaling."""

    def detach(self, layer: nn.Module) -> None:
        """Stop scaling. The hook is found by identity, also in a copy of the model."""
        hooks: dict[int, Any] = layer.__dict__[self.attribute]
        for key in [key for key, hook in hooks.items() if hook is self]:
            del hooks[key]
            for flags in ("_with_kwargs", "_always_called"):
                layer.__dict__.get(self.attribute + flags, {}).pop(key, None)


class InputScale(Scale):
    """Scales some entries of what a layer reads."""

    attribute = "_forward_pre_hooks"

    def __init__(self, factors: Tensor, axis: int) -> None:
        super().__init__(factors)
        self._n_behind = -1 - axis

    def attach(self, layer: nn.Module) -> None:
        """Scale the layer's input."""
        layer.register_forward_pre_hook(self, with_kwargs=True)

    def __call__(self, _: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the layer's arguments with its input scaled."""
        factors = self.factors.view(-1, *(1,) * self._n_behind)
        if args:
            return (args[0] * factors.to(args[0].dtype), *args[1:]), kwargs
        name = next(iter(kwargs))
        return args, {**kwargs, name: kwargs[name] * factors.to(kwargs[name].dtype)}


class OutputScale(Scale):
    """Scales what a layer returns."""

    attribute = "_forward_hooks"

    def __init__(self, factors: Tensor) -> None:
        super().__init__(factors)
        self.own.fill_(True)

    def attach(self, layer: nn.Module) -> None:
        """Scale the layer's output."""
        layer.register_forward_hook(self)

    def __call__(self, _: nn.Module, __: Any, output: Tensor) -> Tensor:
        """Return the layer's output, scaled."""
        return output * self.factors.to(output.dtype)

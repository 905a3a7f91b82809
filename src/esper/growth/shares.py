"""What part of a model each of its modules is: parameters, FLOPs and gradient."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from esper.growth.dry_run import call_model, tensors_in
from esper.growth.footprint import make_flop_counter
from esper.growth.modules import named_modules
from esper.modes import evaluation_mode


@dataclass(frozen=True)
class Share:
    """The part of a model that some of its modules are, each number from 0 to 1."""

    parameters: float = 0.0
    flops: float = 0.0
    """Of the FLOPs of a forward pass."""
    gradient: float = 0.0
    """Of the squared norm of the gradient of a generic loss."""

    @property
    def score(self) -> float:
        """The mean of the three."""
        return (self.parameters + self.flops + self.gradient) / 3.0

    def __str__(self) -> str:
        return (
            f"{self.parameters:.0%} of the parameters, {self.flops:.0%} of the FLOPs, "
            f"{self.gradient:.0%} of the gradient"
        )


class ShareTable:
    """The shares of a model's modules, measured in one forward and one backward pass.

    The loss is a random projection of the outputs, because the user's loss is not known. Modules
    of a model that has no backward pass in evaluation mode have no share of the gradient.
    """

    def __init__(self, model: nn.Module, sample_input: Any) -> None:
        self._modules = named_modules(model)
        with (
            evaluation_mode(model),
            torch.enable_grad(),
            torch.random.fork_rng(devices=[]),
            make_flop_counter() as counter,
        ):
            outputs = tensors_in(call_model(model, sample_input))
        root = type(model).__name__
        self._flops = {
            name.removeprefix(root).removeprefix("."): float(sum(counts.values()))
            for name, counts in counter.get_flop_counts().items()
            if name.startswith(root)
        }
        self._gradients = _squared_gradients(model, outputs)
        self._total = self._measure([""])

    def share(self, names: Iterable[str]) -> Share:
        """Return the share of modules that do not contain one another."""
        found = self._measure(names)
        return Share(*(a / b if b > 0.0 else 0.0 for a, b in zip(found, self._total, strict=True)))

    def _measure(self, names: Iterable[str]) -> tuple[float, float, float]:
        names = list(names)
        parameters = {p for name in names for p in self._modules[name].parameters()}
        return (
            float(sum(parameter.numel() for parameter in parameters)),
            sum(self._flops.get(name, 0.0) for name in names),
            sum(self._gradients.get(parameter, 0.0) for parameter in parameters),
        )


def _squared_gradients(model: nn.Module, outputs: list[Tensor]) -> dict[nn.Parameter, float]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(0)
    loss = torch.zeros(())
    for output in outputs:
        noise = torch.randn(output.shape, generator=generator).to(output)
        loss = loss + (output * noise).sum().cpu()
    if not loss.requires_grad or not parameters:
        return {}
    try:
        grads = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    except RuntimeError:
        return {}
    return {
        parameter: grad.double().square().sum().nan_to_num(0.0, 0.0, 0.0).item()
        for parameter, grad in zip(parameters, grads, strict=True)
    }

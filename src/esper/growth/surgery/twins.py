"""Wider twins of a model: copies with more units, of an untrained one as if built at that width.

Weights of an untrained model come from an initialization. Its twin draws all weights of the changed
layers again, by the same laws at the new width. The twin of a trained model computes what the
model does.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from esper.errors import SurgeryError
from esper.growth.modules import count_parameters, named_modules, named_tensors, seeded
from esper.growth.surgery.carrying import carry_optimizers
from esper.growth.surgery.changes import widen
from esper.growth.surgery.configuration import has_configuration
from esper.growth.surgery.edits import Edits
from esper.growth.surgery.layers import is_reader, is_writer
from esper.growth.surgery.operations import Operation, Widening, select
from esper.growth.surgery.places import Group, Place
from esper.growth.surgery.units import add_units, count_new_parameters, tensor_fans
from esper.growth.weight_laws import (
    ROUNDING,
    UNIFORM_KURTOSIS,
    WeightLaw,
    torch_default,
)

SPREAD = 4.0
"""Standard errors by which statistics of untrained weights may differ from those of their law."""

FEW = 100
"""Weights of a layer below which their law can hardly be told; biases and norms tell more then."""


class TwinMaker:
    """Makes wider twins of a model, which stays as it is."""

    def __init__(self, model: nn.Module, sample: Any, at: Sequence[str] | None = None) -> None:
        """Find what can be widened, by running the model on a few inputs.

        Args:
            model: The model.
            sample: Its inputs.
            at: Names of groups, or of modules around them; None for all.

        Raises:
            SurgeryError: If there is nothing of such a name that can be widened.
        """
        self.model, self._sample = model, sample
        self.is_untrained = is_untrained(model)
        self.problem = ""
        """Why nothing can be widened; empty if something can."""
        self.groups: list[Group] = []
        """What twins have more of."""
        try:
            operation = Operation(copy.deepcopy(model), sample, None, None)
            plan = Widening(operation, 2.0, None)
            found = select(plan, at, operation.model)
            # More heads cost more than they gain, so they take part only if they are named.
            self.groups = [
                group
                for group in found
                if self._is_trained(group) and (group.heads is None or at is not None)
            ]
            if self.groups:  # what cannot be widened after all fails here
                with seeded(0):
                    operation.run(plan, [group.name for group in self.groups])
            else:
                self.problem = "all that could be widened is frozen"
        except SurgeryError as error:
            if at is not None:
                raise
            self.groups, self.problem = [], str(error)

    def count_parameters(self, factor: int) -> int:
        """Return the parameters of a twin, without making it."""
        new = count_new_parameters(self.model, self._counts(factor))
        return count_parameters(self.model) + new

    def make(
        self, factor: int, *, seed: int, model: nn.Module | None = None, optimizer: Any = None
    ) -> nn.Module:
        """Return a twin with so many times the units.

        Args:
            factor: How many times as many units each group has.
            seed: Seeds what is drawn.
            model: A copy of the model that becomes the twin; None to make one.
            optimizer: The optimizer of that copy, which follows.

        Raises:
            SurgeryError: If the copy cannot be widened.
        """
        twin = copy.deepcopy(self.model) if model is None else model
        own: list[Optimizer] = [] if optimizer is None else [optimizer]
        with seeded(seed):
            if has_configuration(twin):  # which follows
                at = [group.name for group in self.groups]
                widen(twin, factor, sample_input=self._sample, at=at, optimizer=own)
            else:
                edits = Edits(twin)
                add_units(edits, self._counts(factor))
                carry_optimizers(edits, own)
            if self.is_untrained:
                draw_as_initialized(twin, self.model)
        return twin

    def sizes(self, factor: int) -> tuple[tuple[str, int, int, str], ...]:
        """Return the name of each group, its units now and in a twin, and what they are."""
        return tuple(
            (
                group.name,
                group.units,
                factor * group.units,
                "units" if group.heads is None else "heads",
            )
            for group in self.groups
        )

    def _counts(self, factor: int) -> dict[Place, int]:
        return {p: (factor - 1) * group.units for group in self.groups for p in group.places}

    def _is_trained(self, group: Group) -> bool:
        tensors = named_tensors(self.model)
        own = [tensors[entries.tensor] for place in group.places for entries in place.entries]
        return all(t.requires_grad for t in own if isinstance(t, nn.Parameter))


@torch.no_grad()
def draw_as_initialized(twin: nn.Module, given: nn.Module) -> None:
    """Draw the weights of all layers of a twin whose size differs from the given model's.

    They come from torch's default generator, by the laws of the given weights at the new size.
    """
    before = named_modules(given)
    for path, layer in named_modules(twin).items():
        old = {name: p.detach() for name, p in before[path].named_parameters(recurse=False)}
        new = dict(layer.named_parameters(recurse=False))
        if all(new[name].shape == tensor.shape for name, tensor in old.items()):
            continue
        for name, tensor in old.items():
            if _is_constant(tensor):
                new[name].fill_(tensor.flatten()[0])
                continue
            law = WeightLaw.of(
                _without_padding(before[path], tensor), *tensor_fans(before[path], tensor)
            )
            law.draw(new[name], *tensor_fans(layer, new[name]))
            if isinstance(layer, nn.Embedding) and layer.padding_idx is not None:
                new[name][layer.padding_idx].zero_()


def is_untrained(model: nn.Module) -> bool:
    """Return whether all weights and statistics of a model look as an initialization leaves them.

    Norms count nothing and have the same weight everywhere; weights of other layers are uniform
    within a bound or normal; biases are constant, or uniform within torch's bound. Parameters of
    modules of other kinds say nothing.
    """
    for module in named_modules(model).values():
        counted = getattr(module, "num_batches_tracked", None)
        if isinstance(counted, Tensor) and int(counted) > 0:
            return False
        is_layer = is_reader(module) or is_writer(module)
        own = dict(module.named_parameters(recurse=False))
        for name, tensor in own.items():
            values = _without_padding(module, tensor.detach())
            is_norm = not is_layer and "weight" in own and own["weight"].ndim == 1
            if _is_constant(values):
                continue
            if is_norm or (is_layer and not _is_initial(module, name, values)):
                return False
    return True


def _is_initial(layer: nn.Module, name: str, values: Tensor) -> bool:
    """Return whether weights or biases of a layer look like a draw from a usual initialization."""
    values, n = values.double().flatten(), values.numel()
    deviation = values.square().mean().sqrt().item()
    kurtosis = values.pow(4).mean().item() / deviation**4
    fans = tensor_fans(layer, values if "bias" in name else getattr(layer, name))
    if "bias" in name:
        expected = torch_default(*fans)
        is_near = abs(deviation / expected - 1.0) <= SPREAD * 0.45 / math.sqrt(n)
        return is_near and _is_within(values, math.sqrt(3.0) * expected)
    scatter = SPREAD * 0.45 / math.sqrt(n)
    if _is_within(values, math.sqrt(3.0) * deviation * (1.0 + scatter)):  # uniform
        return kurtosis <= UNIFORM_KURTOSIS or n < FEW
    mean = abs(values.mean().item()) / deviation
    is_normal = abs(kurtosis - 3.0) <= max(0.6, SPREAD * math.sqrt(24.0 / n))
    return (is_normal or n < FEW) and mean <= SPREAD / math.sqrt(n)


def _is_within(values: Tensor, bound: float) -> bool:
    return values.abs().max().item() <= bound * (1.0 + ROUNDING)


def _is_constant(values: Tensor) -> bool:
    return values.numel() == 0 or bool((values == values.flatten()[0]).all())


def _without_padding(layer: nn.Module, tensor: Tensor) -> Tensor:
    """Return an embedding without the zeros of its padding; other tensors as they are."""
    if not isinstance(layer, nn.Embedding) or layer.padding_idx is None:
        return tensor
    return torch.cat([tensor[: layer.padding_idx], tensor[layer.padding_idx + 1 :]])

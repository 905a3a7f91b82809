"""Turning one host's module into a module that computes many hosts at once.

Each layer is replaced by its stacked form; what stands between layers (a block's own code) stays as
it is and must not care how many axes are in front. Whether it does is found by trying, not assumed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from esper.errors import UnsupportedHostError
from esper.growth.populations.rows import ActiveRows
from esper.growth.populations.stacked_layers import ELEMENTWISE, MAP_RANK, STACKED_FORMS

IMAGE_RANK = 4
"""Axes of one host's batch of images."""


def stack_module(
    module: nn.Module, rows: ActiveRows, places: Mapping[str, nn.Module], name: str = ""
) -> nn.Module:
    """Return the stacked form of a module.

    Args:
        module: One host's module.
        rows: Where the stacked layers will find their weights.
        places: What to put around a submodule, by its name: a module whose ``block`` is set here.
        name: The module's own name.

    Raises:
        UnsupportedHostError: If a layer has no stacked form.
    """
    stacked = _stack_own(module, rows, places, name)
    place = places.get(name)
    if place is None:
        return stacked
    place.block = stacked
    return place


def _stack_own(
    module: nn.Module, rows: ActiveRows, places: Mapping[str, nn.Module], name: str
) -> nn.Module:
    prefix = f"{name}." if name else ""
    form = STACKED_FORMS.get(type(module))
    if form is not None and form[1](module):
        return form[0](rows, prefix, module)
    if type(module) in ELEMENTWISE:
        return copy.deepcopy(module)
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    if form is not None or own:
        raise UnsupportedHostError(
            f"{name or 'the model'} is a {type(module).__name__} that cannot be computed for many "
            "hosts at once; use SequentialPopulation."
        )
    twin = copy.copy(module)
    # A shallow copy shares its table of children with the original until it has its own.
    twin.__dict__["_modules"] = {}
    for key, child in module.named_children():
        twin.add_module(key, stack_module(child, rows, places, f"{prefix}{key}"))
    return twin


def stack_inputs(inputs: Tensor) -> Tensor:
    """Return samples ``[N, B, ...]`` in the layout of stacked layers."""
    if inputs.ndim == MAP_RANK:
        return inputs.permute(0, 2, 3, 4, 1).contiguous()
    return inputs


def find_difference(stacked: nn.Module, hosts: list[nn.Module], sample: Tensor) -> str | None:
    """Return how a stacked design computes something else than its hosts, or None if it does not.

    The stacked module must have these hosts' weights as its active rows.
    """
    inputs = torch.stack([sample.roll(index, 0) for index in range(len(hosts))])
    with torch.no_grad():
        expected = [host(x) for host, x in zip(hosts, inputs, strict=True)]
        try:
            outputs = stacked(stack_inputs(inputs))
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            return f"its code does not work with more axes ({error})"
    if not all(isinstance(output, Tensor) for output in expected):
        return "it does not return a tensor"
    wanted = torch.stack(expected)
    if outputs.shape != wanted.shape:
        return f"it gives {list(outputs.shape)} in place of {list(wanted.shape)}"
    if not torch.allclose(outputs, wanted, rtol=1e-3, atol=1e-4):
        return f"it differs by {(outputs - wanted).abs().max().item():.2g}"
    return None

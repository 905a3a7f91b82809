"""Turning one host's module into a module that computes many hosts at once.

Each layer is replaced by its stacked form; what stands between layers (a block's own code) stays as
it is and must not care how many axes are in front. Whether it does is found by trying, not assumed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from torch import Tensor, nn

from esper.errors import UnsupportedHostError
from esper.growth.modules import named_children
from esper.growth.populations.rows import ActiveRows
from esper.growth.populations.stacked_layers import ELEMENTWISE, MAP_RANK, STACKED_FORMS


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
    for key, child in named_children(module):
        twin.add_module(key, stack_module(child, rows, places, f"{prefix}{key}"))
    return twin


def require_plain_parameters(module: nn.Module) -> None:
    """Refuse parameters that a row cannot hold: frozen ones, and those with two names.

    Raises:
        UnsupportedHostError: If there is one; the message names it.
    """
    names: dict[nn.Parameter, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            raise UnsupportedHostError(f"{name} is frozen; use SequentialPopulation.")
        if parameter in names:
            raise UnsupportedHostError(
                f"{names[parameter]} and {name} are the same parameter; use SequentialPopulation."
            )
        names[parameter] = name


def stack_inputs(inputs: Tensor) -> Tensor:
    """Return samples ``[N, B, ...]`` in the layout of stacked layers."""
    if inputs.ndim == MAP_RANK:
        return inputs.permute(0, 2, 3, 4, 1).contiguous()
    return inputs

"""Adding hidden units to places of a model, and cutting them out again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor, nn

from esper.growth.surgery.edits import Edits
from esper.growth.surgery.layers import Role, fans_of, is_keeper, is_recurrent
from esper.growth.surgery.places import Place
from esper.growth.surgery.runs import (
    Insertion,
    Insertions,
    Runs,
    find_insertions,
    find_runs,
    gaps,
    shape_after,
    write_old,
)
from esper.growth.weight_laws import WeightLaw


@torch.no_grad()
def add_units(
    edits: Edits,
    counts: Mapping[Place, int],
    *,
    generator: torch.Generator | None = None,
    source: Mapping[str, Tensor] | None = None,
) -> None:
    """Add units to places of a model, without changing what it computes.

    What computes a new unit is drawn like the weights that compute the old ones; what reads it is
    zero, except where a new unit reads another.

    Args:
        edits: Records the changes.
        counts: Number of new units of each place.
        generator: Draws the weights; torch's default one if it is not given.
        source: Tensors of a model that has the units already, to take the new values from.
    """
    found = find_insertions(counts)
    for name, insertions in found.items():
        layer, attribute = edits.layer(name), name.rpartition(".")[2]
        old: Tensor = getattr(layer, attribute).detach()
        runs = find_runs(old.shape, insertions)
        if source is not None:
            new = source[name].detach().clone()
        else:
            new = old.new_zeros(shape_after(old.shape, insertions))
            _fill_new(new, old, runs, insertions, layer, attribute, generator)
        edits.replace(name, write_old(new, old, runs), runs)
    _follow_sizes(edits, found, counts, sign=1)


@torch.no_grad()
def remove_units(edits: Edits, counts: Mapping[Place, int]) -> None:
    """Cut the last units of places out of a model, so many of each."""
    found = find_insertions({place: -n for place, n in counts.items()})
    for name, cuts in found.items():
        old = tensor_of(edits.model, name).detach()
        runs = find_runs(old.shape, cuts)
        edits.replace(name, _without(old, cuts, runs), runs)
    _follow_sizes(edits, found, counts, sign=-1)


def count_new_parameters(model: nn.Module, counts: Mapping[Place, int]) -> int:
    """Return how many parameters so many new units of each place would add to a model."""
    found = [(tensor_of(model, name), own) for name, own in find_insertions(counts).items()]
    return sum(
        math.prod(shape_after(tensor.shape, own)) - tensor.numel()
        for tensor, own in found
        if isinstance(tensor, nn.Parameter)
    )


def tensor_of(model: nn.Module, name: str) -> Tensor:
    """Return the parameter or buffer of a name."""
    path, _, attribute = name.rpartition(".")
    return getattr(model.get_submodule(path), attribute)


def _without(tensor: Tensor, cuts: Sequence[Insertion], runs: Runs) -> Tensor:
    return write_old(tensor.new_empty(shape_after(tensor.shape, cuts)), tensor, runs)


def _follow_sizes(
    edits: Edits, found: Insertions, counts: Mapping[Place, int], *, sign: int
) -> None:
    """Set the attributes of modules that say how many units there are."""
    for layer in {id(layer): layer for layer in map(edits.layer, found)}.values():
        edits.update_sizes(layer)
    done: set[tuple[int, str]] = set()
    for place, n_new in counts.items():
        for name, path, per_unit in place.sizes:
            *parts, attribute = path.split(".")
            owner = reduce(getattr, parts, edits.model.get_submodule(name))
            if (id(owner), attribute) not in done:  # several places may share a configuration
                done.add((id(owner), attribute))
                value = getattr(owner, attribute) + sign * n_new * per_unit
                edits.set_attribute(owner, attribute, value)


def _fill_new(
    new: Tensor,
    old: Tensor,
    runs: Runs,
    insertions: Sequence[Insertion],
    layer: nn.Module,
    attribute: str,
    generator: torch.Generator | None,
) -> None:
    """Choose the entries of new units, in place; those that read them alone stay zero."""
    written = {each.entries.axis for each in insertions if each.entries.role is not Role.READ}
    slices = [
        new.narrow(axis, start, length)
        for axis in sorted(written)
        for start, length in gaps(runs[axis], new.shape[axis])
    ]
    if not slices:
        return
    weight = getattr(layer, "weight", None)
    if is_keeper(layer) and not (isinstance(weight, Tensor) and weight.ndim > 1):
        constant = {"weight": 1.0, "running_var": 1.0}.get(attribute, 0.0)
        for values in slices:
            values.fill_(old.mean().item() if isinstance(layer, nn.PReLU) else constant)
        return
    law = WeightLaw.of(old, *tensor_fans(layer, old))
    fans = tensor_fans(layer, new)
    for values in slices:
        law.draw(values, *fans, generator)


def tensor_fans(layer: nn.Module, tensor: Tensor) -> tuple[int, int]:
    """Return fan-in and fan-out of a weight of a layer, or those that its bias is drawn by."""
    if tensor.ndim > 1 or is_recurrent(layer):
        return fans_of(layer, tensor)
    weight = getattr(layer, "weight", None)
    if isinstance(weight, Tensor) and weight.ndim > 1:
        fan_in = fans_of(layer, weight)[0]
        return fan_in, fan_in
    return tensor.shape[0], tensor.shape[0]

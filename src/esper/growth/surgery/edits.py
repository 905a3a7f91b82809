"""Edits of a model in place: tensors, attributes and lists of modules, each of which can be undone.

A tensor that gets another shape is replaced, never resized: the gradient accumulators of
DistributedDataParallel keep the shape of the tensor that they were made for. Optimizers and moving
averages follow (:mod:`esper.growth.surgery.carrying`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from esper.growth.surgery.layers import Entries, Role, fans_of, is_keeper, update_sizes
from esper.growth.surgery.places import Place
from esper.growth.weight_laws import WeightLaw

OldIndices = dict[int, Tensor]
"""Where the old entries of a tensor are in the new one, by axis; other axes have not changed."""


@dataclass(eq=False)
class Replacement:
    """A tensor of the model that another one has taken the place of."""

    name: str
    """Its name in the model when it was replaced; inside its block if that is new."""
    old: Tensor | None
    """None for a tensor of a new block."""
    new: Tensor
    indices: OldIndices = field(default_factory=dict[int, Tensor])
    like: Tensor | None = None
    """The tensor of an old block that a new one is a copy of."""

    @property
    def has_new_entries(self) -> bool:
        """Whether it is a new parameter, or one with more entries than before."""
        return isinstance(self.new, nn.Parameter) and (self.old is None or bool(self.indices))


class Edits:
    """Changes of one model, in order."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.replaced: list[Replacement] = []
        self._undo: list[Callable[[], Any]] = []

    def undo(self) -> None:
        """Revert every change, the last one first."""
        while self._undo:
            self._undo.pop()()
        self.replaced.clear()

    def on_undo(self, revert: Callable[[], object]) -> None:
        """Call a function when the changes are reverted."""
        self._undo.append(revert)

    @property
    def undo_list(self) -> list[Callable[[], Any]]:
        """The functions that revert the changes, for code that adds its own."""
        return self._undo

    def replace(self, name: str, value: Tensor, indices: OldIndices) -> None:
        """Put a tensor in the place of the parameter or buffer of a name."""
        path, _, attribute = name.rpartition(".")
        self.replace_in(self.model.get_submodule(path), attribute, value, indices, name)

    def replace_in(
        self,
        module: nn.Module,
        attribute: str,
        value: Tensor,
        indices: OldIndices | None = None,
        name: str = "",
    ) -> None:
        """Put a tensor in the place of a parameter or buffer of a module."""
        old = getattr(module, attribute)
        new = value
        if isinstance(old, nn.Parameter):
            new = nn.Parameter(value, requires_grad=old.requires_grad)
        setattr(module, attribute, new)
        self.on_undo(lambda: setattr(module, attribute, old))
        self.replaced.append(Replacement(name, old, new, indices or {}))

    def update_sizes(self, name: str) -> None:
        """Set the sizes that a layer keeps as attributes from its tensors."""
        module = self.model.get_submodule(name)
        for attribute, old in update_sizes(module):
            self.on_undo(lambda attribute=attribute, old=old: setattr(module, attribute, old))

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of any object, which it need not have yet."""
        if hasattr(owner, name):
            old = getattr(owner, name)
            self.on_undo(lambda: setattr(owner, name, old))
        else:
            self.on_undo(lambda: delattr(owner, name))
        setattr(owner, name, value)


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
    found: dict[str, list[tuple[Entries, int, int]]] = {}
    for place, n_new in counts.items():
        for entries in place.entries:
            position = entries.start + place.units * entries.size
            found.setdefault(entries.tensor, []).append((entries, position, n_new * entries.size))
    for name, insertions in found.items():
        layer = edits.model.get_submodule(name.rpartition(".")[0])
        old = tensor_of(edits.model, name)
        indices = _old_indices(old, insertions)
        if source is not None:
            new = source[name].detach().clone()
            _write_old(new, old, indices)
        else:
            new = _with_new_entries(layer, name, old, indices, insertions, generator)
        edits.replace(name, new, indices)
    for name in dict.fromkeys(name.rpartition(".")[0] for name in found):
        edits.update_sizes(name)
    done: set[tuple[int, str]] = set()
    for place, n_new in counts.items():
        for name, path, per_unit in place.sizes:
            *parts, attribute = path.split(".")
            owner = reduce(getattr, parts, edits.model.get_submodule(name))
            if (id(owner), attribute) not in done:  # several places may share a configuration
                done.add((id(owner), attribute))
                edits.set_attribute(owner, attribute, getattr(owner, attribute) + n_new * per_unit)


def expanded(old: Tensor, indices: OldIndices, like: Tensor, fill: Any = 0) -> Tensor:
    """Return a tensor with the shape of another: old values where they are there, else a fill."""
    new = torch.full_like(like, fill, dtype=old.dtype, requires_grad=False)
    return _write_old(new, old, indices)


def _write_old(new: Tensor, old: Tensor, indices: OldIndices) -> Tensor:
    if not indices:
        return new.copy_(old.detach())
    (axis, index), *rest = indices.items()
    if not rest:
        return new.index_copy_(axis, index, old.detach())
    slices = new.index_select(axis, index)
    return new.index_copy_(axis, index, _write_old(slices, old, dict(rest)))


def tensor_of(model: nn.Module, name: str) -> Tensor:
    """Return the parameter or buffer of a name."""
    path, _, attribute = name.rpartition(".")
    return getattr(model.get_submodule(path), attribute)


def _old_indices(old: Tensor, insertions: Iterable[tuple[Entries, int, int]]) -> OldIndices:
    """Return where old entries come to stand, given what is inserted before which position."""
    found: OldIndices = {}
    for axis in sorted({entries.axis for entries, _, _ in insertions}):
        index = torch.arange(old.shape[axis], device=old.device)
        shift = torch.zeros_like(index)
        for entries, position, count in insertions:
            if entries.axis == axis:
                shift += count * (index >= position)
        found[axis] = index + shift
    return found


def _with_new_entries(
    layer: nn.Module,
    name: str,
    old: Tensor,
    indices: OldIndices,
    insertions: list[tuple[Entries, int, int]],
    generator: torch.Generator | None,
) -> Tensor:
    shape = list(old.shape)
    for _, axis, count in ((entries, entries.axis, count) for entries, _, count in insertions):
        shape[axis] += count
    new = _write_old(old.new_zeros(shape), old, indices)
    for axis, index in indices.items():
        roles = {entries.role for entries, _, _ in insertions if entries.axis == axis}
        if roles == {Role.READ}:
            continue
        is_new = torch.ones(shape[axis], dtype=torch.bool, device=old.device)
        is_new[index] = False
        fresh = is_new.nonzero()[:, 0]
        values = new.index_select(axis, fresh)
        _fill(values, layer, name.rpartition(".")[2], old, new, axis, generator)
        new.index_copy_(axis, fresh, values)
    return new


def _fill(
    values: Tensor,
    layer: nn.Module,
    name: str,
    old: Tensor,
    new: Tensor,
    axis: int,
    generator: torch.Generator | None,
) -> None:
    """Choose the entries of new units in a tensor, in place."""
    weight = getattr(layer, "weight", None)
    if is_keeper(layer) and not (isinstance(weight, Tensor) and weight.ndim > 1):
        constant = {"weight": 1.0, "running_var": 1.0}.get(name, 0.0)
        values.fill_(old.mean().item() if isinstance(layer, nn.PReLU) else constant)
        return
    if old.ndim == 1:
        matrix = weight if isinstance(weight, Tensor) else None
        before = after = old.shape[0]
        if matrix is not None and matrix.ndim > 1:
            before = after = fans_of(layer, matrix)[0]
        WeightLaw.of(old, before, before).draw(values, after, after, generator)
        return
    WeightLaw.of(old, *fans_of(layer, old)).draw(values, *fans_of(layer, new), generator)

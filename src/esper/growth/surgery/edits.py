"""Edits of a model in place: tensors, attributes and lists of modules, each of which can be undone.

A tensor that gets another shape is replaced, never resized: the gradient accumulators of
DistributedDataParallel keep the shape of the tensor that they were made for. Optimizers and moving
averages follow (:mod:`esper.growth.surgery.carrying`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    """Where the old entries are in the new tensor."""
    like: Tensor | None = None
    """The tensor of an old block that a new one is a copy of."""
    kept: OldIndices = field(default_factory=dict[int, Tensor])
    """Where the entries of a smaller tensor were in the old one."""

    @property
    def has_new_entries(self) -> bool:
        """Whether it is a new parameter, or one with more entries than before."""
        return isinstance(self.new, nn.Parameter) and (self.old is None or bool(self.indices))

    def old_entries(self) -> Tensor:
        """Return which entries of the new tensor were there before."""
        if self.old is None:
            return torch.zeros_like(self.new, dtype=torch.bool)
        return self.carry(torch.ones_like(self.old, dtype=torch.bool))

    def carry(self, value: Tensor, fill: Any = 0) -> Tensor:
        """Return a tensor of the old one's shape in the new one's, with a fill for new entries."""
        for axis, index in self.kept.items():
            value = value.index_select(axis, index)
        return expanded(value, self.indices, self.new, fill)


class Edits:
    """Changes of one model, in order."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.replaced: list[Replacement] = []
        self.dropped: list[nn.Parameter] = []
        """Parameters of blocks that were taken out."""
        self.counts: list[Mapping[Place, int]] = []
        """Units that places got, or lost."""
        self.moves: list[tuple[str, Sequence[int]]] = []
        """Lists of blocks with the index before of each entry, or of what it is a copy of."""
        self._undo: list[Callable[[], Any]] = []

    def undo(self) -> None:
        """Revert every change, the last one first."""
        while self._undo:
            self._undo.pop()()
        self.replaced.clear()
        self.dropped.clear()

    def on_undo(self, revert: Callable[[], object]) -> None:
        """Call a function when the changes are reverted."""
        self._undo.append(revert)

    @property
    def undo_list(self) -> list[Callable[[], Any]]:
        """The functions that revert the changes, for code that adds its own."""
        return self._undo

    def replace(
        self,
        name: str,
        value: Tensor,
        indices: OldIndices | None = None,
        kept: OldIndices | None = None,
    ) -> None:
        """Put a tensor in the place of the parameter or buffer of a name."""
        path, _, attribute = name.rpartition(".")
        self.replace_in(self.model.get_submodule(path), attribute, value, name)
        change = self.replaced[-1]
        change.indices, change.kept = indices or {}, kept or {}

    def replace_in(self, module: nn.Module, attribute: str, value: Tensor, name: str = "") -> None:
        """Put a tensor in the place of a parameter or buffer of a module."""
        old = getattr(module, attribute)
        new = value
        if isinstance(old, nn.Parameter):
            new = nn.Parameter(value, requires_grad=old.requires_grad)
        setattr(module, attribute, new)
        self.on_undo(lambda: setattr(module, attribute, old))
        self.replaced.append(Replacement(name, old, new))

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


@dataclass(frozen=True)
class Insertion:
    """Entries that are added to a tensor, or taken out of it."""

    entries: Entries
    position: int
    """Where they come to stand, or stand, along the axis of the old tensor."""
    count: int


Insertions = dict[str, list[Insertion]]
"""What is added to each tensor."""


def find_insertions(counts: Mapping[Place, int]) -> Insertions:
    """Return where new units of places, so many of each, come to stand."""
    found: Insertions = {}
    for place, n_new in counts.items():
        for entries in place.entries:
            position = entries.start + place.units * entries.size
            new = Insertion(entries, position, n_new * entries.size)
            found.setdefault(entries.tensor, []).append(new)
    return found


def place_after(place: Place, counts: Mapping[Place, int]) -> Place:
    """Return a place as it is after units were added to, or with negative counts cut off, places.

    New units of a place stand behind its others.
    """
    moved: list[Entries] = []
    insertions = find_insertions(counts)
    for own in place.entries:
        shift = sum(
            each.count
            for each in insertions.get(own.tensor, ())
            if each.entries.axis == own.axis and each.position <= own.start
        )
        moved.append(replace(own, start=own.start + shift))
    return replace(place, units=place.units + counts.get(place, 0), entries=tuple(moved))


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
        layer = edits.model.get_submodule(name.rpartition(".")[0])
        old = tensor_of(edits.model, name)
        indices = _old_indices(old, insertions)
        if source is not None:
            new = source[name].detach().clone()
            _write_old(new, old, indices)
        else:
            new = _with_new_entries(layer, name, old, indices, insertions, generator)
        edits.replace(name, new, indices)
    _follow_sizes(edits, found, counts, sign=1)


@torch.no_grad()
def draw_as_built(model: nn.Module, counts: Mapping[Place, int]) -> None:
    """Draw the last units of places anew, as in a model that was built this wide.

    All weights of the layers, those of before included, are then distributed like those of such
    layers, so what the model computes changes. Weights are drawn from torch's default generator.

    Args:
        model: The model, which has not been trained.
        counts: How many of the units of each place are to be drawn.
    """
    for name, cuts in find_insertions({place: -n for place, n in counts.items()}).items():
        layer: Any = model.get_submodule(name.rpartition(".")[0])
        if is_keeper(layer):
            continue
        tensor = tensor_of(model, name)
        kept = _find_kept(tensor, cuts)
        old, is_new = tensor.detach(), torch.zeros_like(tensor, dtype=torch.bool)
        for axis, index in kept.items():
            old = old.index_select(axis, index)
            is_old = torch.zeros(tensor.shape[axis], dtype=torch.bool, device=tensor.device)
            is_old[index] = True
            shape = [-1 if k == axis else 1 for k in range(tensor.ndim)]
            is_new |= ~is_old.view(shape)
        before, after = _fans(layer, old), _fans(layer, tensor)
        law = WeightLaw.of(old, *before)
        drawn = torch.empty_like(tensor)
        law.draw(drawn, *after)
        tensor.mul_(law.growth(before, after))
        tensor.copy_(torch.where(is_new, drawn, tensor))
        bias = getattr(layer, "bias", None)
        if tensor.ndim > 1 and isinstance(bias, Tensor):
            fan_in = before[0], before[0]
            bias.mul_(WeightLaw.of(bias, *fan_in).growth(fan_in, (after[0], after[0])))


def _find_kept(old: Tensor, cuts: Sequence[Insertion]) -> OldIndices:
    """Return which entries of a tensor are left when the last units of places are cut off."""
    kept: OldIndices = {}
    for axis in sorted({each.entries.axis for each in cuts}):
        is_kept = torch.ones(old.shape[axis], dtype=torch.bool, device=old.device)
        for each in cuts:
            if each.entries.axis == axis:
                is_kept[each.position + each.count : each.position] = False
        kept[axis] = is_kept.nonzero()[:, 0]
    return kept


def count_change(model: nn.Module, counts: Mapping[Place, int]) -> int:
    """Return how many parameters a model gets with more units, or loses with negative counts."""
    change = 0
    for name, insertions in find_insertions(counts).items():
        tensor = tensor_of(model, name)
        if isinstance(tensor, nn.Parameter):
            shape = list(tensor.shape)
            for each in insertions:
                shape[each.entries.axis] += each.count
            change += math.prod(shape) - tensor.numel()
    return change


@torch.no_grad()
def remove_units(edits: Edits, counts: Mapping[Place, int]) -> None:
    """Cut the last units of places out of a model, so many of each."""
    found = find_insertions({place: -n for place, n in counts.items()})
    for name, insertions in found.items():
        old = tensor_of(edits.model, name)
        kept = _find_kept(old, insertions)
        new = old.detach()
        for axis, index in kept.items():
            new = new.index_select(axis, index)
        edits.replace(name, new, kept=kept)
    _follow_sizes(edits, found, counts, sign=-1)


def _follow_sizes(
    edits: Edits, found: Insertions, counts: Mapping[Place, int], *, sign: int
) -> None:
    """Set the attributes of modules that say how many units there are."""
    for name in dict.fromkeys(name.rpartition(".")[0] for name in found):
        edits.update_sizes(name)
    done: set[tuple[int, str]] = set()
    for place, n_new in counts.items():
        for name, path, per_unit in place.sizes:
            *parts, attribute = path.split(".")
            owner = reduce(getattr, parts, edits.model.get_submodule(name))
            if (id(owner), attribute) not in done:  # several places may share a configuration
                done.add((id(owner), attribute))
                value = getattr(owner, attribute) + sign * n_new * per_unit
                edits.set_attribute(owner, attribute, value)


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


def _old_indices(old: Tensor, insertions: Sequence[Insertion]) -> OldIndices:
    """Return where old entries come to stand."""
    found: OldIndices = {}
    for axis in sorted({each.entries.axis for each in insertions}):
        index = torch.arange(old.shape[axis], device=old.device)
        shift = torch.zeros_like(index)
        for each in insertions:
            if each.entries.axis == axis:
                shift += each.count * (index >= each.position)
        found[axis] = index + shift
    return found


def _with_new_entries(
    layer: nn.Module,
    name: str,
    old: Tensor,
    indices: OldIndices,
    insertions: Sequence[Insertion],
    generator: torch.Generator | None,
) -> Tensor:
    shape = list(old.shape)
    for each in insertions:
        shape[each.entries.axis] += each.count
    new = old.new_zeros(shape)
    attribute = name.rpartition(".")[2]
    _write_old(new, old, indices)
    for axis, index in indices.items():
        roles = {each.entries.role for each in insertions if each.entries.axis == axis}
        if roles == {Role.READ}:
            continue
        is_new = torch.ones(shape[axis], dtype=torch.bool, device=old.device)
        is_new[index] = False
        fresh = is_new.nonzero()[:, 0]
        values = new.index_select(axis, fresh)
        _fill(values, layer, attribute, old, new, axis, generator)
        new.index_copy_(axis, fresh, values)
    return new


def _fans(layer: nn.Module, tensor: Tensor) -> tuple[int, int]:
    """Return fan-in and fan-out of a weight of a layer, or those that its bias is drawn by."""
    if tensor.ndim > 1:
        return fans_of(layer, tensor)
    weight = getattr(layer, "weight", None)
    if isinstance(weight, Tensor) and weight.ndim > 1:
        fan_in = fans_of(layer, weight)[0]
        return fan_in, fan_in
    return tensor.shape[0], tensor.shape[0]


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
    WeightLaw.of(old, *_fans(layer, old)).draw(values, *_fans(layer, new), generator)

"""Merging the new units of pairs into the weights of their layers.

A layer that is both producer and consumer gets rows and columns. New units follow those of their
own producer, as they do in the tensors of the growing model, and each consumer's columns are
multiplied by alpha. Between two seeds of neighbouring pairs, the one that was committed last has
the weights; they are zero if one of the two is not committed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from esper.growth.pair_slot import PairNetwork, PairSlot, UnitGroup, Wiring
from esper.growth.unit_layers import is_norm, matrix_of, resize_layer, resize_norm

IsKept = Callable[[PairSlot, UnitGroup], bool]
"""Whether units are part of the result."""


def merge_pairs(network: PairNetwork, is_kept: IsKept) -> None:
    """Merge new units into the layers of a model, in place, and take all slots on pairs out."""
    merged = merged_layers(network, is_kept)
    for name, wrapper in network.wrappers.items():
        # Tensors move instead of modules, because a module may be referred to elsewhere.
        wrapper.block.__dict__.update(merged[name].__dict__)
    for slot in network.slots:
        network.place(slot, is_used=False)


def merged_layers(network: PairNetwork, is_kept: IsKept) -> dict[str, nn.Module]:
    """Return a copy of each layer with the new units merged, by name."""
    return {name: _merge(wrapper.wiring, is_kept) for name, wrapper in network.wrappers.items()}


@dataclass(frozen=True)
class _Columns:
    """Where the inputs of a layer are in the merged layer."""

    base: list[int]
    new: list[list[int]]
    """The inputs of each source's new units, -1 for those that are not kept."""
    size: int


def _merge(wiring: Wiring, is_kept: IsKept) -> nn.Module:
    layer = copy.deepcopy(wiring.module)
    columns = _place_columns(wiring, is_kept)
    if is_norm(layer):
        _merge_norm(layer, wiring, columns)
    else:
        _merge_layer(layer, wiring, columns, is_kept)
    return layer


def _place_columns(wiring: Wiring, is_kept: IsKept) -> _Columns:
    base: list[int] = []
    new: list[list[int]] = []
    position = 0
    for source in wiring.sources:
        size = source.end - len(base)
        base += range(position, position + size)
        position += size
        places: list[int] = []
        for group in source.slot.unit_groups:
            count = source.count(group.n_units)
            if is_kept(source.slot, group):
                places += range(position, position + count)
                position += count
            else:
                places += [-1] * count
        new.append(places)
    rest = wiring.layer.n_in - len(base)
    base += range(position, position + rest)
    return _Columns(base, new, position + rest)


@torch.no_grad()
def _merge_layer(layer: nn.Module, wiring: Wiring, columns: _Columns, is_kept: IsKept) -> None:
    own = wiring.own
    groups = [] if own is None else own.unit_groups
    matrix, bias = matrix_of(layer), cast(Tensor | None, getattr(layer, "bias", None))
    rows, n_out = list(range(len(matrix))), len(matrix)
    biases = [] if bias is None else [bias]
    for group in groups:
        is_part = own is not None and is_kept(own, group)
        rows += range(n_out, n_out + group.n_units) if is_part else [-1] * group.n_units
        n_out += group.n_units if is_part else 0
        if is_part and bias is not None:
            biases.append(cast(Tensor, group.seed.rows.bias))
    merged = matrix.new_zeros((n_out, columns.size, *matrix.shape[2:]))
    _put(merged, rows[: len(matrix)], columns.base, matrix)
    first = len(matrix)
    for group in groups:
        own_rows = rows[first : first + group.n_units]
        for part, read in zip(
            group.seed.row_parts(), _columns_read(group, wiring, columns), strict=False
        ):
            _put(merged, own_rows, read, matrix_of(part))
        first += group.n_units
    for source, places in zip(wiring.sources, columns.new, strict=True):
        start = 0
        for group in source.slot.unit_groups:
            parts = [matrix_of(part) for part in group.seed.column_parts(source.part)]
            part = torch.cat(parts)
            end = start + part.shape[1]
            _put(merged, rows[: len(part)], places[start:end], group.alpha * part)
            start = end
    resize_layer(layer, merged, torch.cat(biases) if biases else None)


def _columns_read(
    group: UnitGroup, wiring: Wiring, columns: _Columns
) -> tuple[list[int], list[int]]:
    """Return the merged place of each input of a group's rows, and of their links."""
    found: list[int] = []
    linked: list[int] = []
    n_base = 0
    for source, places in zip(wiring.sources, columns.new, strict=True):
        found += columns.base[n_base : source.end]
        n_read = source.count(group.neighbours.get(source.slot.name, 0))
        n_linked = source.count(group.links.get(source.slot.name, 0))
        found += places[:n_read]
        linked += places[n_read : n_read + n_linked]
        n_base = source.end
    return found + columns.base[n_base:], linked


def _put(merged: Tensor, rows: list[int], columns: list[int], part: Tensor) -> None:
    """Write a part to these rows and columns, except to those that are not kept."""
    row_places = [index for index, place in enumerate(rows) if place >= 0]
    column_places = [index for index, place in enumerate(columns) if place >= 0]
    kept = part[row_places][:, column_places]
    to_rows = torch.tensor([rows[index] for index in row_places], dtype=torch.long)
    to_columns = torch.tensor([columns[index] for index in column_places], dtype=torch.long)
    merged[to_rows.unsqueeze(1), to_columns] = kept


@torch.no_grad()
def _merge_norm(norm: nn.Module, wiring: Wiring, columns: _Columns) -> None:
    named = [*norm.named_parameters(recurse=False), *norm.named_buffers(recurse=False)]
    tensors = {name: tensor for name, tensor in named if tensor.ndim == 1}
    merged: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        merged[name] = tensor.new_zeros(columns.size)
        merged[name][columns.base] = tensor
        for source, places in zip(wiring.sources, columns.new, strict=True):
            parts = [getattr(g.seed.norms[source.part], name) for g in source.slot.unit_groups]
            kept = [index for index, place in enumerate(places) if place >= 0]
            if kept:
                merged[name][[places[index] for index in kept]] = torch.cat(parts)[kept]
    resize_norm(norm, merged, columns.size)

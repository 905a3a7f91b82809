"""Experts of a mixture whose weights are stacked: parameters of three axes, the first for experts.

A module that holds such stacks multiplies by them itself, so there are no layers to trace. Where
its hidden units may be follows from the shapes; a trial then shows whether they are there.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from esper.growth.surgery.layers import Entries, Role
from esper.growth.surgery.places import Place

TRIAL_UNITS = 8
"""New units of a trial: kernels for experts need rows of whole 16 bytes."""


def has_stacks(module: nn.Module) -> bool:
    """Return whether a module holds stacked weights of at least two layers itself."""
    own = list(module.parameters(recurse=False))
    is_alone = len(own) == sum(1 for _ in module.parameters())
    return is_alone and sum(tensor.ndim == 3 for tensor in own) > 1


def possible_places(name: str, module: nn.Module) -> Iterator[Place]:
    """Yield the places that the stacks of a module may have, of which at most one is real.

    The last layer reads as many units as the first ones compute. A gate is a layer of its own,
    comes before or behind the other factor in one stack, or takes turns with it row by row.
    """
    own = dict(module.named_parameters(recurse=False))
    stacks = {key: tensor for key, tensor in own.items() if tensor.ndim == 3}
    for read, reader in reversed(stacks.items()):
        for written, writer in stacks.items():
            for axis in (1, 2):
                units = reader.shape[axis]
                for write_axis in (1, 2):
                    rows, n_in = writer.shape[write_axis], writer.shape[3 - write_axis]
                    fits = n_in == reader.shape[3 - axis] and rows in (units, 2 * units)
                    if written == read or not fits:
                        continue
                    same = [key for key in stacks if key != read and _alike(own[key], writer)]
                    biases = [k for k, v in own.items() if v.shape == (len(writer), rows)]
                    writes = [(key, write_axis) for key in same] + [(key, 1) for key in biases]
                    for layout in _layouts(rows // units, units):
                        entries = [
                            Entries(f"{name}.{key}", at, Role.WRITE, start, size)
                            for key, at in writes
                            for start, size in layout
                        ]
                        entries.append(Entries(f"{name}.{read}", axis, Role.READ))
                        yield Place(
                            units,
                            tuple(entries),
                            (name,),
                            (name,),
                            sizes=_sizes(name, module, units),
                        )


def _layouts(per_unit: int, units: int) -> list[tuple[tuple[int, int], ...]]:
    """Return where the rows of the first unit may start, and how many there are of each."""
    apart = tuple((factor * units, 1) for factor in range(per_unit))
    return [apart] if per_unit == 1 else [apart, ((0, per_unit),)]


def _alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape


def _sizes(name: str, module: nn.Module, units: int) -> tuple[tuple[str, str, int], ...]:
    """Return the attributes of a module that count its units."""
    counts = {units: 1, 2 * units: 2}
    return tuple(
        (name, key, counts[value])
        for key, value in vars(module).items()
        if type(value) is int and value in counts and ("dim" in key or "size" in key)
    )

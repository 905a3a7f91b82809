"""Checking that a change keeps what a model computes, on its sample and on noise.

A change that keeps the outputs on one sample need not keep them on others: if all positions of the
sample are alike, attention returns the same whatever it compares, and in a type with few digits a
small difference is lost in rounding. With noise in place of what each layer returns, no two values
are alike, and what another layer takes in shows what the code between them does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from esper.growth.dry_run import Call, call_model, hooked, tensors_in
from esper.growth.surgery.layers import (
    Role,
    is_reader,
    is_recurrent,
    is_writer,
    reads,
    unit_axis,
    writes,
)
from esper.growth.surgery.places import Place
from esper.growth.surgery.runs import (
    Insertion,
    Insertions,
    find_insertions,
    find_runs,
    reverted,
    shape_after,
    write_old,
)

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Largest difference of outputs that counts as rounding, relative to the largest output."""

NEW_NOISE = 3.0
"""Noise of new units relative to that of old ones, so that a maximum over units shows them."""

N_DRAWS = 8
"""Noise that is tried before what a layer returns is taken not to matter."""

OUTPUT = ""
"""Stands for the model's own output among what layers take in."""


def tolerance_for(outputs: Sequence[Tensor]) -> float:
    """Return the largest relative difference of outputs that counts as rounding."""
    return max((TOLERANCES.get(output.dtype, 0.0) for output in outputs), default=0.0)


def largest_difference(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """Return the largest difference of outputs relative to the largest output; inf if it is NaN."""
    if [tensor.shape for tensor in before] != [tensor.shape for tensor in after]:
        return math.inf
    largest = 0.0
    for old, new in zip(before, after, strict=True):
        if not old.numel():
            continue
        same = old == new  # infinities of masks are equal, and their difference is NaN
        gap = torch.where(same, 0.0, (old.double() - new.double()).abs()).max().item()
        finite = old[torch.isfinite(old)]
        scale = finite.double().abs().max().item() if finite.numel() else 0.0
        largest = max(largest, gap / max(scale, 1e-3) if math.isfinite(gap) else math.inf)
    return largest


def describe_difference(difference: float) -> str:
    """Return what a difference by :func:`largest_difference` says of outputs, for a message."""
    if math.isinf(difference):
        return "be NaN, or of another shape"
    return f"differ by {difference:.0e} of the largest output"


class NoiseRuns:
    """Runs of a model whose layers return noise, before and after places have got more units.

    A model that fails on noise, or a layer that then takes in NaN, is not compared.
    """

    def __init__(
        self,
        model: nn.Module,
        sample_input: Any,
        layers: Mapping[str, nn.Module],
        calls: Mapping[str, Sequence[Call]],
        quietly: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Draw the noise and run the model as it is.

        Args:
            model: The model.
            sample_input: Input for it.
            layers: Its layers.
            calls: Their calls on the sample.
            quietly: Returns a context in which the model runs without any lasting effect.
        """
        self._model, self._sample_input, self._quietly = model, sample_input, quietly
        self._layers = layers
        self._readers = {name: layer for name, layer in layers.items() if is_reader(layer)}
        self._generator = torch.Generator().manual_seed(0)
        self._noise = {
            name: self._draw(output)
            for name, layer in layers.items()
            if is_writer(layer) and not is_recurrent(layer) and len(calls[name]) == 1
            for output in tensors_in(calls[name][0].output)[:1]
        }
        found = self._run(self._noise)
        self._before = {name: value for name, value in found.items() if _is_finite(value)}

    def matters(self, writer: str, reader: str, n_units: int | None = None) -> bool:
        """Return whether a reader takes in something else if a writer returns other noise.

        Args:
            writer: Name of the writer.
            reader: Name of the reader.
            n_units: How many of the writer's first units have other noise; all by default.
        """
        before = self._before.get(reader)
        if writer not in self._noise or before is None:
            return True
        noise = self._noise[writer].clone()
        axis = unit_axis(self._layers[writer]) % noise.ndim
        first = noise.narrow(axis, 0, noise.shape[axis] if n_units is None else n_units)
        for _ in range(N_DRAWS):  # an activation may hide the values of a few units
            first.copy_(self._draw(first))
            after = self._run({**self._noise, writer: noise})
            if reader not in after or not _are_close(before, after[reader]):
                return True
        return False

    def find_difference(self, counts: Mapping[Place, int]) -> str | None:
        """Return the name of a layer that no longer takes in the same of old units, if any.

        Args:
            counts: How many units each place has got.
        """
        found = find_insertions(counts)
        noise = {name: self._widened(name, old, found) for name, old in self._noise.items()}
        after = self._run(noise)
        for name, old in self._before.items():
            new = after.get(name)
            if name != OUTPUT:
                new = self._old_part(name, old, new, found)
            if new is None or not _are_close(old, new):
                return name
        return None

    def _draw(self, like: Tensor, shape: Sequence[int] | None = None) -> Tensor:
        drawn = torch.randn(like.shape if shape is None else shape, generator=self._generator)
        return drawn.to(like)

    def _run(self, noise: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what readers take in, and the output; nothing if the model fails."""
        found: dict[str, Tensor] = {}

        def note(name: str, _: nn.Module, args: Any, kwargs: Any) -> None:
            for given in tensors_in([*args, *kwargs.values()])[:1]:
                found.setdefault(name, given.clone())

        def replaced(name: str, _: nn.Module, __: Any, ___: Any, output: Any) -> Tensor | None:
            value = noise[name]
            is_like = isinstance(output, Tensor) and output.shape == value.shape
            return value.clone() if is_like else None  # what follows may work in place

        writers = {name: self._layers[name] for name in noise}
        try:
            with (
                hooked(self._readers, before=note),
                hooked(writers, after=replaced),
                self._quietly(),
            ):
                outputs = tensors_in(call_model(self._model, self._sample_input))
        except Exception:  # a model may check its values in any way
            return {}
        return found | {OUTPUT: torch.cat([output.flatten().double() for output in outputs])}

    def _widened(self, name: str, old: Tensor, found: Insertions) -> Tensor:
        """Return the noise of a writer with that of its new units."""
        layer = self._layers[name]
        tensor = next(writes(layer)).tensor
        own = _along(unit_axis(layer) % old.ndim, found.get(f"{name}.{tensor}", ()), Role.WRITE)
        if not own:
            return old
        return write_old(
            self._draw(old, shape_after(old.shape, own)), old, find_runs(old.shape, own)
        )

    def _old_part(
        self, name: str, old: Tensor, new: Tensor | None, found: Insertions
    ) -> Tensor | None:
        """Return what a reader takes in of old units; None if it has another shape."""
        layer = self._layers[name]
        tensor = next(reads(layer)).tensor
        own = _along(unit_axis(layer) % old.ndim, found.get(f"{name}.{tensor}", ()), Role.READ)
        if new is None or new.shape != shape_after(old.shape, own):
            return None
        return write_old(torch.empty_like(old), new, reverted(find_runs(old.shape, own)))


def _along(axis: int, insertions: Sequence[Insertion], role: Role) -> list[Insertion]:
    """Return the insertions of a weight as those of what its layer takes in or returns."""
    return [
        replace(each, entries=replace(each.entries, axis=axis))
        for each in insertions
        if each.entries.role is role
    ]


def _are_close(one: Tensor, other: Tensor) -> bool:
    return largest_difference([one], [other]) <= tolerance_for([one])


def _is_finite(value: Tensor) -> bool:
    return bool(value.isfinite().all())

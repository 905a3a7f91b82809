"""Widening and deepening a model in place: the functions that users call, and what they return."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from esper.errors import SurgeryError
from esper.formatting import html_lines, html_table
from esper.growth.dry_run import SampleInput
from esper.growth.modules import count_parameters
from esper.growth.surgery.edits import Edits, Replacement
from esper.growth.surgery.operations import At, ChangedPlace, Deepening, Operation, Plan, Widening

Start = Literal["zero", "copy"]
STARTS: tuple[Start, ...] = ("zero", "copy")


class Change:
    """What :func:`widen` or :func:`deepen` did to a model; printing it gives a table.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> change = esper.widen(model, 2.0, sample_input=torch.randn(2, 4))
        >>> change.places[0].place, change.places[0].after, model[0].out_features
        ('0>2', 16, 16)
    """

    def __init__(
        self,
        edits: Sequence[Edits],
        places: Sequence[ChangedPlace],
        *,
        n_new: int,
        difference: float,
        notes: Sequence[str] = (),
    ) -> None:
        self.n_new = n_new
        """Number of parameters that were added."""
        self.places = tuple(places)
        """What grew."""
        self.difference = difference
        """Largest difference of the outputs before and after, relative to the largest output."""
        self.notes = tuple(notes)
        """What was left as it is, and why."""
        self._edits = list(edits)
        self._model = edits[0].model
        self._versions = self._current_versions()
        self._n_after = count_parameters(self._model)

    def new_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are new or have new entries, in the model's order."""
        new = self._replacements()
        return [p for p in self._model.parameters() if id(p) in new]

    def new_names(self) -> list[str]:
        """Return the names of :meth:`new_parameters`."""
        new = self._replacements()
        return [name for name, p in self._model.named_parameters() if id(p) in new]

    def freeze_old(self) -> None:
        """Train only what is new from now on.

        Old parameters get ``requires_grad=False``. A parameter with old and new entries stays
        trainable: gradients of its old entries are zero, and after each optimizer step these are
        set back to what they are now, because weight decay and momentum would change them. That
        lasts as long as the parameter. Running statistics of batch norms go on.
        """
        new = self._replacements()
        for parameter in self._model.parameters():
            each, was_trained = new.get(id(parameter)), parameter.requires_grad
            if self._edits:
                self._edits[0].on_undo(partial(parameter.requires_grad_, was_trained))
            parameter.requires_grad_(each is not None)
            if each is not None and each.old is not None:
                _freeze_entries(parameter, each.old_entries())

    def undo(self) -> None:
        """Restore the model, its optimizers and moving averages exactly.

        Raises:
            SurgeryError: If it has been undone, or the model has been trained or changed since.
        """
        if not self._edits:
            raise SurgeryError("this change has been undone already.")
        if self._current_versions() != self._versions:
            raise SurgeryError(
                "the model has been trained or changed since, so the change cannot be undone; load "
                "a copy that was saved before."
            )
        for edits in reversed(self._edits):
            edits.undo()
        self._edits.clear()

    def __str__(self) -> str:
        rows = [_HEADERS, *map(_cells, self.places)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            f"{row[0]:<{widths[0]}}"
            + "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
            for row in rows
        ]
        return "\n".join([*lines, *self._sentences()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table = html_table(_HEADERS, map(_cells, self.places), n_left=1)
        return table + html_lines(self._sentences())

    def _sentences(self) -> list[str]:
        after = self._n_after
        sentence = (
            f"{after - self.n_new:,} parameters became {after:,}; outputs differ by "
            f"{self.difference:.0e} of the largest."
        )
        undone = [] if self._edits else ["This change has been undone."]
        return [sentence, *self.notes, *undone]

    def _current_versions(self) -> dict[int, int]:
        return {id(p): p._version for p in self._model.parameters()}

    def _replacements(self) -> dict[int, Replacement]:
        found = self._edits[0].replaced if self._edits else []
        return {id(each.new): each for each in found if each.has_new_entries}


def widen(
    model: nn.Module,
    factor: float = 2.0,
    *,
    sample_input: SampleInput | None = None,
    at: At = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    ema: nn.Module | Sequence[nn.Module] | None = None,
    generator: torch.Generator | None = None,
) -> Change:
    """Add hidden units to a model's own layers, in place, without changing what it computes.

    The layers are found by running the model; no architecture is known by name. Layers that
    compute new units get rows drawn like their other rows, layers that read them columns of zeros.
    The model stays a plain module, with the names and shapes that it would have had if it had been
    built this wide; a Transformers configuration follows.

    Args:
        model: Any module; it may have been trained.
        factor: New number of hidden units, relative to the present one; above 1.
        sample_input: Input for the model: a tensor, a tuple of arguments or a mapping of keyword
            arguments. Outputs are compared on it before and after.
        at: Names of places or groups, such as ``"layers.*.mlp"``, or of modules around them;
            everything that can be widened by default.
        optimizer: The optimizer of the model, or several; they keep their state.
        ema: A moving average of the model (``AveragedModel`` or a module), or several.
        generator: Draws the new weights; torch's default one if it is not given.

    Raises:
        SurgeryError: If nothing can be widened, or the outputs would change; the model is then as
            it was.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> change = esper.widen(model, 2.0, sample_input=torch.randn(2, 4))
        >>> model[0].out_features, model[2].in_features, change.n_new
        (16, 16, 64)
    """
    if not isinstance(factor, (int, float)) or not 1.0 < factor < math.inf:
        raise SurgeryError(f"factor is {factor!r}; it must be a number above 1, such as 2.0.")
    operation = Operation(model, sample_input, optimizer, ema)
    return _run(operation, Widening(operation, factor, generator), at)


def deepen(
    model: nn.Module,
    by: int | None = None,
    *,
    to: int | None = None,
    sample_input: SampleInput | None = None,
    at: At = None,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    ema: nn.Module | Sequence[nn.Module] | None = None,
    start: Start = "zero",
) -> Change:
    """Insert copies of residual blocks into a model, in place, without changing what it computes.

    Blocks are entries of a list of modules; which of them are residual, and what has to be zero in
    a copy so that it starts as the identity, is found by running them. Copies stand next to their
    originals, spread over the list, and train from there.

    Args:
        model: Any module; it may have been trained.
        by: Number of blocks to add to each list of blocks.
        to: Number of blocks that each list is to have, instead of ``by``.
        sample_input: Input for the model: a tensor, a tuple of arguments or a mapping of keyword
            arguments. Outputs are compared on it before and after.
        at: Names of lists, such as ``"model.layers"``; all by default.
        optimizer: The optimizer of the model, or several; new parameters join the groups of those
            that they are copies of.
        ema: A moving average of the model (``AveragedModel`` or a module), or several.
        start: "zero" for copies that start as the identity, "copy" for copies with the weights of
            their originals, which changes the outputs.

    Raises:
        SurgeryError: If nothing can be deepened, or the outputs would change; the model is then as
            it was.

    Examples:
        >>> layer = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, batch_first=True)
        >>> model = nn.TransformerEncoder(layer, num_layers=2)
        >>> change = esper.deepen(model, by=2, sample_input=torch.randn(2, 4, 8))
        >>> len(model.layers), change.places[0].place
        (4, 'layers.*')
    """
    if start not in STARTS:
        raise SurgeryError(f"start is {start!r}; it must be one of {', '.join(STARTS)}.")
    for name, value in (("by", by), ("to", to)):
        if value is not None and (type(value) is not int or value < 1):
            raise SurgeryError(f"{name} is {value!r}; it must be a positive whole number.")
    if (by is None) == (to is None):
        raise SurgeryError("give either by, the number of new blocks, or to, the number of blocks.")
    operation = Operation(model, sample_input, optimizer, ema)
    return _run(operation, Deepening(operation, by, to, is_identity=start == "zero"), at)


def _run(operation: Operation, plan: Plan, at: At) -> Change:
    result = operation.run(plan, at)
    return Change(
        result.edits,
        result.places,
        n_new=result.n_new,
        difference=result.difference,
        notes=result.notes,
    )


_HEADERS = ("place", "before", "after", "new parameters")


def _cells(row: ChangedPlace) -> tuple[str, ...]:
    name = row.place if row.members == 1 else f"{row.place} ({row.members})"
    sizes = [f"{size:,} {row.unit}" for size in (row.before, row.after)]
    return (name, *sizes, f"{row.parameters:,}")


def _freeze_entries(parameter: nn.Parameter, is_old: Tensor) -> None:
    """Keep some entries of a parameter as they are, whatever trains it."""
    values = parameter.detach()[is_old].clone()

    def mask(gradient: Tensor) -> Tensor:
        return gradient.masked_fill(is_old, 0.0)

    parameter.register_hook(mask)

    @torch.no_grad()
    def restore(optimizer: Optimizer, _: object, __: object) -> None:
        if any(p is parameter for group in optimizer.param_groups for p in group["params"]):
            parameter[is_old] = values

    register_optimizer_step_post_hook(restore)

"""Widening and deepening a model in place: the functions that users call, and what they return."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

from esper.config.checks import rejects_unknown
from esper.errors import SurgeryError, type_of
from esper.formatting import html_lines, html_table, text_table
from esper.growth.dry_run import SampleInput
from esper.growth.modules import count_parameters
from esper.growth.surgery.carrying import shortened
from esper.growth.surgery.checking import describe_difference
from esper.growth.surgery.edits import Edits
from esper.growth.surgery.operations import At, ChangedPlace, Deepening, Operation, Plan, Widening
from esper.growth.surgery.runs import Runs, composed, gaps

Start = Literal["zero", "copy"]
STARTS: tuple[Start, ...] = ("zero", "copy")


@dataclass(frozen=True)
class _Novelty:
    """What is new in a parameter."""

    old: Runs | None
    """Where its old entries are, by axis; None if all of it is new."""
    version: int
    """Its version when that was so; one that was trained since is old in a later change."""


_OPTIMIZER_LOST = "No optimizer was given: one made before does not train what has changed."

_NEW: Any = WeakTensorKeyDictionary()
"""The novelty of every parameter that is new or has new entries."""


class Change:
    """What :func:`widen` or :func:`deepen` did to a model; printing it gives a table.

    Changes of one model with no training between them count as one: the parts that are new in the
    last one are those of all.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> change = esper.widen(model, 2.0, sample_input=torch.randn(2, 4))
        >>> change.places[0].place, change.places[0].after, model[0].out_features
        ('0>2', 16, 16)
    """

    def __init__(self, operation: Operation, plan: Plan, at: At) -> None:
        result = operation.run(plan, at)
        self.n_new = result.n_new
        """Number of parameters that were added."""
        self.places = tuple(result.places)
        """What grew."""
        self.difference = result.difference
        """Largest difference of the outputs before and after, relative to the largest output."""
        self.notes = (*result.notes, *_frozen_note(result.edits[0]))
        """What to know about it, such as what was left as it is, and why."""
        self.inexpressible = operation.inexpressible
        """What the configuration cannot express; empty if ``from_pretrained`` loads the model."""
        self._has_optimizer = operation.has_optimizer
        self._edits = result.edits
        self._model = operation.model
        self._versions = self._current_versions()
        self._n_after = count_parameters(self._model)
        self._new = _find_new(result.edits[0])
        self._freeze: _Freeze | None = None

    def new_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are new or have new entries, in the model's order."""
        return [p for p in self._model.parameters() if id(p) in self._new]

    def new_names(self) -> list[str]:
        """Return the names of :meth:`new_parameters`."""
        return [name for name, p in self._model.named_parameters() if id(p) in self._new]

    def new_entries(self) -> dict[str, dict[int, list[tuple[int, int]]]]:
        """Return where parameters that have old entries as well have new ones, by name and axis.

        Each pair is a first index and the one behind the last; an entry is new if its index along
        any axis lies between two of a pair.
        """
        found: dict[str, dict[int, list[tuple[int, int]]]] = {}
        for name, parameter in self._model.named_parameters():
            old = self._new.get(id(parameter))
            if old is not None:
                shape = parameter.shape
                found[name] = {
                    axis: [(start, start + length) for start, length in gaps(runs, shape[axis])]
                    for axis, runs in old.items()
                }
        return found

    def freeze_old(self) -> None:
        """Train only what is new, until :meth:`unfreeze_old`.

        Old parameters get ``requires_grad=False``. A parameter with old and new entries stays
        trainable: gradients of its old entries are zero, and after each optimizer step these are
        set back to what they are now, because weight decay and momentum would change them. A copy
        of the model is not frozen in this way. Running statistics of batch norms go on.

        Raises:
            SurgeryError: If the change has been undone, or a later one knows more of what is new.
        """
        if not self._edits:
            raise SurgeryError("this change has been undone, so nothing of it is left to train.")
        own = {id(parameter) for parameter in self._model.parameters()}
        if not self._new.keys() <= own:
            raise SurgeryError(
                "the model has been changed again since; call freeze_old of the last change, which "
                "knows the new parts of all."
            )
        self.unfreeze_old()
        self._freeze = _Freeze(self._model, self._new)

    def unfreeze_old(self) -> None:
        """Let what :meth:`freeze_old` has frozen train again; do nothing if nothing is."""
        if self._freeze is not None:
            self._freeze.lift()
            self._freeze = None

    def undo(self) -> None:
        """Restore the model, its optimizers and moving averages exactly.

        Raises:
            SurgeryError: If it has been undone, or the model has been trained or changed since.
        """
        if not self._edits:
            raise SurgeryError("this change has been undone already.")
        versions = self._current_versions()
        if versions.keys() != self._versions.keys():
            raise SurgeryError(
                "the model has been changed again since; undo the last change first."
            )
        if versions != self._versions:
            raise SurgeryError(
                "the model has been trained since, so the change cannot be undone; load a copy "
                "that was saved before."
            )
        self.unfreeze_old()
        self._new = {}
        for edits in reversed(self._edits):
            edits.undo()
        self._edits.clear()

    def describe(self, *, is_done: bool = True) -> str:
        """Return the table and what else there is to say.

        Args:
            is_done: Whether to say what has been done, or what would be.
        """
        table = text_table([_HEADERS, *map(_cells, self.places)])
        return "\n".join([table, *self._sentences(is_done=is_done)])

    def __repr__(self) -> str:
        return "\n".join([self.describe(), *self._warnings()])

    def _repr_html_(self) -> str:
        table = html_table(_HEADERS, map(_cells, self.places), n_left=1)
        return table + html_lines([*self._sentences(), *self._warnings()])

    def _warnings(self) -> list[str]:
        is_lost = not self._has_optimizer and bool(self._edits)
        return [_OPTIMIZER_LOST] if is_lost else []

    def _sentences(self, *, is_done: bool = True) -> list[str]:
        before, after = self._n_after - self.n_new, self._n_after
        outputs = describe_difference(self.difference) if self.difference else "are equal"
        sentence = (
            f"{before:,} parameters {'became' if is_done else 'would become'} {after:,}; outputs "
            f"on the sample {outputs}."
        )
        undone = [] if self._edits else ["This change has been undone."]
        return [sentence, *self.notes, *undone]

    def _current_versions(self) -> dict[int, int]:
        return {id(p): p._version for p in self._model.parameters()}


@rejects_unknown("widen")
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
    if not isinstance(generator, (torch.Generator, type(None))):
        raise SurgeryError(f"generator is {type_of(generator)}; it must be a torch.Generator.")
    operation = Operation(model, sample_input, optimizer, ema)
    return Change(operation, Widening(operation, factor, generator), at)


@rejects_unknown("deepen")
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
    return Change(operation, Deepening(operation, by, to, is_identity=start == "zero"), at)


_HEADERS = ("place", "before", "after", "new parameters")


def _cells(row: ChangedPlace) -> tuple[str, ...]:
    name = row.place if row.members == 1 else f"{row.place} ({row.members})"
    sizes = [f"{size:,} {row.unit}" for size in (row.before, row.after)]
    return (name, *sizes, f"{row.parameters:,}")


def _frozen_note(edits: Edits) -> list[str]:
    """Return what to say if parameters with new entries are frozen."""
    frozen = [
        each.name
        for each in edits.replaced
        if isinstance(each.new, nn.Parameter) and not each.new.requires_grad
    ]
    if not frozen:
        return []
    return [
        f"New parts of {shortened(frozen)} do not train, because their layers are "
        "frozen; change.freeze_old() trains all that is new, and only that."
    ]


def _find_new(edits: Edits) -> dict[int, Runs | None]:
    """Return where old entries are in each parameter with new ones, by identity, and note it."""
    found: dict[int, Runs | None] = {}
    for parameter in edits.model.parameters():
        known = _known(parameter)
        if known is not None:
            found[id(parameter)] = known.old
    for each in edits.replaced:
        if isinstance(each.new, nn.Parameter):
            known = None if each.old is None else _known(each.old)
            if each.old is None or (known is not None and known.old is None):
                found[id(each.new)] = None
            elif runs := composed({} if known is None else known.old or {}, each.runs):
                found[id(each.new)] = runs
    for parameter in edits.model.parameters():
        if id(parameter) in found:
            _NEW[parameter] = _Novelty(found[id(parameter)], parameter._version)
    return found


def _known(parameter: Tensor) -> _Novelty | None:
    """Return the novelty of a parameter that has not been trained since."""
    known: _Novelty | None = _NEW.get(parameter)
    return known if known is not None and known.version == parameter._version else None


class _Freeze:
    """Keeps what is old in a model as it is, whatever trains it."""

    def __init__(self, model: nn.Module, new: Mapping[int, Runs | None]) -> None:
        self._was_trained = [(p, p.requires_grad) for p in model.parameters()]
        self._old: dict[int, tuple[Tensor, Tensor]] = {}
        # The hooks of gradients keep this object alive as long as the parameters.
        self._handles: list[Any] = []
        for parameter, _ in self._was_trained:
            parameter.requires_grad_(id(parameter) in new)
            if id(parameter) not in new:
                parameter.grad = None  # an optimizer would still use it
            runs = new.get(id(parameter))
            if runs is not None:
                is_old = _old_entries(parameter, runs)
                self._old[id(parameter)] = is_old, parameter.detach()[is_old].clone()
                self._handles.append(parameter.register_hook(partial(self._mask, is_old)))
        reference = weakref.ref(self)

        def restore(optimizer: Optimizer, _: object, __: object) -> None:
            if (freeze := reference()) is not None:
                freeze._restore(optimizer)

        handle = register_optimizer_step_post_hook(restore)
        self._finalize = weakref.finalize(self, handle.remove)

    def lift(self) -> None:
        """Let everything train as before."""
        for handle in self._handles:
            handle.remove()
        self._finalize()
        for parameter, was_trained in self._was_trained:
            parameter.requires_grad_(was_trained)

    def _mask(self, is_old: Tensor, gradient: Tensor) -> Tensor:
        return gradient.masked_fill(is_old, 0.0)

    @torch.no_grad()
    def _restore(self, optimizer: Optimizer) -> None:
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if id(parameter) in self._old:
                is_old, values = self._old[id(parameter)]
                parameter[is_old] = values


def _old_entries(parameter: Tensor, runs: Runs) -> Tensor:
    """Return a mask of the entries of a parameter that are old."""
    is_new = torch.zeros_like(parameter, dtype=torch.bool)
    for axis, own in runs.items():
        for start, length in gaps(own, parameter.shape[axis]):
            is_new.narrow(axis, start, length).fill_(True)
    return ~is_new

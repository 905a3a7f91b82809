"""Edits of a model in place: tensors, attributes and lists of modules, each of which can be undone.

A tensor that gets another shape is replaced, never resized: the gradient accumulators of
DistributedDataParallel keep the shape of the tensor that they were made for. Optimizers and moving
averages follow (:mod:`esper.growth.surgery.carrying`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from esper.growth.surgery.layers import update_sizes
from esper.growth.surgery.places import Place
from esper.growth.surgery.runs import Runs, reverted, write_old


@dataclass(eq=False)
class Replacement:
    """A tensor of the model that another one has taken the place of."""

    name: str
    """Its name in the model when it was replaced; inside its block if that is new."""
    old: Tensor | None
    """None for a tensor of a new block."""
    new: Tensor
    runs: Runs = field(default_factory=dict[int, "tuple[Any, ...]"])
    """Where old entries are in the new tensor."""
    like: Tensor | None = None
    """The tensor of an old block that a new one is a copy of."""

    @property
    def has_new_entries(self) -> bool:
        """Whether it is a new parameter, or one with more entries than before."""
        is_larger = self.old is None or self.new.numel() > self.old.numel()
        return is_larger and isinstance(self.new, nn.Parameter)

    def carry(self, value: Tensor, into: Tensor | None = None) -> Tensor:
        """Return a tensor of the new shape with the entries of one of the old shape.

        Other entries are zero, or those of ``into``, which is changed.
        """
        into = value.new_zeros(self.new.shape) if into is None else into
        return write_old(into, value, self.runs)

    def carry_back(self, value: Tensor) -> Tensor:
        """Return a tensor of the old shape with the entries of one of the new shape."""
        assert self.old is not None, "there was a tensor before"
        return write_old(value.new_zeros(self.old.shape), value, reverted(self.runs))


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
        self._layers: dict[str, nn.Module] = {}

    def undo(self) -> None:
        """Revert every change, the last one first."""
        while self._undo:
            self._undo.pop()()
        self.replaced.clear()
        self.dropped.clear()

    def on_undo(self, revert: Callable[[], object]) -> None:
        """Call a function when the changes are reverted."""
        self._undo.append(revert)

    def absorb(self, later: Edits) -> None:
        """Let the attributes that later edits have set be reverted with these."""
        self._undo += later._undo

    def layer(self, name: str) -> nn.Module:
        """Return the module that a parameter or buffer is in."""
        path = name.rpartition(".")[0]
        if path not in self._layers:
            self._layers[path] = self.model.get_submodule(path)
        return self._layers[path]

    def replace(self, name: str, value: Tensor, runs: Runs) -> None:
        """Put a tensor in the place of the parameter or buffer of a name."""
        self.replace_in(self.layer(name), name.rpartition(".")[2], value, name)
        self.replaced[-1].runs = runs

    def replace_in(self, module: nn.Module, attribute: str, value: Tensor, name: str = "") -> None:
        """Put a tensor in the place of a parameter or buffer of a module."""
        old = getattr(module, attribute)
        new = value
        if isinstance(old, nn.Parameter):
            new = nn.Parameter(value, requires_grad=old.requires_grad)
            vars(new).update(vars(old))  # such as a rate or decay of its own
        setattr(module, attribute, new)
        self.on_undo(lambda: setattr(module, attribute, old))
        self.replaced.append(Replacement(name, old, new))

    def update_sizes(self, module: nn.Module) -> None:
        """Set the sizes that a layer keeps as attributes from its tensors."""
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

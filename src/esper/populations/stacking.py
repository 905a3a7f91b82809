"""Converting one host's module into a module that computes many hosts at once.

Each layer is replaced by its stacked form. A block's own forward code is kept and must work with
more leading axes, which is tested rather than assumed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence, Set
from types import MethodType
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from esper.errors import UnsupportedHostError, type_of
from esper.growth.host_slots import ATTRIBUTE
from esper.growth.modules import named_children, named_modules, named_tensors
from esper.populations.rows import ActiveRows
from esper.populations.stacked_layers import ELEMENTWISE, STACKED_FORMS


def stack_module(
    module: nn.Module, rows: ActiveRows, places: Mapping[str, nn.Module], name: str = ""
) -> nn.Module:
    """Return the stacked form of a module, whose layers read their weights from rows.

    ``places`` are modules to put around submodules, by name; their ``block`` is set here.

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
            f"{name or 'the model'} is {type_of(module)} with no stacked form; use "
            "SequentialPopulation."
        )
    twin = copy.copy(module)
    # A shallow copy shares the original's dict of children until it gets its own.
    twin.__dict__["_modules"] = {}
    for key, child in named_children(module):
        twin.add_module(key, stack_module(child, rows, places, f"{prefix}{key}"))
    return twin


def require_plain_parameters(module: nn.Module) -> None:
    """Raise if a module has parameters that a row cannot hold: frozen or shared ones.

    Raises:
        UnsupportedHostError: If it has; the message names the parameter.
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


Structure = tuple[Any, ...]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_NOT_LOOKED_AT = frozenset(vars(nn.Module())) | {ATTRIBUTE}
"""Attributes of every module (its mode, parameters, children), and slots."""


def structure_of(model: nn.Module) -> Structure:
    """Return the name, type and settings of every module of a model.

    Models with equal structures and equal weights compute the same. A setting is any attribute
    other than parameters, buffers and modules; one that cannot be compared, such as a function
    defined for each model, makes the structure unique.
    """
    return tuple((name, *_describe(module)) for name, module in named_modules(model).items())


def kind_of(model: nn.Module) -> Structure:
    """Return the structure of a model with its mode and the form of its tensors.

    Models of one kind differ in their weights alone, so what is known about how one computes, such
    as its FLOPs, holds for all.
    """
    tensors = tuple(
        (name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
        for name, tensor in named_tensors(model).items()
    )
    return structure_of(model), model.training, tensors


class KnownKinds:
    """Answers by kind of model, for the whole process; the oldest are dropped first."""

    def __init__(self, limit: int = 512) -> None:
        self._limit = limit
        self._answers: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, key: Any, answer: Callable[[], Any]) -> Any:
        """Return the answer for a key, computed if it is not known."""
        if key not in self._answers:
            found = answer()
            while len(self._answers) >= self._limit:
                del self._answers[next(iter(self._answers))]
            self._answers[key] = found
        return self._answers[key]


def _describe(module: nn.Module) -> Structure:
    attributes = vars(module)
    settings = tuple(
        (name, _comparable(value))
        for name, value in attributes.items()
        if name not in _NOT_LOOKED_AT
    )
    hooks = tuple(_comparable(list(attributes[name].values())) for name in _HOOKS)
    return type(module), module.extra_repr(), settings, hooks


def _comparable(value: Any) -> Any:
    """Return a hashable value that is equal for equal settings."""
    kind = cast(type[Any], type(value))
    if kind in (int, float, bool, str, type(None)):
        return kind, value
    if isinstance(value, Tensor):
        numbers: list[float] = cast(Any, value.detach().flatten()).tolist()
        return kind, value.dtype, tuple(value.shape), tuple(numbers)
    if isinstance(value, np.ndarray):
        return kind, value.dtype.str, value.shape, cast(Any, value).tobytes()
    if isinstance(value, Mapping):
        pairs = cast(Mapping[Any, Any], value).items()
        return kind, tuple((_comparable(k), _comparable(v)) for k, v in pairs)
    if isinstance(value, Sequence):
        return kind, tuple(_comparable(part) for part in cast(Sequence[Any], value))
    if isinstance(value, Set):
        return kind, frozenset(_comparable(part) for part in cast(Set[Any], value))
    if isinstance(value, MethodType):
        return kind, _comparable(value.__func__), type(value.__self__)
    try:
        hash(value)
    except TypeError:
        return kind, repr(value)
    return value

"""What a model computes, but for its weights, as something that can be compared and looked up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from types import MethodType
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from esper.growth.host_slots import ATTRIBUTE
from esper.growth.modules import named_modules

Structure = tuple[Any, ...]

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_NOT_LOOKED_AT = frozenset(vars(nn.Module())) | {ATTRIBUTE}
"""What every module has (its mode, its parameters, its children), and slots."""


def structure_of(model: nn.Module) -> Structure:
    """Return name, type and settings of every module of a model.

    Models of the same structure compute the same if they have the same weights. A setting is any
    attribute that is no parameter, buffer or module; one that cannot be compared (a function made
    for each model, say) makes the structure one of its own.
    """
    return tuple((name, *_describe(module)) for name, module in named_modules(model).items())


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
    """Return what tells a setting from another: itself, or what is in it."""
    kind = cast(type[Any], type(value))
    if kind in (int, float, bool, str, type(None)):
        return kind, value
    if isinstance(value, Tensor):
        return kind, value.dtype, tuple(value.shape), _numbers_of(value)
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


def _numbers_of(tensor: Tensor) -> tuple[float, ...]:
    numbers: list[float] = cast(Any, tensor.detach().flatten()).tolist()
    return tuple(numbers)

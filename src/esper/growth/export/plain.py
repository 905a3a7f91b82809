"""Writing Esper's own modules as torch's, and checking that nothing of Esper is left."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, cast

from torch import nn
from torch.fx import Graph, GraphModule, Tracer

from esper.errors import UnsupportedHostError
from esper.growth.modules import named_modules

_REGISTRIES = ("_modules", "_parameters", "_buffers")
_STATE = (
    "_non_persistent_buffers_set",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
"""What a module holds besides its parts and the attributes that its class gave it."""

_DEPTH = 4


class _OneLevelTracer(Tracer):
    """Traces a module's own code; the modules inside it are plain already."""

    def __init__(self) -> None:
        super().__init__()
        self.proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return that a module inside the traced one is called, not looked into."""
        return True


def to_plain(module: nn.Module, name: str) -> nn.Module:
    """Return a module, whose children are plain, without Esper's class.

    A class that only builds layers becomes the torch class it is built on; one that computes
    something of its own becomes a graph of that computation.

    Raises:
        UnsupportedHostError: If the computation cannot be traced.
    """
    if not _is_our_class(type(module)):
        return module
    bases = type(module).__mro__
    base = next(cls for cls in bases if not _is_our_class(cls))
    if all(_only_builds(cls) for cls in bases[: bases.index(base)]):
        module.__class__ = base
        for attribute, value in list(module.__dict__.items()):
            if attribute not in (*_REGISTRIES, *_STATE) and comes_from_esper(value):
                delattr(module, attribute)
        return module
    return _trace(module, name)


def comes_from_esper(value: object, depth: int = _DEPTH) -> bool:
    """Return whether a value, or one inside it, is of a class or a module of Esper."""
    if depth == 0:
        return False
    look_into = functools.partial(comes_from_esper, depth=depth - 1)
    if isinstance(value, type):
        return _is_our_class(value)
    if isinstance(value, Mapping):
        items = cast(Mapping[object, object], value)
        return any(map(look_into, items)) or any(map(look_into, items.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(look_into, cast(Iterable[object], value)))
    if isinstance(value, functools.partial):
        parts = cast(Any, value)
        return any(map(look_into, (parts.func, parts.args, parts.keywords)))
    owner = getattr(value, "__self__", None)
    if owner is not None and not isinstance(owner, nn.Module) and look_into(owner):
        return True
    home = getattr(value, "__module__", None) if callable(value) else None
    return _is_our_name(home) or _is_our_class(type(value))


def require_plain(module: nn.Module) -> None:
    """Raise if something of Esper is left in a module.

    Raises:
        UnsupportedHostError: With the part's name and the attribute that holds it.
    """
    for name, part in named_modules(module).items():
        where = f"the part {name!r}" if name else f"the {type(part).__name__} itself"
        assert not _is_our_class(type(part)), f"{where} is still a {type(part).__name__}"
        for attribute, value in part.__dict__.items():
            if attribute not in _REGISTRIES and comes_from_esper(value):
                raise UnsupportedHostError(
                    f"the model cannot be exported: {where} keeps something of esper in its "
                    f"attribute {attribute!r}; remove it before exporting."
                )
        if isinstance(part, GraphModule):
            targets = [node.target for node in part.graph.nodes]
            assert not any(map(comes_from_esper, targets)), f"{where} calls a function of esper"


def _is_our_name(name: object) -> bool:
    return isinstance(name, str) and name.partition(".")[0] == "esper"


def _is_our_class(cls: type) -> bool:
    """Return whether a class needs Esper: it or a base is defined there."""
    return any(_is_our_name(base.__module__) for base in cls.__mro__)


def _only_builds(cls: type) -> bool:
    """Return whether a class adds nothing but a constructor to the one it is built on."""
    behaviour = (property, staticmethod, classmethod)
    return all(
        name == "__init__" or not (callable(value) or isinstance(value, behaviour))
        for name, value in vars(cls).items()
    )


def _trace(module: nn.Module, name: str) -> GraphModule:
    kind = type(module).__name__
    try:
        traced = _OneLevelTracer().trace(module)
    except Exception as error:
        raise UnsupportedHostError(
            f"the {kind} at {name!r} cannot be written as torch modules: {error}"
        ) from error
    # A fresh graph does not remember its tracer, nor where its nodes came from.
    graph = Graph()
    graph.output(graph.graph_copy(traced, {}))
    for node in graph.nodes:
        node.meta.clear()
        node.type = None
    plain = GraphModule(module, graph, kind)
    # All of the module's parts, used or not, in their order; tracing may have added constants.
    for registry in _REGISTRIES:
        own, added = module.__dict__[registry], plain.__dict__[registry]
        plain.__dict__[registry] = {**own, **{k: v for k, v in added.items() if k not in own}}
    plain.__dict__.update({name: module.__dict__[name] for name in _STATE})
    return plain

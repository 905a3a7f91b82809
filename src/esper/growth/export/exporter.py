"""Turning a grown model into a plain one: the same function, made of torch's modules only."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Mapping
from typing import Any, cast

from torch import nn
from torch.fx import Graph, GraphModule, Tracer

from esper.errors import UnsupportedHostError
from esper.growth.blueprints.serial import NoopSeed
from esper.growth.export.composition import compose
from esper.growth.export.merging import ADD_STYLES, Ties, merge_seed, scale_last_layer
from esper.growth.host_slots import ATTRIBUTE
from esper.growth.modules import named_modules
from esper.growth.seed_slot import SeedSlot
from esper.lifecycle.stages import Stage

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


def export(model: nn.Module, *, committed_only: bool = False) -> nn.Module:
    """Return a plain copy of a model, with no class, hook or slot of Esper in it.

    The copy computes what the model computes now in evaluation mode: seeds that are blended in are
    kept at their present alpha, those that are still learning in isolation are left out. A seed is
    merged into the weights of its block where the mathematics allows it, and otherwise stands
    beside the block as ordinary torch modules. The model itself stays as it is.

    Classes that are not Esper's stay what they are, so the copy needs whatever defines them.

    Args:
        model: Any module, with slots or without.
        committed_only: Keep only seeds that are fossilized.

    Raises:
        UnsupportedHostError: If part of the model cannot be written without Esper; the message
            names the part.
    """
    twin = copy.deepcopy(model)
    for module in twin.modules():
        module.__dict__.pop(ATTRIBUTE, None)
    plain = _Exporter(Ties(twin), committed_only=committed_only).convert(twin, "")
    require_plain(plain)
    return plain


class _Exporter:
    """Converts the modules of one copied model, the innermost first."""

    def __init__(self, ties: Ties, *, committed_only: bool) -> None:
        self._ties = ties
        self._committed_only = committed_only
        self._done: dict[nn.Module, nn.Module] = {}

    def convert(self, module: nn.Module, name: str) -> nn.Module:
        """Return the plain form of a module; a module that occurs twice gets one form."""
        if module not in self._done:
            self._done[module] = self._convert_anew(module, name)
        return self._done[module]

    def _convert_anew(self, module: nn.Module, name: str) -> nn.Module:
        if isinstance(module, SeedSlot):
            module.block = self.convert(module.block, name)
            return self._grow(module) if self._is_kept(module) else module.block
        children: dict[str, nn.Module | None] = module.__dict__.get("_modules", {})
        for child_name, child in list(children.items()):
            if child is None:
                continue
            plain = self.convert(child, f"{name}.{child_name}" if name else child_name)
            if plain is not child:
                setattr(module, child_name, plain)
        return to_plain(module, name)

    def _is_kept(self, slot: SeedSlot) -> bool:
        """Return whether the exported model shows the seed of a slot."""
        # A seed that is germinated or learns in isolation has an alpha of zero.
        if slot.seed is None or slot.is_off or slot.alpha == 0.0:
            return False
        return slot.stage == Stage.FOSSILIZED or not self._committed_only

    def _grow(self, slot: SeedSlot) -> nn.Module:
        """Return a block with what its seed adds to it; the block is plain already."""
        assert slot.seed is not None
        # All it ever adds is zero, whatever the style.
        if type(slot.seed) is NoopSeed:
            return slot.block
        if merge_seed(slot, self._ties):
            return slot.block
        seed = self.convert(slot.seed, f"{slot.name}.seed")
        gate = None if slot.gate is None else self.convert(slot.gate, f"{slot.name}.gate")
        alpha = slot.alpha
        if slot.life.style in ADD_STYLES and scale_last_layer(seed, alpha, self._ties):
            alpha = 1.0
        return compose(slot, seed, gate, alpha)

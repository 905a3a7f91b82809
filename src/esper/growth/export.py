"""Converting a grown model into an equivalent one without any Esper class."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, cast

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node, Tracer

from esper.errors import UnsupportedHostError, type_of
from esper.growth.blueprints import SeedForm
from esper.growth.blueprints.seeds import NoopSeed
from esper.growth.host_slots import ATTRIBUTE, HostSlots
from esper.growth.modules import named_modules
from esper.growth.seed_slot import SeedSlot
from esper.growth.sharding import gathered_copy
from esper.growth.sites import SlotSite
from esper.growth.slot_states import Fossil, SlotLife
from esper.lifecycle.factored_actions import BlendStyle

_REGISTRIES = ("_modules", "_parameters", "_buffers")
_STATE = tuple(name for name in vars(nn.Module()) if name not in (*_REGISTRIES, "training"))
"""Attributes of ``nn.Module`` itself, besides its parameters, buffers and submodules."""

_DEPTH = 4
"""How many levels of containers are searched for Esper objects."""


class _OneLevelTracer(Tracer):
    """Traces only a module's own code; its submodules are already plain."""

    def __init__(self) -> None:
        super().__init__()
        self.proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return True: calls of submodules are not traced into."""
        return True


def to_plain(module: nn.Module, name: str) -> nn.Module:
    """Return a module with plain children without its Esper class.

    A class that only defines a constructor is replaced by its torch base class; any other is
    replaced by a graph of its forward pass.

    Raises:
        UnsupportedHostError: If the forward pass cannot be traced.
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
    """Return whether a value, or a value inside it, is defined in Esper."""
    if depth == 0:
        return False
    search = functools.partial(comes_from_esper, depth=depth - 1)
    if isinstance(value, type):
        return _is_our_class(value)
    if isinstance(value, Mapping):
        items = cast(Mapping[object, object], value)
        return any(map(search, items)) or any(map(search, items.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(search, cast(Iterable[object], value)))
    if isinstance(value, functools.partial):
        parts = cast(Any, value)
        return any(map(search, (parts.func, parts.args, parts.keywords)))
    owner = getattr(value, "__self__", None)
    if owner is not None and not isinstance(owner, nn.Module) and search(owner):
        return True
    home = getattr(value, "__module__", None) if callable(value) else None
    return _is_our_name(home) or _is_our_class(type(value))


def require_plain(module: nn.Module) -> None:
    """Raise if a module still refers to Esper.

    Raises:
        UnsupportedHostError: With the name of the submodule and of the attribute.
    """
    for name, part in named_modules(module).items():
        where = f"submodule {name!r}" if name else f"the {type(part).__name__} itself"
        assert not _is_our_class(type(part)), f"{where} is still {type_of(part)}"
        for attribute, value in part.__dict__.items():
            if attribute not in _REGISTRIES and comes_from_esper(value):
                raise UnsupportedHostError(
                    f"the model cannot be exported: attribute {attribute!r} of {where} refers to "
                    "esper; remove it before exporting."
                )
        if isinstance(part, GraphModule):
            targets = [node.target for node in part.graph.nodes]
            assert not any(map(comes_from_esper, targets)), f"{where} calls a function of esper"


def _is_our_name(name: object) -> bool:
    return isinstance(name, str) and name.partition(".")[0] == "esper"


def _is_our_class(cls: type) -> bool:
    """Return whether a class or one of its bases is defined in Esper."""
    return any(_is_our_name(base.__module__) for base in cls.__mro__)


def _only_builds(cls: type) -> bool:
    """Return whether a class adds nothing to its base but a constructor."""
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
            f"the {kind} at {name!r} cannot be converted to torch modules: {error}"
        ) from error
    # A new graph has no reference to the tracer or to the origin of its nodes.
    graph = Graph()
    graph.output(graph.graph_copy(traced, {}))
    for node in graph.nodes:
        node.meta.clear()
        node.type = None
    plain = GraphModule(module, graph, kind)
    # Keep all parts of the module, used or not, in order; tracing may have added constants.
    for registry in _REGISTRIES:
        own, added = module.__dict__[registry], plain.__dict__[registry]
        plain.__dict__[registry] = {**own, **{k: v for k, v in added.items() if k not in own}}
    plain.__dict__.update({name: module.__dict__[name] for name in _STATE})
    return plain


def export(model: nn.Module, *, committed_only: bool = False) -> nn.Module:
    """Return a plain copy of a model, without any class, hook or slot of Esper.

    The copy computes what the model computes in evaluation mode: blended seeds keep their current
    alpha, and seeds that still train in isolation are left out. New units and blocks are part of
    the model's own layers already; a module that grew beside a block becomes ordinary torch modules
    next to it, several in the order in which they grew. The model itself is not changed.

    Classes that Esper does not define are kept, so the copy depends on the code that defines them.
    A model that is sharded (FSDP2) is gathered, so every rank must call this.

    Args:
        model: Any module, with or without slots.
        committed_only: Keep only fossilized seeds.

    Raises:
        UnsupportedHostError: If part of the model cannot be converted; the message names it.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(32, 4)
        >>> model = esper.add_slots(model, at=["0>2"], sample_input=x)
        >>> plain = esper.export(model)
        >>> type(plain).__module__, torch.equal(plain(x), model(x))
        ('torch.nn.modules.container', True)
    """
    twin = gathered_copy(model)
    for module in list(twin.modules()):
        found = module.__dict__.pop(ATTRIBUTE, None)
        if isinstance(found, HostSlots):
            found.hide_from_ddp(())
            found.end_growth(keep=not committed_only)
        _drop_our_hooks(module)
    plain = _Exporter().convert(twin, "")
    require_plain(plain)
    return plain


def _drop_our_hooks(module: nn.Module) -> None:
    """Remove the hooks of adapters and of a Grower that waits for its first batch."""
    for name in _STATE:
        hooks = module.__dict__.get(name)
        if isinstance(hooks, dict):
            table = cast(dict[int, Any], hooks)
            # Torch wraps hooks of load_state_dict.
            ours = [n for n, hook in table.items() if comes_from_esper(getattr(hook, "hook", hook))]
            for number in ours:
                del table[number]


class _Exporter:
    """Converts the modules of one copied model, innermost first."""

    def __init__(self) -> None:
        self._done: dict[nn.Module, nn.Module] = {}

    def convert(self, module: nn.Module, name: str) -> nn.Module:
        """Return the plain form of a module; a module that occurs twice is converted once."""
        if module not in self._done:
            self._done[module] = self._convert(module, name)
        return self._done[module]

    def _convert(self, module: nn.Module, name: str) -> nn.Module:
        if isinstance(module, SeedSlot):
            return self._convert_slot(module, name)
        children: dict[str, nn.Module | None] = module.__dict__.get("_modules", {})
        for child_name, child in list(children.items()):
            if child is None:
                continue
            plain = self.convert(child, f"{name}.{child_name}" if name else child_name)
            if plain is not child:
                setattr(module, child_name, plain)
        return to_plain(module, name)

    def _convert_slot(self, slot: SeedSlot, name: str) -> nn.Module:
        """Return the block of a slot with its seeds beside it."""
        block = self.convert(slot.block, name)
        parts: list[Any] = [*zip(slot.absorbed, slot.life.fossils, strict=True)]
        if slot.seed is not None and not slot.is_off:
            parts.append((slot, slot.life))
        for part, life in parts:
            if type(part.seed) is not NoopSeed:  # which adds zero whatever the style
                gate = None if part.gate is None else self.convert(part.gate, f"{name}.gate")
                seed = self.convert(part.seed, f"{name}.seed")
                block = _compose(slot.site, block, seed, gate, part.form, life)
        return block


def _compose(
    site: SlotSite,
    block: nn.Module,
    seed: nn.Module,
    gate: nn.Module | None,
    form: SeedForm,
    life: SlotLife | Fossil,
) -> GraphModule:
    """Return a module that computes ``y + alpha * change``, where ``y`` is the block's output.

    It hands all of its arguments on to the block. The graph is built by hand, so user code is never
    traced.
    """
    graph = Graph()
    given, named = graph.placeholder("*args"), graph.placeholder("**kwargs")
    # A graph cannot unpack arguments, but functional_call can.
    called = graph.create_node("get_attr", "block")
    y = graph.call_function(torch.func.functional_call, (called, {}, given, named))
    gated = None if gate is None else graph.call_module("gate", (y,))
    source, key = y, site.input_key
    if form == SeedForm.PARALLEL:
        arguments = given if isinstance(key, int) else named
        source = graph.call_function(operator.getitem, (arguments, key))
    delta = graph.call_module("seed", (source,))
    change = _write_change(graph, life.style, y, delta, gated)
    change = graph.call_method("type_as", (change, y))
    scale: dict[str, Any] = {} if life.alpha == 1.0 else {"alpha": life.alpha}
    graph.output(graph.call_function(torch.add, (y, change), scale))

    root = nn.Module()
    for name, part in (("block", block), ("seed", seed), ("gate", gate)):
        if part is not None:
            root.add_module(name, part)
    root.training = block.training
    kind = _class_for(block)
    return kind(root, graph, kind.__name__)


def _write_change(graph: Graph, style: BlendStyle, y: Node, delta: Node, gate: Node | None) -> Node:
    """Add the nodes that compute :func:`esper.growth.blending.effective_change`."""
    match style:
        case BlendStyle.MULTIPLY_LINEAR:
            return graph.call_function(torch.mul, (y, graph.call_function(torch.tanh, (delta,))))
        case BlendStyle.LEARNED_GATE:
            assert gate is not None, "the gated style needs a gate output"
            opening = graph.call_function(torch.sigmoid, (gate,))
            return graph.call_function(
                torch.mul, (graph.call_function(torch.mul, (opening, 2.0)), delta)
            )
        case BlendStyle.ADD_LINEAR | BlendStyle.ADD_SIGMOID:
            return delta


def _class_for(block: nn.Module) -> type[GraphModule]:
    """Return a graph class that forwards the block's public attributes.

    Attributes are properties that read the block, so that no submodule is registered twice.
    """
    own = ("training", "meta", "shape_env", "block", "seed", "gate")
    taken = {*dir(GraphModule), *own}
    names = [name for name in dir(block) if not name.startswith("_") and name not in taken]
    forwarded: dict[str, Any] = {name: property(attrgetter(f"block.{name}")) for name in names}
    kind = type(f"Grown{type(block).__name__}", (GraphModule,), forwarded)
    kind.__module__ = GraphModule.__module__
    return kind

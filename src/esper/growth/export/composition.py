"""Combining a block and its seed into one plain torch module.

The graph is built by hand, so user code is never traced. ``y`` is the block's output.
"""

from __future__ import annotations

import copy
import inspect
import operator
from dataclasses import dataclass, field
from inspect import Parameter
from operator import attrgetter
from typing import Any, cast

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from esper.errors import UnsupportedHostError
from esper.growth.blueprints import SeedForm
from esper.growth.blueprints.deepening import BlockCopy
from esper.growth.seed_slot import SeedSlot
from esper.lifecycle.factored_actions import BlendStyle

_WRITABLE = (bool, int, float, str, torch.dtype, torch.device, type(None))


def compose(slot: SeedSlot, seed: nn.Module, gate: nn.Module | None, alpha: float) -> GraphModule:
    """Return a module that computes ``y + alpha * change`` and has the block's signature.

    ``seed`` is the slot's seed as a plain module; that of a copied block is the block itself.

    Raises:
        UnsupportedHostError: If a graph cannot express the block's signature.
    """
    if isinstance(slot.seed, BlockCopy) and slot.seed.identity.has_cache:
        raise UnsupportedHostError(
            f"the {slot.life.blueprint} seed at {slot.name!r} cannot be exported: its block has a "
            "layer of a key-value cache, and the list that holds it cannot take one more entry; "
            "prune the seed."
        )
    graph = Graph()
    arguments = _read_arguments(graph, slot)
    y = _call(graph, "block", arguments)
    parts = {"block": slot.block, "seed": seed, "gate": gate}
    return _compose(graph, slot, arguments, y, parts, alpha)


def compose_entry(
    slot: SeedSlot, copied: nn.Module, gate: nn.Module | None, alpha: float
) -> GraphModule:
    """Return a module like :func:`compose` does, but without the block, whose output it reads."""
    graph = Graph()
    arguments = _read_arguments(graph, slot)
    y = _read_input(graph, slot, arguments)
    return _compose(graph, slot, arguments, y, {"seed": copied, "gate": gate}, alpha)


def _compose(
    graph: Graph,
    slot: SeedSlot,
    arguments: _Arguments,
    y: Node,
    parts: dict[str, nn.Module | None],
    alpha: float,
) -> GraphModule:
    gated = None if parts["gate"] is None else graph.call_module("gate", (y,))
    if isinstance(slot.seed, BlockCopy):
        source = _write_normalized(graph, slot.seed, y)
        copied = _call(graph, "seed", _with_input(graph, slot, arguments, source))
        delta = graph.call_function(torch.sub, (copied, y))
    else:
        is_serial = slot.form == SeedForm.SERIAL
        source = y if is_serial else _read_input(graph, slot, arguments)
        delta = graph.call_module("seed", (source,))
    change = _write_change(graph, slot.life.style, y, delta, gated)
    change = graph.call_method("type_as", (change, y))
    scale: dict[str, Any] = {} if alpha == 1.0 else {"alpha": alpha}
    graph.output(graph.call_function(torch.add, (y, change), scale))

    root = nn.Module()
    for name, part in parts.items():
        if part is not None:
            root.add_module(name, part)
    if isinstance(slot.seed, BlockCopy):
        for name, buffer in slot.seed.named_buffers(recurse=False):
            root.register_buffer(name, buffer)
    root.training = slot.block.training
    kind = _class_for(slot.block, "block" if "block" in parts else "seed")
    return kind(root, graph, kind.__name__)


def require_composable(slot: SeedSlot) -> None:
    """Raise if a seed in this slot could not be exported.

    Raises:
        UnsupportedHostError: If a graph cannot express the block's signature.
    """
    _read_arguments(Graph(), slot)


def signature_of(block: nn.Module) -> list[Parameter] | None:
    """Return the parameters of a block's forward method, or None if it has no signature."""
    try:
        return list(inspect.signature(block.forward).parameters.values())
    except (TypeError, ValueError):
        return None


@dataclass
class _Arguments:
    """The placeholders of a block's arguments."""

    by_position: list[Node] = field(default_factory=list[Node])
    by_keyword: dict[str, Node] = field(default_factory=dict[str, Node])
    """Keyword-only arguments."""
    by_name: dict[str, Node] = field(default_factory=dict[str, Node])
    """All arguments except ``*args`` and ``**kwargs``."""
    more_positions: Node | None = None
    more_keywords: Node | None = None


def _read_arguments(graph: Graph, slot: SeedSlot) -> _Arguments:
    parameters = signature_of(slot.block)
    if parameters is None:
        raise UnsupportedHostError(
            f"the seed at {slot.name!r} cannot be exported: the signature of its block "
            f"({type(slot.block).__name__}) is unknown."
        )
    found = _Arguments()
    has_default = False
    for parameter in parameters:
        if has_default and parameter.kind == Parameter.KEYWORD_ONLY and not found.more_positions:
            # A graph has no bare *, so this argument becomes positional after one with a default.
            _require(parameter.default is not Parameter.empty, slot, parameter, "no default")
        has_default = has_default or parameter.default is not Parameter.empty
        node = _placeholder(graph, slot, parameter)
        match parameter.kind:
            case Parameter.VAR_POSITIONAL:
                found.more_positions = node
            case Parameter.VAR_KEYWORD:
                found.more_keywords = node
            case Parameter.KEYWORD_ONLY:
                found.by_keyword[parameter.name] = found.by_name[parameter.name] = node
            case _:
                found.by_position.append(node)
                found.by_name[parameter.name] = node
    return found


def _placeholder(graph: Graph, slot: SeedSlot, parameter: Parameter) -> Node:
    stars = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    default = parameter.default
    if default is Parameter.empty:
        return graph.placeholder(stars + parameter.name)
    _require(_is_writable(default), slot, parameter, f"the default {default!r}")
    return graph.placeholder(parameter.name, default_value=default)


def _is_writable(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_writable, cast(tuple[Any, ...], value)))
    return isinstance(value, _WRITABLE)


def _require(condition: bool, slot: SeedSlot, parameter: Parameter, what: str) -> None:
    if not condition:
        raise UnsupportedHostError(
            f"the seed at {slot.name!r} cannot be exported: argument {parameter.name!r} of its "
            f"block has {what}, which a graph cannot express; prune the seed or change the block."
        )


def _call(graph: Graph, module: str, arguments: _Arguments) -> Node:
    positions, keywords = tuple(arguments.by_position), arguments.by_keyword
    if arguments.more_positions is None and arguments.more_keywords is None:
        return graph.call_module(module, positions, dict(keywords))
    # A graph cannot unpack arguments, but functional_call can.
    args: Any = positions
    if arguments.more_positions is not None:
        args = graph.call_function(operator.add, (positions, arguments.more_positions))
    kwargs: Any = dict(keywords)
    if arguments.more_keywords is not None:
        join = cast(Any, operator.or_)
        kwargs = graph.call_function(join, (kwargs, arguments.more_keywords))
    called = graph.create_node("get_attr", module)
    return graph.call_function(torch.func.functional_call, (called, {}, args, kwargs))


def _with_input(graph: Graph, slot: SeedSlot, arguments: _Arguments, value: Node) -> _Arguments:
    """Return a block's arguments with another input."""
    replaced, key = copy.copy(arguments), slot.site.input_key
    assert key is not None, "the input of a residual block is known"
    old = arguments.by_name.get(key) if isinstance(key, str) else None
    if isinstance(key, int) and key < len(arguments.by_position):
        old = arguments.by_position[key]
    if old is not None:
        swap = {old: value}
        replaced.by_position = [swap.get(node, node) for node in arguments.by_position]
        replaced.by_keyword = {k: swap.get(node, node) for k, node in arguments.by_keyword.items()}
        return replaced
    if isinstance(key, str):
        more: Any = arguments.more_keywords
        join = cast(Any, operator.or_)
        replaced.more_keywords = graph.call_function(join, (more, {key: value}))
        return replaced
    first = key - len(arguments.by_position)
    rest = (arguments.more_positions, slice(first + 1, None))
    before = graph.call_function(operator.getitem, (arguments.more_positions, slice(first)))
    after = graph.call_function(operator.getitem, rest)
    joined = graph.call_function(operator.add, (before, (value,)))
    replaced.more_positions = graph.call_function(operator.add, (joined, after))
    return replaced


def _write_normalized(graph: Graph, seed: BlockCopy, y: Node) -> Node:
    """Add the nodes that compute :meth:`BlockCopy.normalize`."""
    if not seed.identity.norms:
        return y
    shift, scale = (graph.create_node("get_attr", name) for name in ("shift", "scale"))
    return graph.call_function(torch.div, (graph.call_function(torch.sub, (y, shift)), scale))


def _read_input(graph: Graph, slot: SeedSlot, arguments: _Arguments) -> Node:
    """Return the node of the argument that a parallel seed reads."""
    key = slot.site.input_key
    n = len(arguments.by_position)
    if isinstance(key, int):
        if key < n:
            return arguments.by_position[key]
        assert arguments.more_positions is not None, "the block was called with this argument"
        return graph.call_function(operator.getitem, (arguments.more_positions, key - n))
    assert key is not None, "a parallel seed grows only where its input is known"
    if key in arguments.by_name:
        return arguments.by_name[key]
    assert arguments.more_keywords is not None, "the block was called with this argument"
    return graph.call_function(operator.getitem, (arguments.more_keywords, key))


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


def _class_for(block: nn.Module, part: str) -> type[GraphModule]:
    """Return a graph class that forwards the block's public attributes.

    Attributes are properties that read the part that is the block or a copy of it, so that no
    submodule is registered twice.
    """
    own = ("training", "meta", "shape_env", "block", "seed", "gate", "scale", "shift")
    taken = {*dir(GraphModule), *own}
    names = [name for name in dir(block) if not name.startswith("_") and name not in taken]
    forwarded: dict[str, Any] = {name: property(attrgetter(f"{part}.{name}")) for name in names}
    kind = type(f"Grown{type(block).__name__}", (GraphModule,), forwarded)
    kind.__module__ = GraphModule.__module__
    return kind

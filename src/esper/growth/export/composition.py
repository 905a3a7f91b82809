"""Combining a block and its seed into one plain torch module.

The graph is built by hand, so user code is never traced. ``y`` is the block's output.
"""

from __future__ import annotations

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
from esper.growth.seed_slot import SeedSlot
from esper.lifecycle.factored_actions import BlendStyle

_WRITABLE = (bool, int, float, str, torch.dtype, torch.device, type(None))


def compose(slot: SeedSlot, seed: nn.Module, gate: nn.Module | None, alpha: float) -> GraphModule:
    """Return a module that computes ``y + alpha * change`` and has the block's signature.

    ``seed`` is the slot's seed as a plain module.

    Raises:
        UnsupportedHostError: If a graph cannot express the block's signature.
    """
    graph = Graph()
    arguments = _read_arguments(graph, slot)
    y = _call(graph, "block", arguments)
    gated = None if gate is None else graph.call_module("gate", (y,))
    source = y if slot.form == SeedForm.SERIAL else _read_input(graph, slot, arguments)
    delta = graph.call_module("seed", (source,))
    change = _write_change(graph, slot.life.style, y, delta, gated)
    change = graph.call_method("type_as", (change, y))
    scale: dict[str, Any] = {} if alpha == 1.0 else {"alpha": alpha}
    graph.output(graph.call_function(torch.add, (y, change), scale))

    root = nn.Module()
    for name, part in (("block", slot.block), ("seed", seed), ("gate", gate)):
        if part is not None:
            root.add_module(name, part)
    root.training = slot.block.training
    kind = _class_for(slot.block)
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

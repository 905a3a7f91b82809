"""Converting a grown model into an equivalent one without any Esper class."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, cast

from torch import nn
from torch.fx import Graph, GraphModule, Tracer

from esper.errors import UnsupportedHostError, type_of
from esper.growth.blending import ADD_STYLES
from esper.growth.blueprints import SeedForm
from esper.growth.blueprints.deepening import BlockCopy, read_affine, write_affine
from esper.growth.blueprints.seeds import NoopSeed
from esper.growth.export.composition import compose, compose_entry
from esper.growth.export.merging import Ties, merge_seed, scale_copy, scale_last_layer
from esper.growth.export.pair_merging import merge_pairs
from esper.growth.host_slots import ATTRIBUTE, HostSlots
from esper.growth.module_lists import ListPlace, find_list, insert_entry
from esper.growth.modules import named_modules
from esper.growth.pair_slot import PairSlot, UnitGroup
from esper.growth.seed_slot import SeedSlot
from esper.growth.sharding import gathered_copy
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
    alpha, and seeds that still train in isolation are left out. A seed is merged into its block's
    weights if that gives the same function, and a copied block becomes one more entry of the list
    that holds the block; otherwise a seed becomes ordinary torch modules next to the block. Several
    seeds in one slot are added in the order in which they grew. The model itself is not changed.

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
            merge_pairs(found.pairs, partial(_is_part, committed_only=committed_only))
        _drop_our_hooks(module)
    exporter = _Exporter(twin, committed_only=committed_only)
    plain = exporter.convert(twin, "")
    exporter.insert_copies()
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


def _is_part(slot: PairSlot, group: UnitGroup, *, committed_only: bool) -> bool:
    """Return whether the exported model includes new units of a pair."""
    # Units that are germinated or train in isolation have alpha 0.
    if group.alpha == 0.0 or (slot.is_off and group.seed is slot.seed):
        return False
    return slot.is_committed(group) or not committed_only


class _Exporter:
    """Converts the modules of one copied model, innermost first."""

    def __init__(self, model: nn.Module, *, committed_only: bool) -> None:
        self._model = model
        self._ties = Ties(model)
        self._committed_only = committed_only
        self._done: dict[nn.Module, nn.Module] = {}
        self._copies: list[tuple[ListPlace, nn.Module, nn.Module]] = []
        """The entry of a list that each copied block follows, what follows, and the copy in it."""

    def convert(self, module: nn.Module, name: str) -> nn.Module:
        """Return the plain form of a module; a module that occurs twice is converted once."""
        if module not in self._done:
            self._done[module] = self._convert(module, name)
        return self._done[module]

    def insert_copies(self) -> None:
        """Add copied blocks to the lists of their blocks; call it when all is converted."""
        # From the end, because an entry changes the indices of those after it.
        order = sorted(range(len(self._copies)), key=lambda k: (self._copies[k][0].index, k))
        for number in reversed(order):
            insert_entry(*self._copies[number])

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
        """Return the block of a slot with its seeds; copies may join the block's list instead."""
        block = last = self.convert(slot.block, name)
        layers = [layer for layer in slot.unstacked() if self._is_kept(layer)]
        # A seed that reads the block's input has to be in the same entry as the block.
        parallel = [k for k, layer in enumerate(layers) if layer.form == SeedForm.PARALLEL]
        n_inside = 1 + max(parallel, default=-1)
        n_copies = len(self._copies)
        for number, layer in enumerate(layers):
            layer.block = last
            # A copy inside a block that was copied too has no list of its own left.
            place = find_list(self._model, layer.name) if _is_entry(layer) else None
            if number >= n_inside and place is not None:
                last = self._add_entry(layer, place)
                continue
            last = self._add_seed(layer)
            if len(self._copies) == n_copies:
                block = last
            else:
                place, _, copied = self._copies[-1]
                self._copies[-1] = (place, last, copied)
        return block

    def _is_kept(self, slot: SeedSlot) -> bool:
        """Return whether the exported model includes the seed of a slot."""
        # A seed that is germinated or trains in isolation has alpha 0.
        if slot.seed is None or slot.is_off or slot.alpha == 0.0:
            return False
        return slot.stage == Stage.FOSSILIZED or not self._committed_only

    def _add_seed(self, slot: SeedSlot) -> nn.Module:
        """Return the slot's block, which is already plain, together with its seed."""
        assert slot.seed is not None
        # It adds zero whatever the style.
        if type(slot.seed) is NoopSeed:
            return slot.block
        if merge_seed(slot, self._ties):
            return slot.block
        gate = None if slot.gate is None else self.convert(slot.gate, f"{slot.name}.gate")
        alpha, is_copy = slot.alpha, isinstance(slot.seed, BlockCopy)
        own = slot.seed.block if isinstance(slot.seed, BlockCopy) else slot.seed
        seed = self.convert(own, f"{slot.name}.seed")
        is_added = slot.life.style in ADD_STYLES and not is_copy
        if is_added and scale_last_layer(seed, alpha, self._ties):
            alpha = 1.0
        return compose(slot, seed, gate, alpha)

    def _add_entry(self, slot: SeedSlot, place: ListPlace) -> nn.Module:
        """Add the copied block of a slot to the list of its block, and return the entry."""
        seed = slot.seed
        assert isinstance(seed, BlockCopy)
        copied = self.convert(seed.block, f"{slot.name}.seed")
        gate = None if slot.gate is None else self.convert(slot.gate, f"{slot.name}.gate")
        is_whole = slot.life.style in ADD_STYLES and self._ties.may_change([seed])
        is_whole = is_whole and (slot.alpha == 1.0 or scale_copy(slot, copied, slot.alpha))
        entry = copied
        if not (is_whole and self._fold_norm(seed, slot.block)):
            entry = compose_entry(slot, copied, gate, 1.0 if is_whole else slot.alpha)
        self._copies.append((place, entry, copied))
        return entry

    def _fold_norm(self, seed: BlockCopy, block: nn.Module) -> bool:
        """Fold what a copy does to its input into the block before it; return whether it can be."""
        if not seed.identity.norms:
            return True
        try:
            norm = block.get_submodule(seed.identity.norms[-1])
        except AttributeError:
            return False
        if not self._ties.may_change([norm]):
            return False
        weight, bias = read_affine(norm)
        write_affine(norm, weight / seed.scale, (bias - seed.shift) / seed.scale)
        return True


def _is_entry(slot: SeedSlot) -> bool:
    """Return whether a slot's seed becomes one more entry of the list that holds its block."""
    return isinstance(slot.seed, BlockCopy) and slot.seed.identity.is_entry

"""Lists of residual blocks that can be made longer, and copies that start as the identity.

What has to be zero in a copy is found by running the block
(:mod:`esper.growth.residual_blocks`). A block that ends in a norm is the identity only on
normalized input, so the weight and bias of that norm move on to the last of its copies.

A model may keep the number of its blocks in a configuration, and each block its own index. Such
fields are known by their name and by their value, which has to be the number or the index.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

import torch
from torch import nn

from esper.growth.modules import named_modules
from esper.growth.residual_blocks import (
    become_identity,
    draw_weights,
    find_identities,
    read_affine,
    write_affine,
)
from esper.growth.seed_slot import SeedSlot, copy_plain
from esper.growth.surgery.configuration import has_configuration
from esper.growth.surgery.edits import Edits, Replacement
from esper.growth.surgery.places import BlockIdentity, BlockList

Start = Literal["zero", "fresh", "copy"]

COUNTS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "num_encoder_layers",
    "num_decoder_layers",
    "num_blocks",
    "n_blocks",
    "depth",
)
"""Names of fields that hold the number of blocks."""

INDICES = ("layer_idx", "layer_id", "layer_index", "layer_number", "block_idx", "block_index")
"""Names of attributes that hold the index of a block."""


def find_block_lists(
    model: nn.Module, sample_input: Any, problems: dict[str, str]
) -> list[BlockList]:
    """Return the lists with residual blocks, in the order of modules.

    Args:
        model: The model.
        sample_input: Input for it.
        problems: Gets the reason for each block that cannot be copied, by its name.
    """
    containers = {n: m for n, m in named_modules(model).items() if _is_list(m) and _entries(m)}
    names = {
        f"{name}.{key}" if name else key: name
        for name, module in containers.items()
        for key, child in module.named_children()
        if any(child.children())
    }
    blocks = {name: model.get_submodule(name) for name in names}
    found: dict[str, dict[int, BlockIdentity]] = {}
    for name, identity in find_identities(model, blocks, sample_input).items():
        if isinstance(identity, str):
            problems[name] = identity
        else:
            found.setdefault(names[name], {})[int(name.rpartition(".")[2])] = identity
    lists: list[BlockList] = []
    for name, identities in found.items():
        entries = list(_entries(containers[name]).values())
        kinds = [_structure(entries[index]) for index in identities]
        # The first block may have what others share, such as position biases.
        usual = max(reversed(kinds), key=kinds.count)
        able = dict(zip(identities, (kind == usual for kind in kinds), strict=True))
        lists.append(
            BlockList(
                name=f"{name}.*" if name else "*",
                container=name,
                identities=tuple(
                    identities[index] if able.get(index) else None for index in range(len(entries))
                ),
                is_stack=len(identities) == len(entries),
                n_layers=sum(not any(entry.children()) for entry in entries),
            )
        )
    return lists


def outer_lists(found: Sequence[BlockList]) -> list[BlockList]:
    """Return the lists that grow where lists lie inside blocks of others.

    The outer list counts if all of its blocks can be copied, as in a stack of encoder blocks; else
    it is a list of stages, and the lists in them count.
    """
    outer = [
        each
        for each in found
        if each.is_stack or not any(_is_inside(other, each) for other in found)
    ]
    return [each for each in outer if not any(_is_inside(each, other) for other in outer)]


def _is_inside(inner: BlockList, outer: BlockList) -> bool:
    return inner is not outer and inner.container.startswith(outer.name.removesuffix("*"))


def _structure(block: nn.Module) -> object:
    """Return what tells blocks of different structure apart."""
    return type(block), tuple((name, p.shape) for name, p in block.named_parameters())


@torch.no_grad()
def add_blocks(
    edits: Edits, blocks: BlockList, sources: Sequence[int], *, start: Start = "zero"
) -> list[nn.Module]:
    """Insert copies of blocks into a list, and return them.

    Args:
        edits: Records the changes.
        blocks: The list.
        sources: The index that each block of the longer list is, or is a copy of.
        start: Whether copies start as the identity ("zero"), also with new weights behind what is
            zeroed ("fresh"), or with the weights of the block ("copy").
    """
    originals = list(_entries(edits.model.get_submodule(blocks.container)).values())
    entries: list[tuple[nn.Module, int]] = []
    copies: list[tuple[nn.Module, int]] = []
    for position, index in enumerate(sources):
        block = originals[index]
        if index in sources[:position]:
            identity = blocks.identities[index]
            assert identity is not None, "the block can be copied"
            block = copy_plain(block)
            if start == "fresh":
                draw_weights(block, identity)
            if start != "copy":
                become_identity(block, identity)
            copies.append((block, index))
        entries.append((block, index))
    _set_entries(edits, blocks.container, entries)
    if start != "copy":
        _move_norms(edits, entries, {id(copied) for copied, _ in copies}, blocks)
    for copied, index in copies:
        old = dict(_plain(originals[index]).named_parameters())
        for name, parameter in copied.named_parameters():
            edits.replaced.append(Replacement(name, None, parameter, {}, old.get(name)))
    return [copied for copied, _ in copies]


@torch.no_grad()
def remove_blocks(edits: Edits, blocks: BlockList, removed: Collection[int]) -> None:
    """Take blocks out of a list."""
    before = list(_entries(edits.model.get_submodule(blocks.container)).values())
    entries = [(block, index) for index, block in enumerate(before) if index not in removed]
    _set_entries(edits, blocks.container, entries)
    for index in sorted(removed):
        edits.dropped += before[index].parameters()


def _set_entries(edits: Edits, name: str, entries: Sequence[tuple[nn.Module, int]]) -> None:
    """Give a list of a model other entries, with all that counts or numbers them.

    Each entry comes with the index that it, or what it is a copy of, has now. A configuration of
    Transformers follows once all is done.
    """
    path = name.split(".") if name else []
    owners = [edits.model.get_submodule(".".join(path[:k])) for k in range(len(path))]
    container = edits.model.get_submodule(name)
    before = list(_entries(container).values())
    edits.on_undo(lambda: _replace_entries(container, before))
    for number, (entry, old) in enumerate(entries):
        for part in entry.modules():
            _set_fields(edits, part, INDICES, old, number)
    _replace_entries(container, [entry for entry, _ in entries])
    if not has_configuration(edits.model):
        configs: list[Any] = [owner.__dict__.get("config") for owner in owners]
        for config in {id(each): each for each in configs if each is not None}.values():
            _set_fields(edits, config, COUNTS, len(before), len(entries))
    for owner in owners[-1:]:
        _set_fields(edits, owner, COUNTS, len(before), len(entries))


def _set_fields(edits: Edits, owner: Any, names: Sequence[str], before: int, after: int) -> None:
    """Set those of an object's fields that have a value; one may be another name of a second."""
    for name in names:
        value = getattr(owner, name, None)
        if type(value) is int and value == before:
            edits.set_attribute(owner, name, after)


def _replace_entries(container: nn.Module, entries: list[nn.Module]) -> None:
    modules = _entries(container)
    modules.clear()
    modules.update({str(number): entry for number, entry in enumerate(entries)})


def _is_list(module: nn.Module) -> bool:
    """Return whether a module is a list or sequence of modules, numbered from 0."""
    names = list(_entries(module))
    kinds = (nn.ModuleList, nn.Sequential)
    return isinstance(module, kinds) and names == [str(k) for k in range(len(names))]


def _plain(block: nn.Module) -> nn.Module:
    """Return the block inside a slot that a seed grows in."""
    return block.block if isinstance(block, SeedSlot) else block


def _move_norms(
    edits: Edits, entries: Sequence[tuple[nn.Module, int]], copies: set[int], blocks: BlockList
) -> None:
    """Let only the last of the copies behind a block scale and shift what its last norm returns."""
    for position, (block, index) in enumerate(entries):
        identity = blocks.identities[index]
        norms = () if identity is None else identity.norms
        end = position + 1
        while end < len(entries) and id(entries[end][0]) in copies:
            end += 1
        if id(block) in copies or end == position + 1 or not norms:
            continue
        norm = _plain(block).get_submodule(norms[-1])
        weight, bias = read_affine(norm)
        for name, parameter in norm.named_parameters(recurse=False):
            edits.replace_in(norm, name, parameter.detach().clone())
        for other, _ in entries[position : end - 1]:
            write_affine(_plain(other).get_submodule(norms[-1]), 1.0, 0.0)
        write_affine(_plain(entries[end - 1][0]).get_submodule(norms[-1]), weight, bias)


def _entries(module: nn.Module) -> dict[str, Any]:
    """Return the dictionary that holds a module's children; changing it changes the module."""
    return module.__dict__["_modules"]

"""Lists of residual blocks that can be made longer, and copies that start as the identity.

What has to be zero in a copy is found by running the block
(:mod:`esper.growth.residual_blocks`). A block that ends in a norm is the identity only on
normalized input, so the weight and bias of that norm move on to the last of its copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from esper.growth.blueprints.deepening import become_identity, read_affine, write_affine
from esper.growth.dry_run import Call, record_calls
from esper.growth.module_lists import find_list, is_list, set_entries
from esper.growth.modules import named_modules
from esper.growth.residual_blocks import add_identities, main_output
from esper.growth.seed_slot import copy_plain
from esper.growth.sites import BlockIdentity, SlotSite, TensorKind
from esper.growth.surgery.edits import Edits, Replacement


@dataclass(frozen=True)
class BlockList:
    """A list of blocks of which some can be followed by a copy."""

    name: str
    """The name of the list with a star for the index: ``model.layers.*``."""
    container: str
    length: int
    identities: Mapping[int, BlockIdentity]
    """How the copy of a block becomes the identity, by index."""
    is_stack: bool
    """Whether all blocks are residual, as in a stack of encoder blocks; stages are not."""
    n_layers: int = 0
    """Entries that are no blocks, such as single layers of an ``nn.Sequential``."""

    def block(self, index: int) -> str:
        """Return the name of a block."""
        return f"{self.container}.{index}" if self.container else str(index)

    def spread(self, n_new: int, period: int = 1) -> tuple[int, ...]:
        """Return the index that each block of the longer list is, or is a copy of.

        Copies stand behind their originals, spread over the list. With a period, as many blocks in
        a row are copied together, for models whose blocks take turns by their index; the list stays
        as it is if that cannot be.
        """
        runs = [
            tuple(range(first, first + period))
            for first in range(0, self.length - period + 1, period)
            if all(first + k in self.identities for k in range(period))
        ]
        counts: dict[int, int] = {}
        is_possible = bool(runs) and n_new % period == 0
        for number in range(n_new // period if is_possible else 0):
            run = runs[-(-(number + 1) * len(runs) // (n_new // period)) - 1]
            counts[run[-1]] = counts.get(run[-1], 0) + 1
        order: list[int] = []
        for index in range(self.length):
            order.append(index)
            order += [*range(index - period + 1, index + 1)] * counts.get(index, 0)
        return tuple(order)


def find_block_lists(
    model: nn.Module, sample_input: Any, problems: dict[str, str]
) -> list[BlockList]:
    """Return the lists with residual blocks, in the order of modules.

    Args:
        model: The model.
        sample_input: Input for it.
        problems: Gets the reason for each block that cannot be copied, by its name.
    """
    containers = {n: m for n, m in named_modules(model).items() if is_list(m) and len(_entries(m))}
    names = {
        f"{name}.{key}" if name else key: name
        for name, module in containers.items()
        for key, child in module.named_children()
        if any(child.children())
    }
    blocks = {name: model.get_submodule(name) for name in names}
    calls = record_calls(model, blocks, sample_input)
    sites: list[SlotSite] = []
    for name in blocks:
        site = _site_of(name, calls[name])
        if isinstance(site, str):
            problems[name] = site
        else:
            sites.append(site)
    found: dict[str, dict[int, BlockIdentity]] = {}
    kinds: dict[str, list[object]] = {}
    for site in add_identities(model, sites, sample_input, shares_arguments=False):
        if site.identity is None:
            problems[site.name] = site.why_not_residual
        else:
            index = int(site.name.rpartition(".")[2])
            found.setdefault(names[site.name], {})[index] = site.identity
            kinds.setdefault(names[site.name], []).append(_structure(blocks[site.name]))
    lists: list[BlockList] = []
    for name, identities in found.items():
        # The first block may have what others share, such as position biases.
        usual = max(reversed(kinds[name]), key=kinds[name].count)
        alike = [kind == usual for kind in kinds[name]]
        able = {
            k: identity
            for (k, identity), fits in zip(identities.items(), alike, strict=True)
            if fits
        }
        entries = list(containers[name].children())
        n_layers = sum(not any(entry.children()) for entry in entries)
        is_stack, shown = len(identities) == len(entries), f"{name}.*" if name else "*"
        lists.append(BlockList(shown, name, len(entries), able, is_stack, n_layers))
    return lists


def _structure(block: nn.Module) -> object:
    """Return what tells blocks of different structure apart."""
    return type(block), tuple((name, p.shape) for name, p in block.named_parameters())


@torch.no_grad()
def add_blocks(
    edits: Edits,
    blocks: BlockList,
    sources: Sequence[int],
    *,
    is_identity: bool,
    has_own_config: bool,
) -> None:
    """Insert copies of blocks into a list.

    Args:
        edits: Records the changes.
        blocks: The list.
        sources: The index that each block of the longer list is, or is a copy of.
        is_identity: Whether copies start as the identity, or with the weights of the block.
        has_own_config: Whether counts of blocks in configurations are to follow.
    """
    place = find_list(edits.model, blocks.block(sources[0]))
    assert place is not None, "the block is an entry of a list"
    originals = list(_entries(place.container).values())
    entries: list[tuple[nn.Module, int]] = []
    copies: list[tuple[nn.Module, int]] = []
    seen: set[int] = set()
    for index in sources:
        block = originals[index]
        if index in seen:
            block = _copy(originals[index], blocks.identities[index], is_identity=is_identity)
            copies.append((block, index))
        seen.add(index)
        entries.append((block, index))
    set_entries(place, entries, edits.undo_list, has_own_config=has_own_config)
    if is_identity:
        _move_norms(edits, entries, {id(copied) for copied, _ in copies}, blocks)
    for copied, index in copies:
        old = dict(originals[index].named_parameters())
        for name, parameter in copied.named_parameters():
            edits.replaced.append(Replacement(name, None, parameter, {}, old[name]))


def _copy(block: nn.Module, identity: BlockIdentity, *, is_identity: bool) -> nn.Module:
    copied = copy_plain(block)
    if is_identity:
        become_identity(copied, identity)
    return copied


def _move_norms(
    edits: Edits, entries: Sequence[tuple[nn.Module, int]], copies: set[int], blocks: BlockList
) -> None:
    """Let only the last of the copies behind a block scale and shift what its last norm returns."""
    for position, (block, index) in enumerate(entries):
        norms = blocks.identities[index].norms if index in blocks.identities else ()
        end = position + 1
        while end < len(entries) and id(entries[end][0]) in copies:
            end += 1
        if id(block) in copies or end == position + 1 or not norms:
            continue
        norm = block.get_submodule(norms[-1])
        weight, bias = read_affine(norm)
        for name, parameter in norm.named_parameters(recurse=False):
            edits.replace_in(norm, name, parameter.detach().clone())
        for other, _ in entries[position : end - 1]:
            write_affine(other.get_submodule(norms[-1]), 1.0, 0.0)
        write_affine(entries[end - 1][0].get_submodule(norms[-1]), weight, bias)


def _entries(module: nn.Module) -> dict[str, Any]:
    return module.__dict__["_modules"]


_KINDS = {4: TensorKind.FEATURE_MAP, 3: TensorKind.SEQUENCE, 2: TensorKind.VECTOR}


def _site_of(name: str, calls: Sequence[Call]) -> SlotSite | str:
    """Return what a block reads and returns, or why a copy cannot follow it."""
    if len(calls) != 1:
        return f"the model calls it {len(calls)} times per forward pass instead of once"
    output = main_output(calls[0].output)
    if output is None or output.ndim not in _KINDS:
        return "it does not return a tensor of two to four axes"
    shape = tuple(output.shape)
    given = calls[0].tensors()
    key = next((key for key, x in given.items() if x.shape == output.shape), None)
    if key is None:
        shapes = ", ".join(str(list(x.shape)) for x in given.values()) or "no tensor"
        return f"it maps {shapes} to {list(shape)}, so a copy cannot read what it returns"
    if given[key]._version != calls[0].versions[key]:
        return "it changes its input in place"
    return SlotSite(
        name=name,
        kind=_KINDS[output.ndim],
        output_shape=shape,
        input_shape=tuple(given[key].shape),
        input_key=key,
    )

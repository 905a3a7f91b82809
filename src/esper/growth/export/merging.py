"""Merging a seed into the weights of its block, where that gives the same function.

Let ``y = block(x)`` and a seed add ``alpha * seed(x)``. A low-rank seed is added to the weight of a
linear block: ``W + alpha * up @ down``. A widening seed becomes more hidden units of a two-layer
block: rows of the first layer, entries of the norm, columns (times alpha) of the second. Any other
seed that ends in a layer has alpha multiplied into that layer.

Weights that are shared, hooked or parametrized are never changed, and the merged block is compared
with the slot on a random input before it is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from inspect import Parameter
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from esper.growth.blending import ADD_STYLES
from esper.growth.blueprints.seeds import LowRankSeed
from esper.growth.blueprints.widening import WidenSeed
from esper.growth.export.composition import signature_of
from esper.growth.modules import module_names
from esper.growth.seed_slot import SeedSlot
from esper.growth.sites import BlockPath
from esper.modes import evaluation_mode

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_GEOMETRY = ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
_NORM_SETTINGS = ("eps", "momentum", "affine", "track_running_stats")


def find_widened(block: nn.Module, seed: WidenSeed, path: BlockPath) -> list[nn.Module]:
    """Return the block's layers to which the seed's can be appended; empty if they do not match."""
    names = [path.first, path.second, *([] if path.norm is None else [path.norm])]
    parts: list[nn.Module] = [seed.first, seed.second]
    parts += [] if path.norm is None else [seed.norm]
    try:
        layers = [block.get_submodule(name) for name in names]
    except AttributeError:
        return []
    fits = all(_is_like(layer, part) for layer, part in zip(layers, parts, strict=True))
    first_has_bias = getattr(layers[0], "bias", None) is not None
    if fits and first_has_bias == (seed.first.bias is not None) and seed.second.bias is None:
        return layers
    return []


def widen(block: nn.Module, seed: WidenSeed, path: BlockPath, alpha: float) -> None:
    """Append the seed's units to the hidden units of a block, in place.

    ``first`` gets the seed's rows, the norm its entries, ``second`` its columns times alpha.
    """
    first, second = block.get_submodule(path.first), block.get_submodule(path.second)
    _append(first, seed.first, axis=0)
    if path.norm is not None:
        norm = block.get_submodule(path.norm)
        assert isinstance(norm, _NORMS)
        _append(norm, seed.norm, axis=0)
        norm.num_features += seed.first.weight.shape[0]
    _append(second, seed.second, axis=1, scale=alpha)
    for layer in (first, second):
        rows, columns = cast(Tensor, layer.weight).shape[:2]
        if isinstance(layer, nn.Linear):
            layer.out_features, layer.in_features = rows, columns
        else:
            assert isinstance(layer, nn.Conv2d)
            layer.out_channels, layer.in_channels = rows, columns


def _append(layer: nn.Module, part: nn.Module, *, axis: int, scale: float = 1.0) -> None:
    """Append each tensor of ``part`` to the tensor of the same name in ``layer``."""
    for name, tensor in part.named_parameters(recurse=False):
        own = cast(nn.Parameter, getattr(layer, name))
        joined = torch.cat([own.detach(), scale * tensor.detach()], dim=axis)
        setattr(layer, name, nn.Parameter(joined, requires_grad=own.requires_grad))
    for name, tensor in part.named_buffers(recurse=False):
        # num_batches_tracked is a scalar; the block's own is kept.
        if tensor.ndim == 1:
            setattr(layer, name, torch.cat([cast(Tensor, getattr(layer, name)), tensor]))


def _is_like(layer: nn.Module, part: nn.Module) -> bool:
    """Return whether a block's layer and a seed's differ only in their number of units."""
    if type(layer) is not type(part):
        return False
    settings = () if isinstance(layer, nn.Linear) else _GEOMETRY
    settings = _NORM_SETTINGS if isinstance(layer, _NORMS) else settings
    return all(getattr(layer, name) == getattr(part, name) for name in settings)


TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-6}
"""Largest allowed difference between merged and unmerged, relative to the largest output."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_SCALABLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LayerNorm, nn.GroupNorm)


class Ties:
    """The tensors of a model that have more than one name."""

    def __init__(self, model: nn.Module) -> None:
        counts: dict[Tensor, int] = {}
        for _, module in module_names(model):
            tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            for tensor in tensors:
                counts[tensor] = counts.get(tensor, 0) + 1
        self._tied = {tensor for tensor, count in counts.items() if count > 1}

    def may_change(self, layers: Iterable[nn.Module]) -> bool:
        """Return whether the layers have no hooks and no shared tensors."""
        return not any(_has_hooks(layer) or self._has_tie(layer) for layer in layers)

    def _has_tie(self, layer: nn.Module) -> bool:
        return not self._tied.isdisjoint([*layer.parameters(), *layer.buffers()])


def merge_seed(slot: SeedSlot, ties: Ties) -> bool:
    """Merge a slot's seed into its block if possible; return whether it was merged."""
    merge = _find_merge(slot, ties)
    if merge is None or not _takes_one_tensor(slot):
        return False
    trial, shape = copy.deepcopy(slot.block), slot.site.input_shape
    assert shape is not None, "parallel seeds need a site with a known input"
    merge(trial)
    with evaluation_mode(slot):
        if not _same_outputs(slot, trial, shape):
            return False
    merge(slot.block)
    return True


def scale_last_layer(seed: nn.Module, alpha: float, ties: Ties) -> bool:
    """Multiply alpha into the last layer of a plain seed; return whether it has a suitable one."""
    layer = _last_layer(seed)
    if layer is None or not ties.may_change([layer]):
        return False
    _scale(layer, alpha)
    return True


def scale_copy(slot: SeedSlot, copied: nn.Module, alpha: float) -> bool:
    """Multiply alpha into a copied block if that blends it in; return whether it does.

    It does for a block with one residual branch and nothing after it: ``x + f(x)`` becomes
    ``x + alpha * f(x)``.
    """
    identity = slot.site.identity
    assert identity is not None, "only residual blocks are copied"
    if len(identity.zeroed) != 1 or identity.norms or not _takes_one_tensor(slot):
        return False
    trial = copy.deepcopy(copied)
    _scale(trial.get_submodule(identity.zeroed[0]), alpha)

    def blended(x: Tensor) -> Tensor:
        return torch.add(x, copied(x) - x, alpha=alpha)

    with evaluation_mode(copied):
        if not _same_outputs(blended, trial, slot.site.output_shape):
            return False
    _scale(copied.get_submodule(identity.zeroed[0]), alpha)
    return True


@torch.no_grad()
def _scale(layer: nn.Module, alpha: float) -> None:
    for parameter in layer.parameters(recurse=False):
        parameter.mul_(alpha)


def _find_merge(slot: SeedSlot, ties: Ties) -> Callable[[nn.Module], None] | None:
    """Return a function that merges a slot's seed into a block, or None if there is none."""
    block, seed, alpha = slot.block, slot.seed, slot.alpha
    assert seed is not None
    if slot.life.style not in ADD_STYLES or any(map(_has_hooks, block.modules())):
        return None
    if type(seed) is LowRankSeed and type(block) is nn.Linear:
        layers = [block, *seed]
        if ties.may_change(layers) and _one_kind(layers):
            return lambda target: _add_low_rank(cast(nn.Linear, target), seed, alpha)
    if type(seed) is WidenSeed and slot.site.path is not None:
        path, layers = slot.site.path, find_widened(block, seed, slot.site.path)
        if layers and ties.may_change([*layers, seed]) and _one_kind([*layers, seed]):
            return lambda target: widen(target, seed, path, alpha)
    return None


def _add_low_rank(block: nn.Linear, seed: LowRankSeed, alpha: float) -> None:
    down, up = (cast(Tensor, layer.weight).detach().double() for layer in seed)
    with torch.no_grad():
        block.weight.copy_(block.weight.double() + alpha * (up @ down))


def _takes_one_tensor(slot: SeedSlot) -> bool:
    """Return whether the block's only argument is the tensor that the seed reads."""
    parameters = signature_of(slot.block) or []
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return len(parameters) == 1 and parameters[0].kind not in variable


def _same_outputs(
    wanted_by: Callable[[Tensor], Tensor], merged: nn.Module, shape: tuple[int, ...]
) -> bool:
    """Return whether a merged module computes what is wanted for a random input."""
    weight = next(merged.parameters())
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(shape, generator=generator).to(weight)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), evaluation_mode(merged):
        try:
            wanted, given = wanted_by(probe), cast(Tensor, merged(probe))
        except Exception:
            # A block may reject random input; then the seed is not merged.
            return False
    tolerance = TOLERANCES.get(wanted.dtype, 4.0 * torch.finfo(wanted.dtype).eps)
    if given.shape != wanted.shape:
        return False
    return bool((given - wanted).abs().max() <= tolerance * wanted.abs().max())


def _last_layer(seed: nn.Module) -> nn.Module | None:
    """Return the layer whose output is the seed's output, if that is linear in its weights."""
    if type(seed) in _SCALABLE:
        return seed if any(True for _ in seed.parameters()) else None
    if _has_hooks(seed):
        return None
    if type(seed) is nn.Sequential and len(seed) > 0:
        return _last_layer(seed[-1])
    if isinstance(seed, GraphModule):
        result = next(node for node in seed.graph.nodes if node.op == "output").args[0]
        targets = [node.target for node in seed.graph.nodes if node.op == "call_module"]
        if getattr(result, "op", None) == "call_module" and targets.count(result.target) == 1:
            return _last_layer(seed.get_submodule(result.target))
    return None


def _has_hooks(module: nn.Module) -> bool:
    return any(module.__dict__.get(name) for name in _HOOKS)


def _one_kind(modules: Iterable[nn.Module]) -> bool:
    """Return whether all floating-point tensors have the same dtype and device."""
    tensors: list[Any] = []
    for module in modules:
        tensors += [*module.parameters(), *module.buffers()]
    return len({(t.dtype, t.device) for t in tensors if t.is_floating_point()}) == 1

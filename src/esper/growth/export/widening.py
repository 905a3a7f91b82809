"""More hidden units in a block: the weights of a widening seed joined to the block's own layers."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from esper.growth.blueprints.widen import WidenSeed
from esper.growth.sites import BlockPath

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_GEOMETRY = ("kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
_NORM_SETTINGS = ("eps", "momentum", "affine", "track_running_stats")


def find_widened(block: nn.Module, seed: WidenSeed, path: BlockPath) -> list[nn.Module]:
    """Return the block's layers that the seed's can be joined to; none if they do not match."""
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
    """Join the seed's units to the hidden units of a block, in place.

    ``first`` gets the seed's rows, the norm its entries, ``second`` its columns times alpha.
    """
    first, second = block.get_submodule(path.first), block.get_submodule(path.second)
    _join(first, seed.first, axis=0)
    if path.norm is not None:
        norm = block.get_submodule(path.norm)
        assert isinstance(norm, _NORMS)
        _join(norm, seed.norm, axis=0)
        norm.num_features += seed.first.weight.shape[0]
    _join(second, seed.second, axis=1, scale=alpha)
    for layer in (first, second):
        rows, columns = cast(Tensor, layer.weight).shape[:2]
        if isinstance(layer, nn.Linear):
            layer.out_features, layer.in_features = rows, columns
        else:
            assert isinstance(layer, nn.Conv2d)
            layer.out_channels, layer.in_channels = rows, columns


def _join(layer: nn.Module, part: nn.Module, *, axis: int, scale: float = 1.0) -> None:
    """Append each tensor of ``part`` to the one of the same name in ``layer``."""
    for name, tensor in part.named_parameters(recurse=False):
        own = cast(nn.Parameter, getattr(layer, name))
        joined = torch.cat([own.detach(), scale * tensor.detach()], dim=axis)
        setattr(layer, name, nn.Parameter(joined, requires_grad=own.requires_grad))
    for name, tensor in part.named_buffers(recurse=False):
        # How many batches a norm has seen is one number, and the block's.
        if tensor.ndim == 1:
            setattr(layer, name, torch.cat([cast(Tensor, getattr(layer, name)), tensor]))


def _is_like(layer: nn.Module, part: nn.Module) -> bool:
    """Return whether a block's layer and a seed's differ in nothing but their units."""
    if type(layer) is not type(part):
        return False
    settings = () if isinstance(layer, nn.Linear) else _GEOMETRY
    settings = _NORM_SETTINGS if isinstance(layer, _NORMS) else settings
    return all(getattr(layer, name) == getattr(part, name) for name in settings)

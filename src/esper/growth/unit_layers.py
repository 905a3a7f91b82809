"""Layers that units can be added to: describing, building and resizing them.

Shapes: a layer maps ``n_in`` units to ``n_out``. Its *matrix* is its weight as
``[n_out, n_in, *kernel]``, whichever of the two axes comes first in the layer.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from esper.growth.sites import PairLayer

_CONV_SETTINGS = ("kernel_size", "stride", "padding", "dilation", "padding_mode")
_NORM_SETTINGS = ("eps", "momentum", "affine", "track_running_stats")

_CONVS: tuple[type[nn.Module], ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED: tuple[type[nn.Module], ...] = (
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
_NORMS: tuple[type[nn.Module], ...] = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_BUILDERS: dict[str, type[nn.Module]] = {
    kind.__name__: kind for kind in (nn.Linear, *_CONVS, *_TRANSPOSED, *_NORMS)
}
# Transformers' Conv1D is a linear layer whose weight is transposed.
_BUILDERS["Conv1D"] = nn.Linear


def is_norm(module: nn.Module) -> bool:
    """Return whether a module normalizes each unit separately, over the batch."""
    return type(module) in _NORMS


def why_no_units(module: nn.Module) -> str | None:
    """Return why no units can be added to a layer, or None if they can."""
    kind = type(module)
    if kind in (*_CONVS, *_TRANSPOSED):
        groups = cast(int, module.groups)
        return None if groups == 1 else f"it is a {kind.__name__} with {groups} groups"
    if kind is nn.Linear or _is_transposed_linear(module):
        return None
    return f"it is a {kind.__name__}, not an nn.Linear or a convolution"


def describe_layer(name: str, module: nn.Module, x: Tensor) -> PairLayer:
    """Return the description of a layer that was called with ``x``."""
    kind, settings = type(module).__name__, ()
    if is_norm(module):
        n_in = n_out = cast(int, module.num_features)
        settings = _NORM_SETTINGS
    else:
        n_out, n_in = matrix_of(module).shape[:2]
        if type(module) in (*_CONVS, *_TRANSPOSED):
            settings = _CONV_SETTINGS
        if type(module) in _TRANSPOSED:
            settings = (*settings, "output_padding")
    values = [(key, getattr(module, key)) for key in settings]
    if not is_norm(module):
        values.append(("bias", getattr(module, "bias", None) is not None))
    return PairLayer(
        name=name,
        kind=kind,
        n_in=n_in,
        n_out=n_out,
        settings=tuple(values),
        input_shape=tuple(x.shape),
    )


def build_layer(layer: PairLayer, n_in: int, n_out: int, *, bias: bool = True) -> nn.Module:
    """Return a layer of this kind with other numbers of units, and a bias only if it has one."""
    settings = dict(layer.settings)
    if "bias" in settings:
        settings["bias"] = settings["bias"] and bias
    kind = _BUILDERS[layer.kind]
    if kind in _NORMS:
        return cast(Any, kind)(n_in, **settings)
    return cast(Any, kind)(n_in, n_out, **settings)


def matrix_of(module: nn.Module) -> Tensor:
    """Return a layer's weight as ``[n_out, n_in, *kernel]``, sharing its memory."""
    weight = cast(Tensor, module.weight)
    return weight.transpose(0, 1) if _is_transposed(module) else weight


def fans_of(module: nn.Module, n_in: int, n_out: int) -> tuple[int, int]:
    """Return fan-in and fan-out as torch counts them, for a layer with these numbers of units."""
    n_taps = matrix_of(module)[0, 0].numel()
    # torch takes the axes of a transposed convolution the other way round.
    pair = (n_out, n_in) if _is_transposed(module) else (n_in, n_out)
    return pair[0] * n_taps, pair[1] * n_taps


@torch.no_grad()
def resize_layer(module: nn.Module, matrix: Tensor, bias: Tensor | None) -> None:
    """Give a layer another weight, ``[n_out, n_in, *kernel]``, and another bias, in place."""
    _set(module, "weight", matrix.transpose(0, 1) if _is_transposed(module) else matrix)
    if bias is not None:
        _set(module, "bias", bias)
    n_out, n_in = matrix.shape[:2]
    for names, size in (
        (("in_features", "in_channels", "nx"), n_in),
        (("out_features", "out_channels", "nf"), n_out),
    ):
        for name in names:
            if name in module.__dict__:
                setattr(module, name, size)


@torch.no_grad()
def resize_norm(norm: nn.Module, tensors: dict[str, Tensor], n_units: int) -> None:
    """Give a batch norm other parameters and running statistics, in place."""
    for name, tensor in tensors.items():
        _set(norm, name, tensor)
    cast(nn.BatchNorm2d, norm).num_features = n_units


def _set(module: nn.Module, name: str, value: Tensor) -> None:
    old = getattr(module, name)
    value = value.detach().contiguous()
    if isinstance(old, nn.Parameter):
        value = nn.Parameter(value, requires_grad=old.requires_grad)
    setattr(module, name, value)


def _is_transposed_linear(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")


def _is_transposed(module: nn.Module) -> bool:
    return type(module) in _TRANSPOSED or _is_transposed_linear(module)

"""Convolutions of many hosts at once, each with weights of its own.

Shapes: ``N`` hosts, ``C`` input and ``K`` output channels, ``G`` groups, ``H x W`` positions, ``B``
samples. The samples lie innermost, so that one weight of one host meets many of them side by side.

On the CPU, in single precision, 3x3 convolutions run in a compiled kernel, split over as many
threads as torch uses; elsewhere, or without a compiler, the same is done with tensor operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from esper.errors import DeviceError, DtypeError, ShapeError

try:
    from esper.populations import _conv3x3 as _kernel
except ImportError:
    _kernel = None

_Pair = tuple[int, int]


def is_kernel_available() -> bool:
    """Return whether the compiled kernel was built when Esper was installed."""
    return _kernel is not None


def stacked_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    stride: int | _Pair = 1,
    padding: str | int | _Pair = 0,
    dilation: int | _Pair = 1,
    groups: int = 1,
) -> Tensor:
    """Return what ``F.conv2d`` gives for each host, ``[N, K, H', W', B]``, contiguous.

    A weight whose hosts lie apart, as a view of all parameters ``[N, P]`` does, is read in place.
    Nothing of one host, NaN included, reaches another.

    Args:
        x: ``[N, C, H, W, B]``, at least one of each.
        weight: ``[N, K, C / G, kernel height, kernel width]``.
        bias: ``[N, K]``, or None.
        stride: As in ``F.conv2d``, like the three below; the padding is of zeros.
        padding: One number, one for each direction, ``"valid"`` or ``"same"``.
        dilation: Distance between the taps.
        groups: How many groups the channels of each host are in.

    Raises:
        ShapeError: If a shape is not as above, or the channels do not split into the groups.
        DtypeError: If the tensors are not all of one floating-point dtype.
        DeviceError: If the tensors are not all on one device.
    """
    _require_fitting(x, weight, bias, groups)
    stride, dilation = _pair(stride), _pair(dilation)
    size = (weight.shape[3], weight.shape[4])
    padding = _as_numbers(padding, size, stride, dilation)
    if size == (1, 1) and padding == (0, 0) and groups == 1:
        return _pointwise(x[:, :, :: stride[0], :: stride[1]], weight, bias)
    is_plain = stride == dilation == padding == (1, 1)
    if size == (3, 3) and is_plain and _is_native(x):
        apply = cast(Callable[..., Tensor], _Conv3x3.apply)
        return apply(x, weight, bias, groups)
    return _grouped(x, weight, bias, stride, padding, dilation, groups)


def _pair(number: int | _Pair) -> _Pair:
    return (number, number) if isinstance(number, int) else number


def _as_numbers(
    padding: str | int | _Pair, size: _Pair, stride: _Pair, dilation: _Pair
) -> str | _Pair:
    """Return the padding as two numbers, where it is the same on both sides."""
    if not isinstance(padding, str):
        return _pair(padding)
    if padding == "valid":
        return 0, 0
    height, width = (reach * (n - 1) for reach, n in zip(dilation, size, strict=True))
    is_even = height % 2 == width % 2 == 0 and stride == (1, 1)
    return (height // 2, width // 2) if padding == "same" and is_even else padding


def _is_native(x: Tensor) -> bool:
    return _kernel is not None and x.is_cpu and x.dtype is torch.float32


def _pointwise(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Mix the channels of each position: one matrix product for each host."""
    columns, matrix = x.flatten(2), weight.flatten(2)
    if bias is None:
        mixed = torch.bmm(matrix, columns)
    else:
        mixed = torch.baddbmm(bias.unsqueeze(2), matrix, columns)
    return mixed.view(*mixed.shape[:2], *x.shape[2:])


def _grouped(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: _Pair,
    padding: str | _Pair,
    dilation: _Pair,
    groups: int,
) -> Tensor:
    """Make each host a group of one convolution over the channels of all."""
    n_hosts, n_out = weight.shape[:2]
    # [B, N * C, H, W] with the channels innermost in memory.
    images = x.permute(4, 2, 3, 0, 1).flatten(3).permute(0, 3, 1, 2)
    biases = None if bias is None else bias.flatten()
    y = F.conv2d(images, weight.flatten(0, 1), biases, stride, padding, dilation, n_hosts * groups)
    by_host = y.reshape(len(y), n_hosts, n_out, *y.shape[2:])
    return by_host.permute(1, 2, 3, 4, 0).contiguous()


class _Conv3x3(torch.autograd.Function):
    """The compiled 3x3 convolution with stride 1 and padding 1, and its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
        """Take ``[N, C, H, W, B]`` and return ``[N, K, H, W, B]``."""
        assert _kernel is not None
        x, weight = x.contiguous(), _with_whole_hosts(weight)
        bias = None if bias is None else _with_whole_hosts(bias)
        y = x.new_empty((x.shape[0], weight.shape[1], *x.shape[2:]))
        _kernel.forward(
            torch.get_num_threads(),
            *_sizes(x, weight, groups),
            x.data_ptr(),
            weight.data_ptr(),
            weight.stride(0),
            0 if bias is None else bias.data_ptr(),
            0 if bias is None else bias.stride(0),
            y.data_ptr(),
        )
        ctx.save_for_backward(x, weight)
        ctx.groups = groups
        return y

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, d_y: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Return the gradients of the input, the weight and the bias that are needed."""
        assert _kernel is not None
        x, weight = cast(tuple[Tensor, Tensor], ctx.saved_tensors)
        d_x = d_weight = d_bias = None
        d_y = d_y.contiguous()
        sizes = (torch.get_num_threads(), *_sizes(x, weight, ctx.groups))
        if ctx.needs_input_grad[0]:
            d_x = x.new_empty(x.shape)
            _kernel.input_gradient(
                *sizes, d_y.data_ptr(), weight.data_ptr(), weight.stride(0), d_x.data_ptr()
            )
        if ctx.needs_input_grad[1]:
            d_weight = weight.new_empty(weight.shape)
            _kernel.weight_gradient(*sizes, x.data_ptr(), d_y.data_ptr(), d_weight.data_ptr())
        if ctx.needs_input_grad[2]:
            d_bias = d_y.flatten(2).sum(2)
        return d_x, d_weight, d_bias, None


def _with_whole_hosts(parameter: Tensor) -> Tensor:
    """Return the parameter with that of each host in one piece; the hosts may lie apart."""
    return parameter if parameter[0].is_contiguous() else parameter.contiguous()


def _sizes(x: Tensor, weight: Tensor, groups: int) -> tuple[int, int, int, int, int, int, int]:
    n_hosts, _, height, width, batch = x.shape
    n_out, n_in = weight.shape[1:3]
    return n_hosts, groups, n_in, n_out // groups, height, width, batch


def _require_fitting(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> None:
    """Say which tensor of a convolution is not what it must be."""
    if x.ndim != 5 or x.numel() == 0:
        raise ShapeError(
            f"x has shape {tuple(x.shape)}; [hosts, channels, height, width, samples], with at "
            "least one of each, is needed."
        )
    n_hosts, n_in = x.shape[:2]
    if groups < 1 or n_in % groups:
        raise ShapeError(
            f"groups is {groups}; it must divide the {n_in} channels of x, of shape "
            f"{tuple(x.shape)}."
        )
    shape = tuple(weight.shape)
    is_right = len(shape) == 5 and shape[0] == n_hosts and shape[2] == n_in // groups
    if not is_right or weight.numel() == 0 or shape[1] % groups:
        raise ShapeError(
            f"weight has shape {shape}; [{n_hosts}, K, {n_in // groups}, height, width], with K a "
            f"multiple of the {groups} groups, is needed for x of shape {tuple(x.shape)}."
        )
    if bias is not None and bias.shape != weight.shape[:2]:
        raise ShapeError(f"bias has shape {tuple(bias.shape)}; {shape[:2]} is needed.")
    if not x.is_floating_point():
        raise DtypeError(f"x has dtype {x.dtype}; a floating-point dtype is needed.")
    for name, tensor in {"weight": weight, "bias": bias}.items():
        if tensor is None:
            continue
        if tensor.dtype != x.dtype:
            raise DtypeError(f"{name} has dtype {tensor.dtype}; {x.dtype}, that of x, is needed.")
        if tensor.device != x.device:
            raise DeviceError(f"{name} is on {tensor.device}; x is on {x.device}.")

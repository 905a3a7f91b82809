"""Convolutions of many hosts at once, each with its own weights.

Shapes: ``N`` hosts, ``C`` input and ``K`` output channels, ``G`` groups, ``H x W`` positions, ``B``
samples. Samples are the innermost axis, so that a weight multiplies many of them with vector
instructions.

On the CPU in float32, 3x3 convolutions run in a compiled kernel with as many threads as torch uses.
Otherwise, or if the kernel was not built, they use tensor operations.
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
    """Return ``F.conv2d`` of each host, ``[N, K, H', W', B]``, contiguous.

    A weight that is a view of all parameters ``[N, P]`` is read in place. Hosts do not affect one
    another, even if one has NaN values.

    Args:
        x: ``[N, C, H, W, B]``, not empty.
        weight: ``[N, K, C / G, kernel height, kernel width]``.
        bias: ``[N, K]``, or None.
        stride: As in ``F.conv2d``.
        padding: As in ``F.conv2d``, including ``"valid"`` and ``"same"``.
        dilation: As in ``F.conv2d``.
        groups: As in ``F.conv2d``, for the channels of each host.

    Raises:
        ShapeError: If a shape is not as above, or ``groups`` does not divide the channels.
        DtypeError: If the tensors do not share one floating-point dtype.
        DeviceError: If the tensors are not on one device.
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
    """Return the padding as two numbers, if it is symmetric."""
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
    """Compute a 1x1 convolution as one matrix product per host."""
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
    """Compute one grouped convolution over the channels of all hosts."""
    n_hosts, n_out = weight.shape[:2]
    # [B, N * C, H, W] in channels-last memory format.
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
        """Return the gradients of the input, the weight and the bias, if they are needed."""
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
    """Return a parameter that is contiguous within each host."""
    return parameter if parameter[0].is_contiguous() else parameter.contiguous()


def _sizes(x: Tensor, weight: Tensor, groups: int) -> tuple[int, int, int, int, int, int, int]:
    n_hosts, _, height, width, batch = x.shape
    n_out, n_in = weight.shape[1:3]
    return n_hosts, groups, n_in, n_out // groups, height, width, batch


def _require_fitting(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> None:
    """Raise if the tensors of a convolution do not fit together."""
    if x.ndim != 5 or x.numel() == 0:
        raise ShapeError(
            f"x has shape {tuple(x.shape)}; it must be [hosts, channels, height, width, samples] "
            "and not empty."
        )
    n_hosts, n_in = x.shape[:2]
    if groups < 1 or n_in % groups:
        raise ShapeError(
            f"groups is {groups}; it must divide the {n_in} channels of x, which has shape "
            f"{tuple(x.shape)}."
        )
    shape = tuple(weight.shape)
    is_right = len(shape) == 5 and shape[0] == n_hosts and shape[2] == n_in // groups
    if not is_right or weight.numel() == 0 or shape[1] % groups:
        raise ShapeError(
            f"weight has shape {shape}; for x of shape {tuple(x.shape)} it must be "
            f"[{n_hosts}, K, {n_in // groups}, height, width] with K a multiple of groups "
            f"({groups})."
        )
    if bias is not None and bias.shape != weight.shape[:2]:
        raise ShapeError(f"bias has shape {tuple(bias.shape)}; it must be {shape[:2]}.")
    if not x.is_floating_point():
        raise DtypeError(f"x has dtype {x.dtype}; it must be a floating-point dtype.")
    for name, tensor in {"weight": weight, "bias": bias}.items():
        if tensor is None:
            continue
        if tensor.dtype != x.dtype:
            raise DtypeError(f"{name} has dtype {tensor.dtype}; it must be {x.dtype}, like x.")
        if tensor.device != x.device:
            raise DeviceError(f"{name} is on {tensor.device}; it must be on {x.device}, like x.")

"""Layers that compute many hosts at once, each with its own weights.

Shapes: N = hosts, B = samples of each, T = steps of a sequence, C = channels, D = features. Vectors
are ``[N, B, D]``, sequences ``[N, B, T, D]``, feature maps ``[N, B, C, H, W]``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, embedding, layer_norm

from esper.errors import ValueRangeError
from esper.populations.rows import ActiveRows


class StackedLayer(nn.Module):
    """A layer of a host design, computed for all active rows."""

    def __init__(self, rows: ActiveRows, name: str, template: nn.Module) -> None:
        super().__init__()
        self.rows = rows
        self.template: dict[str, Any] = {"layer": template}  # in a dict, so it is not a submodule
        self.weight_name, self.bias_name = f"{name}weight", f"{name}bias"
        self.prefix = name

    @property
    def layer(self) -> Any:
        """A single host's layer, which provides the settings."""
        return self.template["layer"]

    @property
    def weight(self) -> Tensor:
        """The weight of each host, ``[N, ...]``."""
        return self.rows.parameters[self.weight_name]

    @property
    def bias(self) -> Tensor | None:
        """The bias of each host, ``[N, ...]``, if the layer has one."""
        return self.rows.parameters.get(self.bias_name)


class StackedLinear(StackedLayer):
    """``nn.Linear`` on ``[N, B, D]`` or ``[N, B, T, D]``."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        flat = x.flatten(1, -2) if x.ndim > 3 else x
        weight, bias = self.weight.transpose(1, 2), self.bias
        y = torch.bmm(flat, weight) if bias is None else torch.baddbmm(bias[:, None], flat, weight)
        return y if x.ndim == 3 else y.view(*x.shape[:-1], y.shape[-1])


class StackedConv2d(StackedLayer):
    """``nn.Conv2d`` on ``[N, B, C, H, W]``."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output: one grouped convolution over the channels of all hosts."""
        layer, n_hosts = self.layer, len(x)
        images = x.transpose(0, 1).flatten(1, 2)
        bias = None if self.bias is None else self.bias.flatten()
        groups = n_hosts * layer.groups
        options = layer.stride, layer.padding, layer.dilation, groups
        y = conv2d(images, self.weight.flatten(0, 1), bias, *options)
        return y.reshape(len(y), n_hosts, -1, *y.shape[2:]).transpose(0, 1)


class StackedBatchNorm(StackedLayer):
    """``nn.BatchNorm2d`` on ``[N, B, C, H, W]`` and ``nn.BatchNorm1d`` on ``[N, B, D]``."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output; in training mode the running statistics are updated."""
        return self._normalize(x.transpose(1, 2)).transpose(1, 2)

    def _normalize(self, x: Tensor) -> Tensor:
        """Normalize ``[N, C, ...]`` over the axes after the channels."""
        layer: nn.BatchNorm2d = self.layer
        buffers = self.rows.buffers
        running_mean = buffers[f"{self.prefix}running_mean"]
        running_var = buffers[f"{self.prefix}running_var"]
        weight, bias = self.weight, self.bias
        assert bias is not None
        ones = (1,) * (x.ndim - 2)
        if not self.training:
            scale = weight * torch.rsqrt(running_var + layer.eps)
            shift = bias - running_mean * scale
            return torch.addcmul(
                shift.view(*shift.shape, *ones), x, scale.view(*scale.shape, *ones)
            )
        n_hosts, n_channels = x.shape[:2]
        rows, count = n_hosts * n_channels, x[0, 0].numel()
        # Batch norm is group norm of one long sample with a group for each (host, channel).
        flat = x.reshape(1, rows, count).contiguous()
        y, mean, rstd = torch.native_group_norm(flat, None, None, 1, rows, count, rows, layer.eps)
        with torch.no_grad():
            momentum = layer.momentum or 0.0
            variance = (rstd**-2 - layer.eps) * (count / max(1, count - 1))
            running_mean.lerp_(mean.view(n_hosts, n_channels), momentum)
            running_var.lerp_(variance.view(n_hosts, n_channels), momentum)
            buffers[f"{self.prefix}num_batches_tracked"].add_(1)
        y = y.view(x.shape)
        return torch.addcmul(bias.view(*bias.shape, *ones), y, weight.view(*weight.shape, *ones))


class StackedLayerNorm(StackedLayer):
    """``nn.LayerNorm`` over the features of ``[N, B, D]`` or ``[N, B, T, D]``."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        y = layer_norm(x, x.shape[-1:], eps=self.layer.eps)
        ones = (1,) * (x.ndim - 2)
        weight = self.weight.view(len(x), *ones, -1)
        bias = self.bias
        return (
            y * weight if bias is None else torch.addcmul(bias.view(len(x), *ones, -1), y, weight)
        )


class StackedGroupNorm(StackedLayer):
    """``nn.GroupNorm`` on ``[N, B, C, H, W]``."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        layer: nn.GroupNorm = self.layer
        groups = x.reshape(*x.shape[:2], layer.num_groups, -1, *x.shape[3:])
        variance, mean = torch.var_mean(groups, dim=(3, 4, 5), correction=0, keepdim=True)
        y = ((groups - mean) * torch.rsqrt(variance + layer.eps)).view(x.shape)
        weight, bias = self.weight[:, None, :, None, None], self.bias
        y = y * weight
        return y if bias is None else y + bias[:, None, :, None, None]


class StackedEmbedding(StackedLayer):
    """``nn.Embedding`` on ``[N, B, T]``."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embedding of each token."""
        weight = self.weight
        n_hosts, n_tokens, _ = weight.shape
        minimum, maximum = (number.item() for number in torch.aminmax(tokens))
        if minimum < 0 or maximum >= n_tokens:  # it would read another host's table
            wrong = minimum if minimum < 0 else maximum
            raise ValueRangeError(f"token {wrong} is out of range; it must be 0 to {n_tokens - 1}.")
        firsts = torch.arange(0, n_hosts * n_tokens, n_tokens, device=tokens.device)
        return embedding(tokens + firsts[:, None, None], weight.reshape(n_hosts * n_tokens, -1))


class StackedMeanPool(StackedLayer):
    """``nn.AdaptiveAvgPool2d(1)`` on ``[N, B, C, H, W]``."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean of each channel, ``[N, B, C, 1, 1]``."""
        return x.mean((3, 4), keepdim=True)


class StackedFlatten(StackedLayer):
    """``nn.Flatten()``, with output ``[N, B, D]``."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the samples as vectors."""
        return x.flatten(2)


def _is_plain_conv(layer: Any) -> bool:
    return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _is_plain_batch_norm(layer: Any) -> bool:
    return bool(layer.affine and layer.track_running_stats and layer.momentum is not None)


STACKED_FORMS: dict[type[nn.Module], tuple[type[StackedLayer], Callable[[Any], bool]]] = {
    nn.Linear: (StackedLinear, lambda layer: True),
    nn.Conv2d: (StackedConv2d, _is_plain_conv),
    nn.BatchNorm1d: (StackedBatchNorm, _is_plain_batch_norm),
    nn.BatchNorm2d: (StackedBatchNorm, _is_plain_batch_norm),
    nn.LayerNorm: (
        StackedLayerNorm,
        lambda layer: len(layer.normalized_shape) == 1 and layer.elementwise_affine,
    ),
    nn.GroupNorm: (StackedGroupNorm, lambda layer: layer.affine),
    nn.Embedding: (
        StackedEmbedding,
        lambda layer: layer.padding_idx is None and layer.max_norm is None,
    ),
    nn.AdaptiveAvgPool2d: (StackedMeanPool, lambda layer: layer.output_size in (1, (1, 1))),
    nn.Flatten: (StackedFlatten, lambda layer: (layer.start_dim, layer.end_dim) == (1, -1)),
}
"""The stacked form of each layer type, and a check that a layer's settings are supported."""

ELEMENTWISE = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU, nn.ELU, nn.Identity)
"""Elementwise layers, which need no stacked form."""

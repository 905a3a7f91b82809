"""Networks that turn observations into features. Shapes: ``N`` observations, ``F`` features.

A network of your own is an ``nn.Module`` with an attribute ``output_size`` and

    forward(observations) -> features ``[N, output_size]``

or a pair of such tensors, for the policy and for the value (whose size is ``value_size`` if it
differs). ``observations`` is a tensor ``[N, ...]``, or a dict of them. With memory, it also has an
attribute ``state_size`` and

    forward(observations, state) -> (features, next state)

where ``state`` is ``[N, state_size]`` and zero at the first step of an episode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from esper.config.learning import NetworkConfig
from esper.config.memory import BYTES_PER_WEIGHT, require_memory
from esper.errors import ConfigError
from esper.simic.policy.normalizers import ObservationNormalizer
from esper.simic.policy.observations import (
    ObservationLeaf,
    Observations,
    ObservationSpec,
    leaves_of,
)


class Encoder(nn.Module):
    """Encodes observations of any kind as one vector ``[N, output_size]``.

    Vectors pass through, normalised if asked for; categories become one-hot vectors; images pass
    through convolutions.
    """

    def __init__(self, spec: ObservationSpec, config: NetworkConfig) -> None:
        super().__init__()
        self.spec = spec
        self.normalizers = nn.ModuleDict()
        self.images = nn.ModuleDict()
        self.output_size = 0
        for name, leaf in spec.leaves.items():
            if leaf.kind == "image":
                self.images[_key(name)] = ImageEncoder(leaf, config.image_size)
                self.output_size += config.image_size
            elif leaf.kind == "category":
                self.output_size += sum(leaf.counts)
            else:
                size = math.prod(leaf.shape)
                if config.normalize_observations:
                    self.normalizers[_key(name)] = ObservationNormalizer(size)
                self.output_size += size
        single = spec.single
        self.is_plain = (
            single is not None
            and (single.kind, single.dtype, len(single.shape)) == ("vector", "float32", 1)
            and not config.normalize_observations
        )
        """Whether observations are vectors that pass through as they are."""

    def forward(self, observations: Observations) -> Tensor:
        """Return the encodings of all leaves side by side."""
        if self.is_plain and isinstance(observations, Tensor):
            return observations
        leaves = leaves_of(observations)
        parts = [self._encode(name, leaf, leaves[name]) for name, leaf in self.spec.leaves.items()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def learn_observations(self, observations: Observations) -> None:
        """Update the running statistics of vectors ``[N, ...]``, if there are any."""
        leaves = leaves_of(observations)
        for name in self.spec.leaves:
            if _key(name) in self.normalizers:
                normalizer = cast(ObservationNormalizer, self.normalizers[_key(name)])
                normalizer.learn(leaves[name].flatten(1))

    def _encode(self, name: str, leaf: ObservationLeaf, values: Tensor) -> Tensor:
        if leaf.kind == "image":
            return cast(Tensor, self.images[_key(name)](values))
        if leaf.kind == "category":
            numbers = values.reshape(len(values), -1)
            hot = [F.one_hot(numbers[:, i], n) for i, n in enumerate(leaf.counts)]
            return torch.cat(hot, dim=1).float()
        flat = values.flatten(1) if values.ndim != 2 else values
        if flat.dtype is not torch.float32:
            flat = flat.float()
        if _key(name) in self.normalizers:
            flat = cast(Tensor, self.normalizers[_key(name)](flat))
        return flat


class ImageEncoder(nn.Module):
    """Encodes images by convolutions: those of Mnih et al. (2015), or smaller ones if they are.

    Bytes 0 to 255 are scaled to 0 to 1.
    """

    def __init__(self, leaf: ObservationLeaf, output_size: int) -> None:
        super().__init__()
        self.leaf = leaf
        height, width, channels = leaf.shape
        if not leaf.is_channels_last:
            channels, height, width = leaf.shape
        # (channels, kernel, stride, padding) of each layer.
        if min(height, width) >= 36:
            layers = [(32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)]
        else:
            n_halvings = max(0, math.ceil(math.log2(min(height, width) / 4)))
            layers = [(32, 3, 1, 1), *[(32, 3, 2, 1)] * n_halvings]
        stack: list[nn.Module] = []
        for n_out, kernel, stride, padding in layers:
            if (height, width, padding) == (kernel, kernel, 0):
                # One position is left; PyTorch takes three times as long to convolve it.
                stack += [nn.Flatten(), nn.Linear(channels * kernel**2, n_out), nn.ReLU()]
            else:
                stack += [nn.Conv2d(channels, n_out, kernel, stride, padding), nn.ReLU()]
            channels = n_out
            height = (height + 2 * padding - kernel) // stride + 1
            width = (width + 2 * padding - kernel) // stride + 1
        n_flat = channels * height * width
        require_memory(BYTES_PER_WEIGHT * n_flat * output_size, image_size=output_size)
        flat = [nn.Flatten(), nn.Linear(n_flat, output_size), nn.ReLU()]
        self.layers = nn.Sequential(*stack, *flat)

    def forward(self, images: Tensor) -> Tensor:
        """Return encodings ``[N, output size]`` of images ``[N, height, width, channels]``."""
        if self.leaf.is_channels_last:
            images = images.permute(0, 3, 1, 2)
        images = images.float()
        if self.leaf.is_byte_image:
            images = images / 255.0
        return cast(Tensor, self.layers(images))


class TwinLinear(nn.Module):
    """Two fully connected layers of the same size side by side, in one matrix product."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, n_in, n_out))
        self.bias = nn.Parameter(torch.zeros(2, 1, n_out))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return ``[2, N, n_out]`` for inputs ``[2, N, n_in]``."""
        return torch.baddbmm(self.bias, inputs, self.weight)


class Towers(nn.Module):
    """Two stacks of fully connected layers, one for the policy and one for the value.

    Stacks of the same widths are computed together, which takes two thirds of the time.
    """

    def __init__(
        self,
        input_size: int,
        hidden_sizes: Sequence[int],
        activation: str,
        value_sizes: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        value_sizes = hidden_sizes if value_sizes is None else value_sizes
        for name, sizes in (("hidden_sizes", hidden_sizes), ("value_sizes", value_sizes)):
            if not sizes:
                raise ConfigError(f"{name} is empty; it needs at least one width.")
            n_weights = 2 * sum(a * b for a, b in pairwise((input_size, *sizes)))
            require_memory(BYTES_PER_WEIGHT * n_weights, **{name: tuple(sizes)})
        self.output_size, self.value_size = hidden_sizes[-1], value_sizes[-1]
        self.both = self.policy = self.value = None
        if tuple(hidden_sizes) == tuple(value_sizes):
            self.both = _stack(TwinLinear, input_size, hidden_sizes, activation)
        else:
            self.policy = _stack(nn.Linear, input_size, hidden_sizes, activation)
            self.value = _stack(nn.Linear, input_size, value_sizes, activation)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return features ``[N, width]`` for the policy and for the value."""
        if self.both is not None:
            for_policy, for_value = self.both(inputs.expand(2, -1, -1)).unbind()
            return for_policy, for_value
        assert self.policy is not None, "stacks of other sizes are separate"
        assert self.value is not None, "stacks of other sizes are separate"
        return self.policy(inputs), self.value(inputs)


def _stack(
    layer: type[nn.Linear] | type[TwinLinear], n_in: int, sizes: Sequence[int], activation: str
) -> nn.Sequential:
    layers = list[nn.Module]()
    for before, after in pairwise((n_in, *sizes)):
        layers += [layer(before, after), nn.Tanh() if activation == "tanh" else nn.ReLU()]
    return nn.Sequential(*layers)


class EncoderTowers(nn.Module):
    """An encoder of observations followed by two towers: the network of most policies."""

    def __init__(self, spec: ObservationSpec, config: NetworkConfig) -> None:
        super().__init__()
        self.encoder = Encoder(spec, config)
        self.towers = Towers(
            self.encoder.output_size, config.hidden_sizes, config.activation, config.value_sizes
        )
        self.output_size, self.value_size = self.towers.output_size, self.towers.value_size

    def forward(self, observations: Observations) -> tuple[Tensor, Tensor]:
        """Return features ``[N, F]`` for the policy and for the value."""
        return cast("tuple[Tensor, Tensor]", self.towers(self.encoder(observations)))


@torch.no_grad()
def initialize(module: nn.Module, generator: torch.Generator) -> None:
    """Draw orthogonal weights with gain sqrt(2) for every layer below a module; zero biases."""
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d, TwinLinear)):
            # Each of twins by itself: together, two layers on few inputs would start too small.
            weights = layer.weight if isinstance(layer, TwinLinear) else [layer.weight]
            for weight in weights:
                nn.init.orthogonal_(weight, gain=2**0.5, generator=generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def _key(name: str) -> str:
    """Return a name that a ``ModuleDict`` accepts, another one for every name."""
    return "leaf_" + name.replace("_", "__").replace(".", "_dot_")

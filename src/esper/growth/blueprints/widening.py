"""Width growth: seeds that add hidden units to a block or to a pair of layers.

If the block has two layers with an activation between them (found by the dry run), the seed copies
their geometry, norm and activation. It then is exactly "more hidden units", and export concatenates
its weights with the block's. Otherwise it is a two-layer network in parallel with the block.

On a pair of layers, the seed is only the new units' weights: rows of the producer, entries of the
norms and columns of the consumers. The slot runs them around the model's own code. Links are more
entries of the rows and columns, for new units of neighbouring pairs that were committed later than
the seed was planted.
"""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn

from esper.growth.blueprints.registry import Blueprint, built_in
from esper.growth.sharding import whole_values
from esper.growth.sites import (
    ACTIVATIONS,
    BlockPath,
    ConvShape,
    Pair,
    PairLayer,
    SlotSite,
    TensorKind,
)
from esper.growth.unit_layers import build_layer, matrix_of

Layer = nn.Linear | nn.Conv2d


@torch.no_grad()
def draw_mirrored(first: Layer, second: Layer) -> None:
    """Initialize two layers so that their hidden units cancel in pairs; biases become zero.

    Weights are drawn from torch's default generator with the variance ``2 / inputs`` of He et al.
    (2015). Units 2i and 2i + 1 read the same and have opposite outgoing weights; with an odd number
    of units, the outgoing weights of the last are zero.
    """
    nn.init.kaiming_normal_(first.weight)
    nn.init.kaiming_normal_(second.weight)
    for layer in (first, second):
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    _odd(first.weight, dim=0).copy_(_even(first.weight, dim=0))
    _odd(second.weight, dim=1).copy_(-_even(second.weight, dim=1))
    if first.weight.shape[0] % 2:
        second.weight[:, -1] = 0.0


def _even(weight: Tensor, *, dim: int) -> Tensor:
    """Return the first unit of each pair, along axis 0."""
    return weight.transpose(0, dim)[: weight.shape[dim] // 2 * 2 : 2]


def _odd(weight: Tensor, *, dim: int) -> Tensor:
    """Return the second unit of each pair, along axis 0."""
    return weight.transpose(0, dim)[1 : weight.shape[dim] // 2 * 2 : 2]


SHARES: dict[str, float] = {
    "widen_small": 0.25,
    "widen_medium": 0.5,
    "widen_large": 1.0,
    "widen_huge": 3.0,
}
"""New units as a share of the block's hidden units, or of its output width if those are unknown."""


class WidenSeed(nn.Module):
    """Hidden units in parallel with a block: layer, norm if the block has one, activation, layer.

    Its output starts at zero because units are initialized in mirrored pairs. The second layer has
    no bias.
    """

    def __init__(self, site: SlotSite, n_units: int) -> None:
        super().__init__()
        path = site.path or _default_path(site)
        n_in, bias = site.input_width, path.has_first_bias
        self.first = _build_layer(n_in, n_units, path.first_conv, bias=bias)
        self.norm = _norm(path, n_units)
        self.activation = ACTIVATIONS[path.activation]()
        self.second = _build_layer(n_units, site.width, path.second_conv, bias=False)
        draw_mirrored(self.first, self.second)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the hidden units add to the block's output."""
        return self.second(self.activation(self.norm(self.first(x))))


ROWS = "rows"


class PairSeed(nn.Module):
    """New units of a pair: rows of its producer, entries of its norms, columns of its consumers."""

    def __init__(self, pair: Pair, n_units: int) -> None:
        super().__init__()
        producer = pair.producer
        self.n_units = n_units
        self.rows = build_layer(producer, producer.n_in, n_units)
        self.norms = nn.ModuleList(
            build_layer(norm, n_units * norm.per_unit, n_units * norm.per_unit)
            for norm in pair.norms
        )
        self.columns = nn.ModuleList(
            build_layer(layer, n_units * layer.per_unit, layer.n_out, bias=False)
            for layer in pair.consumers
        )
        self.links = nn.ModuleDict()
        """More inputs of the rows (``ROWS``), and more outputs of columns, by their number."""
        self._n_samples = producer.input_shape[0]
        self._shapes = [
            _with_size(layer.input_shape, layer.unit_axis, matrix_of(columns).shape[1])
            for layer, columns in zip(pair.consumers, self.columns, strict=True)
        ]

    def forward(self, x: Tensor) -> Tensor:
        """Compute every layer once on tensors of the dry run's shapes, to count FLOPs.

        What is between producer and consumers is code of the model, so the result means nothing.
        """
        mean = self.rows(x).mean()
        parts = [
            columns(mean.expand(shape[0] * len(x) // self._n_samples, *shape[1:])).sum()
            for columns, shape in zip(self.columns, self._shapes, strict=True)
        ]
        return torch.stack(parts).sum()

    @torch.no_grad()
    def linked(self, pair: Pair) -> PairSeed:
        """Return the seed, with the same layers, and links to all other new units beside a pair.

        The weights of the links are zero, so they change no function.
        """
        twin = copy.copy(self)
        twin.__dict__["_modules"] = dict(self._modules)
        n_read = pair.producer.n_in - matrix_of(self.rows).shape[1]
        twin.links = nn.ModuleDict()
        if n_read:
            twin.links[ROWS] = self._zero_layer(pair.producer, n_read, self.n_units)
        for part, (layer, columns) in enumerate(zip(pair.consumers, self.columns, strict=True)):
            n_before, n_in = matrix_of(columns).shape[:2]
            if layer.n_out > n_before:
                twin.links[str(part)] = self._zero_layer(layer, n_in, layer.n_out - n_before)
        return twin

    def _zero_layer(self, layer: PairLayer, n_in: int, n_out: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):  # the weights that are drawn don't matter
            built = build_layer(layer, n_in, n_out, bias=False)
        cast(Tensor, built.weight).zero_()
        like = cast(Tensor, self.rows.weight)
        return built.to(device=like.device, dtype=like.dtype)

    def row_parts(self) -> list[nn.Module]:
        """Return the layers whose outputs add up to the new units."""
        return [self.rows, *self._links_of(ROWS)]

    def column_parts(self, part: int) -> list[nn.Module]:
        """Return the layers whose outputs, one after another, a consumer's outputs change by."""
        return [self.columns[part], *self._links_of(str(part))]

    def _links_of(self, key: str) -> list[nn.Module]:
        return [self.links[key]] if key in self.links else []

    @torch.no_grad()
    def mirror(self) -> None:
        """Make the units cancel in pairs: equal incoming, opposite outgoing weights.

        With an odd number of units, the outgoing weights of the last become zero.
        """
        for incoming in self._incoming():
            _odd(incoming, dim=0).copy_(_even(incoming, dim=0))
        for outgoing in self._outgoing():
            _odd(outgoing, dim=1).copy_(-_even(outgoing, dim=1))
            if self.n_units % 2:
                outgoing[:, -1] = 0.0

    @property
    def is_new(self) -> bool:
        """Whether the units still cancel in pairs."""
        is_single = self.n_units % 2 == 1
        return all(
            torch.equal(_odd(incoming, dim=0), _even(incoming, dim=0))
            for incoming in map(whole_values, self._incoming())
        ) and all(
            torch.equal(_odd(outgoing, dim=1), -_even(outgoing, dim=1))
            and not (is_single and bool(outgoing[:, -1].any()))
            for outgoing in map(whole_values, self._outgoing())
        )

    def _incoming(self) -> list[Tensor]:
        """Return the weights that lead to the units, ``[units, ...]``, sharing their memory."""
        bias = cast(Tensor | None, self.rows.bias)
        found = [matrix_of(self.rows), *([] if bias is None else [bias])]
        found += [entry for norm in self.norms for entry in norm.parameters()]
        return [tensor.detach().unflatten(0, (self.n_units, -1)) for tensor in found]

    def _outgoing(self) -> list[Tensor]:
        """Return the weights that leave the units, ``[n_out, units, ...]``, sharing memory."""
        return [
            matrix_of(layer).detach().unflatten(1, (self.n_units, -1)) for layer in self.columns
        ]


def _with_size(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    sizes = list(shape)
    sizes[axis] = size
    return tuple(sizes)


def _default_path(site: SlotSite) -> BlockPath:
    """Return the layout of a two-layer network for a block whose path is unknown."""
    conv = site.kind == TensorKind.FEATURE_MAP
    same = {"kernel": (3, 3), "padding": (1, 1), "dilation": (1, 1)}
    return BlockPath(
        first="",
        second="",
        norm=None,
        activation="relu",
        hidden=site.width,
        has_first_bias=True,
        first_conv=ConvShape(stride=site.stride, **same) if conv else None,
        second_conv=ConvShape(stride=(1, 1), **same) if conv else None,
    )


def _build_layer(n_in: int, n_out: int, shape: ConvShape | None, *, bias: bool) -> Layer:
    if shape is None:
        return nn.Linear(n_in, n_out, bias=bias)
    geometry = shape.kernel, shape.stride, shape.padding, shape.dilation
    return nn.Conv2d(n_in, n_out, *geometry, bias=bias)


def _norm(path: BlockPath, n_units: int) -> nn.Module:
    if path.norm is None:
        return nn.Identity()
    kind = nn.BatchNorm1d if path.first_conv is None else nn.BatchNorm2d
    return kind(n_units, eps=path.norm_eps, momentum=path.norm_momentum)


def _blueprint(name: str, share: float) -> Blueprint:
    def build(site: SlotSite) -> nn.Module:
        n_units = round(share * (site.hidden or site.width))
        n_units = max(1, n_units if site.room is None else min(n_units, site.room))
        return WidenSeed(site, n_units) if site.pair is None else PairSeed(site.pair, n_units)

    return built_in(name, build, fits_pairs=True)


BLUEPRINTS = tuple(_blueprint(name, share) for name, share in SHARES.items())

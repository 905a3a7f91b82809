"""Depth growth: a seed that is a copy of the residual block it sits on.

The copy reads the block's output and starts as the identity: the layers that end its residual
branches are zero, so they learn at once and the branches behind them as soon as they are not zero.
What has to be zeroed is found by running the block (:mod:`esper.growth.residual_blocks`).

A block that ends in a norm, ``y = norm(x + f(x))``, is the identity only on normalized input. Its
copy therefore reads ``(y - shift) / scale``, where scale and shift are the weight and bias that the
block's last norm had when the seed germinated. Export folds this into that norm.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from esper.growth.blueprints.registry import built_in
from esper.growth.sharding import local_values
from esper.growth.sites import BlockIdentity, SlotSite

CACHE_INDEX = "layer_idx"
"""The attribute by which Transformers' attention layers find their layer of a cache."""

_LARGEST_CHANGE = 2.0
"""A redrawn weight whose standard deviation differs by more than this factor is rescaled."""


class BlockCopy(nn.Module):
    """A copy of a residual block, called with the block's output in place of its input."""

    def __init__(self, block: nn.Module, identity: BlockIdentity, input_key: int | str) -> None:
        """Turn ``block``, which is a copy already, into the identity."""
        super().__init__()
        self.block = block
        self.identity = identity
        self.input_key = input_key
        self.cache_layers: tuple[int, int] | None = None
        """The layers of a cache that the block and the copy use, if they use one."""
        for parameter in block.parameters():
            parameter.requires_grad_(parameter.is_floating_point())
        if identity.norms:
            scale, shift = read_affine(block.get_submodule(identity.norms[-1]))
            self.register_buffer("scale", scale)
            self.register_buffer("shift", shift)
        become_identity(block, identity)

    def forward(
        self, y: Tensor, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Tensor:
        """Return what the copy changes, given the block's output and the block's arguments."""
        args, kwargs = replace_input(args, kwargs or {}, self.input_key, self.normalize(y))
        return self.block(*args, **kwargs) - y

    def normalize(self, y: Tensor) -> Tensor:
        """Undo the affine part of the norm that ends the block, if one does."""
        return (y - self.shift) / self.scale if self.identity.norms else y

    @torch.no_grad()
    def draw_weights(self) -> None:
        """Draw the weights behind the zeroed layers from torch's default generator.

        Layers draw their own initial weights if they can, otherwise from a normal distribution of
        the copied weights' standard deviation. Models that initialize layers in their own way keep
        the scale of their weights.
        """
        kept = {*self.identity.zeroed, *self.identity.norms}
        for name, module in own_parameters(self.block):
            if name not in kept:
                _redraw(module)
        for name in self.identity.zeroed:
            _zero(self.block.get_submodule(name))

    def follow(self, other: BlockCopy) -> None:
        """Read the output of an earlier copy instead of the block's."""
        if self.identity.norms:
            norm = self.identity.norms[-1]
            self.scale, self.shift = read_affine(other.block.get_submodule(norm))
            write_affine(self.block.get_submodule(norm), self.scale, self.shift)

    def separate_cache(self, modules: Iterable[nn.Module]) -> None:
        """Give the copy a layer of its own in a key-value cache that these modules share."""
        users = [part for part in self.block.modules() if CACHE_INDEX in part.__dict__]
        own = {part.__dict__[CACHE_INDEX] for part in users}
        if len(own) != 1 or not isinstance(index := own.pop(), int):
            return
        found = [part.__dict__.get(CACHE_INDEX) for part in modules]
        free = 1 + max((value for value in found if isinstance(value, int)), default=index)
        self.cache_layers = index, free
        for part in users:
            setattr(part, CACHE_INDEX, free)

    def prepare_cache(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Add the copy's layer to an empty cache; call it before the block fills its own layer."""
        if self.cache_layers is None:
            return
        index, own = self.cache_layers
        for argument in (*args, *kwargs.values()):
            layers = cache_layers(argument)
            if index >= len(layers) or getattr(layers[index], "is_initialized", False):
                continue
            while len(layers) <= own:
                layers.append(copy.copy(layers[index]))
            layers[own] = copy.copy(layers[index])

    def find_start_problem(self) -> str | None:
        """Return why the copy is not the identity any more, or None if it still is."""
        layers = [self.block.get_submodule(name) for name in self.identity.zeroed]
        if any(
            bool(local_values(p).any()) for layer in layers for p in layer.parameters(recurse=False)
        ):
            return "a layer that ends a residual branch of the copy is not zero"
        tensors = [*self.parameters(), *self.buffers()]
        if not all(
            bool(torch.isfinite(local_values(t)).all()) for t in tensors if t.is_floating_point()
        ):
            return "a weight of the copied block is not finite"
        if self.identity.norms and not bool(self.scale.all()):
            return "the block's last norm has a weight of zero, which cannot be undone"
        return None


def cache_layers(argument: object) -> list[Any]:
    """Return the layers of a key-value cache; empty for anything else."""
    layers: object = getattr(argument, "layers", None)
    return cast(list[Any], layers) if isinstance(layers, list) else []


def own_parameters(block: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return each module of a block that has parameters of its own, by name."""
    modules: list[tuple[str, nn.Module]] = list(cast(Any, block.named_modules()))
    return [pair for pair in modules if any(True for _ in pair[1].parameters(recurse=False))]


@torch.no_grad()
def become_identity(block: nn.Module, identity: BlockIdentity) -> None:
    """Turn a block into the identity; the norm at its end, if there is one, is not changed."""
    for name in identity.zeroed:
        _zero(block.get_submodule(name))
    for name in identity.norms[:-1]:
        write_affine(block.get_submodule(name), 1.0, 0.0)


def read_affine(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return copies of the weight and bias of a norm; a norm without a bias has zeros."""
    weight = cast(Tensor, norm.weight).detach().clone()
    bias = cast(Tensor | None, getattr(norm, "bias", None))
    return weight, torch.zeros_like(weight) if bias is None else bias.detach().clone()


@torch.no_grad()
def write_affine(norm: nn.Module, weight: Tensor | float, bias: Tensor | float) -> None:
    """Set the weight of a norm and, if it has one, its bias."""
    cast(Tensor, norm.weight).copy_(torch.as_tensor(weight))
    own = cast(Tensor | None, getattr(norm, "bias", None))
    if own is not None:
        own.copy_(torch.as_tensor(bias))


def replace_input(
    args: tuple[Any, ...], kwargs: dict[str, Any], key: int | str, value: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a block's arguments with another input."""
    if isinstance(key, int):
        return (*args[:key], value, *args[key + 1 :]), kwargs
    return args, {**kwargs, key: value}


@torch.no_grad()
def _zero(module: nn.Module) -> None:
    for parameter in module.parameters(recurse=False):
        parameter.zero_()


def _redraw(module: nn.Module) -> None:
    before = {
        name: parameter.detach().std().item()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.ndim > 1 and parameter.numel() > 1
    }
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
    for name, deviation in before.items():
        parameter = module.get_parameter(name)
        if not callable(reset):
            parameter.normal_(std=deviation)
            continue
        drawn = parameter.std().item()
        is_close = deviation / _LARGEST_CHANGE <= drawn <= deviation * _LARGEST_CHANGE
        if drawn > 0.0 and deviation > 0.0 and not is_close:
            parameter.mul_(deviation / drawn)


def _build(site: SlotSite, block: nn.Module) -> nn.Module:
    assert site.identity is not None, "deepen fits residual blocks only"
    assert site.input_key is not None, "a residual block's input is known"
    return BlockCopy(block, site.identity, site.input_key)


BLUEPRINTS = (built_in("deepen", _build, copies_block=True),)

"""Finding the two layers of a block between which hidden units can be added.

There is no table of architectures. A block is run once with hooks on its leaf modules, and a path
is a pair of layers whose tensors are connected. Perturbing both layers then checks that the block
adds the second layer's output to its own, and uses the units in between for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from esper.growth.dry_run import Call, hooked, recorded_calls
from esper.growth.modules import named_modules
from esper.growth.sites import ACTIVATIONS, BlockPath, ConvShape
from esper.modes import evaluation_mode

Calls = dict[str, Call]

_DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


def find_path(block: nn.Module, call: Call, x: Tensor) -> BlockPath | None:
    """Return the two-layer path of a block that was called with ``x``, or None if it has none."""
    if not all(map(is_immutable, [*call.args, *call.kwargs.values()])):
        # The block may write to the object (a cache), so calling it again may behave differently.
        return None
    leaves = {
        name: module for name, module in named_modules(block).items() if not any(module.children())
    }
    with evaluation_mode(block), torch.random.fork_rng(devices=[]):
        with recorded_calls(leaves) as recorded, torch.no_grad():
            block(*call.args, **call.kwargs)
        once = {name: calls[0] for name, calls in recorded.items() if len(calls) == 1}
        for path in _connected_paths(leaves, once, x):
            if _has_other_readers(leaves, recorded, path):
                continue
            if _is_added_to_output(block, leaves, path, call, x):
                return path
    return None


def is_immutable(argument: Any) -> bool:
    """Return whether an argument is a tensor, an immutable value or a tuple of these."""
    if isinstance(argument, tuple):
        return all(map(is_immutable, cast(tuple[Any, ...], argument)))
    plain = (Tensor, bool, int, float, complex, str, torch.dtype, torch.device, type(None))
    return isinstance(argument, plain)


def _connected_paths(leaves: dict[str, nn.Module], calls: Calls, x: Tensor) -> list[BlockPath]:
    """Return each pair of layers connected by an optional norm and an activation."""
    found: list[BlockPath] = []
    for first, call in calls.items():
        layer = leaves[first]
        if not _is_plain_layer(layer) or not _reads(call, x):
            continue
        norm, hidden = _follow_norm(leaves, calls, call.output)
        for second, second_call in calls.items():
            layer_2 = leaves[second]
            if second == first or type(layer_2) is not type(layer) or not _is_plain_layer(layer_2):
                continue
            activation = _activation_between(leaves, calls, hidden, second_call)
            n_units = cast(Tensor, layer.weight).shape[0]
            if activation is not None and cast(Tensor, layer_2.weight).shape[1] == n_units:
                found.append(_describe(leaves, first, norm, activation, second))
    return found


def _is_plain_layer(layer: nn.Module) -> bool:
    """Return whether units can be added to this layer by concatenating weights."""
    if type(layer) is nn.Linear:
        return True
    # With padding as a string ("same"), torch chooses the amounts.
    return (
        type(layer) is nn.Conv2d
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and not isinstance(layer.padding, str)
    )


def _reads(call: Call, tensor: Tensor) -> bool:
    return len(call.args) == 1 and not call.kwargs and call.args[0] is tensor


def _follow_norm(
    leaves: dict[str, nn.Module], calls: Calls, tensor: Tensor
) -> tuple[str | None, Tensor]:
    """Return the batch norm that reads ``tensor`` and its output, or None and ``tensor``."""
    for name, call in calls.items():
        norm = leaves[name]
        # On a sequence, BatchNorm1d treats the steps as channels.
        is_plain = (
            type(norm) is (nn.BatchNorm2d if tensor.ndim == 4 else nn.BatchNorm1d)
            and tensor.ndim != 3
            and norm.affine
            and norm.track_running_stats
            and norm.momentum is not None
        )
        if is_plain and _reads(call, tensor):
            return name, call.output
    return None, tensor


def _activation_between(
    leaves: dict[str, nn.Module], calls: Calls, hidden: Tensor, second: Call
) -> str | None:
    """Return the name of the activation that leads from ``hidden`` to the second layer."""
    if len(second.args) != 1 or second.kwargs or not isinstance(second.args[0], Tensor):
        return None
    reached = second.args[0]
    for name, call in calls.items():
        if _reads(call, hidden) and call.output is reached:
            for activation, make in ACTIVATIONS.items():
                if _is_same_activation(leaves[name], make()):
                    return activation
    # The activation may be a function call rather than a module.
    if reached.shape == hidden.shape:
        for activation, make in ACTIVATIONS.items():
            if torch.equal(make()(hidden), reached):
                return activation
    return None


def _is_same_activation(module: nn.Module, candidate: nn.Module) -> bool:
    return type(module) is type(candidate) and getattr(module, "approximate", None) == getattr(
        candidate, "approximate", None
    )


def _has_other_readers(
    leaves: dict[str, nn.Module], recorded: dict[str, list[Call]], path: BlockPath
) -> bool:
    """Return whether a module outside the path reads its tensors.

    Dropout, say, which has no effect in evaluation mode and so escapes the perturbation check.
    """
    own = [name for name in (path.first, path.norm, path.second) if name is not None]
    tensors = [recorded[name][0].output for name in own] + [recorded[path.second][0].args[0]]
    activation = ACTIVATIONS[path.activation]()
    for name, calls in recorded.items():
        module = leaves[name]
        is_idle = isinstance(module, nn.Identity) or (
            isinstance(module, _DROPOUTS) and module.p == 0.0
        )
        if name in own or is_idle or _is_same_activation(module, activation):
            continue
        if any(_reads(call, tensor) for call in calls for tensor in tensors):
            return True
    return False


def _is_added_to_output(
    block: nn.Module, leaves: dict[str, nn.Module], path: BlockPath, call: Call, x: Tensor
) -> bool:
    """Test by perturbation that the block is ``rest(x) + second(activation(norm(first(x))))``."""
    first, second = leaves[path.first], leaves[path.second]
    norm = leaves[path.norm] if path.norm is not None else nn.Identity()
    recorded: list[Tensor] = []

    def record(output: Tensor) -> Tensor:
        recorded.append(output.clone())
        return output

    before = _run_with_edits(block, leaves, call, {path.second: record})
    if len(recorded) != 1 or recorded[0].shape != before.shape:
        return False
    with torch.no_grad():
        expected = second(ACTIVATIONS[path.activation]()(norm(first(x))))
    # Large enough to reveal a batch norm after the layer, even one close to the identity.
    scale = 16.0 * before.abs().max().clamp_min(1.0).item()
    noise = scale * _noise_like(before)
    after = _run_with_edits(block, leaves, call, {path.second: lambda y: y + noise})
    edits: dict[str, Callable[[Tensor], Tensor]] = {
        path.first: lambda y: y + _noise_like(y),
        path.second: lambda _: recorded[0].clone(),
    }
    pinned = _run_with_edits(block, leaves, call, edits)
    return (
        _is_close(expected, recorded[0])
        # The noise has both signs, which reveals an activation after the layer.
        and _is_close(after - noise, before, scale=after.abs().max().item())
        and torch.equal(pinned, before)
    )


def _run_with_edits(
    block: nn.Module,
    leaves: dict[str, nn.Module],
    call: Call,
    edits: dict[str, Callable[[Tensor], Tensor]],
) -> Tensor:
    """Return the block's output while the outputs of some of its layers are edited."""

    def edit(name: str, _: nn.Module, __: Any, ___: Any, output: Tensor) -> Tensor:
        return edits[name](output)

    with hooked({name: leaves[name] for name in edits}, after=edit), torch.no_grad():
        return block(*call.args, **call.kwargs).clone()


def _noise_like(tensor: Tensor) -> Tensor:
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)).to(tensor)


def _is_close(tensor: Tensor, other: Tensor, *, scale: float | None = None) -> bool:
    """Return whether two tensors agree up to a few rounding errors at ``scale``."""
    if scale is None:
        scale = other.abs().max().clamp_min(1.0).item()
    error = (tensor - other).abs().max().item()
    return error <= 8.0 * torch.finfo(other.dtype).eps * scale


def _describe(
    leaves: dict[str, nn.Module], first: str, norm: str | None, activation: str, second: str
) -> BlockPath:
    layer, norm_layer = leaves[first], leaves[norm] if norm is not None else None
    has_norm = isinstance(norm_layer, (nn.BatchNorm1d, nn.BatchNorm2d))
    return BlockPath(
        first=first,
        second=second,
        norm=norm,
        activation=activation,
        hidden=cast(Tensor, layer.weight).shape[0],
        has_first_bias=getattr(layer, "bias", None) is not None,
        norm_eps=norm_layer.eps if has_norm else 1e-5,
        norm_momentum=(norm_layer.momentum or 0.0) if has_norm else 0.1,
        first_conv=_conv_shape(layer),
        second_conv=_conv_shape(leaves[second]),
    )


def _conv_shape(layer: nn.Module) -> ConvShape | None:
    if not isinstance(layer, nn.Conv2d):
        return None
    return ConvShape(
        kernel=_pair(layer.kernel_size),
        stride=_pair(layer.stride),
        padding=_pair(layer.padding),
        dilation=_pair(layer.dilation),
    )


def _pair(values: Any) -> tuple[int, int]:
    first, second = values
    return int(first), int(second)

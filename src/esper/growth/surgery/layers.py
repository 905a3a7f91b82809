"""Which tensors of a layer have an entry for each of its units, and along which axis.

A *writer* produces units, a *reader* takes them in, and a *keeper* between them acts on each unit
by itself. Every kind of layer is described once, here; everything else asks these functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import torch
from torch import Tensor, nn

_CONVS: tuple[type[nn.Module], ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED: tuple[type[nn.Module], ...] = (
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
_NORMS: tuple[type[nn.Module], ...] = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)
_GATES: dict[type[nn.Module], int] = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}
"""Blocks of rows that each hidden unit of a recurrent layer has."""


class Role(Enum):
    """What the entries of a tensor do with a unit."""

    WRITE = "write"
    """They compute it."""
    KEEP = "keep"
    """They act on it alone, as a batch norm does."""
    READ = "read"
    """They take it in."""


@dataclass(frozen=True)
class Entries:
    """Entries of a tensor that belong to the units of a place, in order, along one axis."""

    tensor: str
    """Name of the tensor, in the layer or in the model."""
    axis: int
    role: Role
    start: int = 0
    """Where those of the first unit start."""
    size: int = 1
    """How many entries each unit has: more than one after a flatten."""


def is_recurrent(module: nn.Module) -> bool:
    """Return whether a layer is an LSTM, a GRU or a plain recurrent layer."""
    return type(module) in _GATES


def is_transposed_linear(module: nn.Module) -> bool:
    """Return whether a layer is Transformers' Conv1D, a linear layer with a transposed weight."""
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")


def _is_linear(module: nn.Module) -> bool:
    """Return whether a layer is linear; classes of others that add no tensors are, too."""
    own = {*module.__dict__["_parameters"], *module.__dict__["_buffers"]}
    is_plain = isinstance(module, nn.Linear) and own == {"weight", "bias"}
    weight = module.__dict__["_parameters"].get("weight")
    is_dense = isinstance(weight, Tensor) and weight.is_floating_point()
    return is_plain and is_dense and not any(module.children())


def is_keeper(module: nn.Module) -> bool:
    """Return whether a layer has parameters for each unit and acts on each unit by itself."""
    kind = type(module)
    if kind in _NORMS:
        return True
    if kind is nn.PReLU:
        return cast(nn.PReLU, module).num_parameters > 1
    return kind in _CONVS and _is_depthwise(cast(nn.Conv2d, module))


def is_reader(module: nn.Module) -> bool:
    """Return whether a layer reads units that can be added to what it reads."""
    kind = type(module)
    if kind in (*_CONVS, *_TRANSPOSED):
        return cast(nn.Conv2d, module).groups == 1
    return _is_linear(module) or is_recurrent(module) or is_transposed_linear(module)


def is_writer(module: nn.Module) -> bool:
    """Return whether units can be added to what a layer writes."""
    if is_recurrent(module):
        return cast(nn.LSTM, module).proj_size == 0
    return is_reader(module) or type(module) is nn.Embedding


def count_units(module: nn.Module) -> int:
    """Return the number of units that a writer has."""
    if is_recurrent(module):
        return cast(nn.LSTM, module).hidden_size
    written = next(iter(writes(module)))
    return cast(Tensor, getattr(module, written.tensor)).shape[written.axis]


def unit_axis(module: nn.Module) -> int:
    """Return the axis of a layer's input and output along which its units lie."""
    kind = type(module)
    if kind in (*_NORMS, nn.PReLU):
        return 1
    if kind in (*_CONVS, *_TRANSPOSED):
        return -1 - len(cast(nn.Conv2d, module).kernel_size)
    return -1


def writes(module: nn.Module) -> Iterator[Entries]:
    """Yield the entries of a writer that compute its units, and those that it reads itself."""
    if is_recurrent(module):
        yield from _recurrent_entries(cast(nn.LSTM, module))
        return
    is_second = type(module) in (*_TRANSPOSED, nn.Embedding) or is_transposed_linear(module)
    yield Entries("weight", 1 if is_second else 0, Role.WRITE)
    if getattr(module, "bias", None) is not None:
        yield Entries("bias", 0, Role.WRITE)


def keeps(module: nn.Module) -> Iterator[Entries]:
    """Yield the entries of a keeper."""
    tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    for name, tensor in tensors:
        if tensor.ndim:  # num_batches_tracked has none
            yield Entries(name, 0, Role.KEEP)


def reads(module: nn.Module) -> Iterator[Entries]:
    """Yield the entries of a reader that take in the first unit of its input."""
    if is_recurrent(module):
        for name in _suffixes(cast(nn.LSTM, module), layer=0):
            yield Entries(f"weight_ih{name}", 1, Role.READ)
        return
    is_first = type(module) in _TRANSPOSED or is_transposed_linear(module)
    yield Entries("weight", 0 if is_first else 1, Role.READ)


def fans_of(module: nn.Module, tensor: Tensor) -> tuple[int, int]:
    """Return fan-in and fan-out of a layer as torch counts them, for a weight of this shape.

    They are the same at every width for modules of a kind that is not known here.
    """
    if not is_writer(module) and not is_keeper(module):
        return 1, 1
    if is_recurrent(module):  # torch's bound of all depends on the number of hidden units
        n_units = tensor.shape[0] // _GATES[type(module)]
        return n_units, n_units
    if type(module) is nn.Embedding:
        return tensor.shape[-1], tensor.shape[-1]
    n_taps = tensor[0, 0].numel()
    n_out, n_in = tensor.shape[:2]
    if is_transposed_linear(module):
        n_out, n_in = n_in, n_out
    return n_in * n_taps, n_out * n_taps


@torch.no_grad()
def update_sizes(module: nn.Module) -> list[tuple[str, Any]]:
    """Set the sizes that a layer keeps as attributes from its tensors; return the old values."""
    sizes: dict[str, int] = {}
    weight = getattr(module, "weight", None)
    if is_recurrent(module):
        recurrent = cast(nn.LSTM, module)
        sizes["hidden_size"] = cast(Tensor, recurrent.weight_hh_l0).shape[1]
        sizes["input_size"] = cast(Tensor, recurrent.weight_ih_l0).shape[1]
    elif type(module) is nn.Embedding:
        sizes["embedding_dim"] = cast(Tensor, weight).shape[1]
    elif type(module) in _NORMS:
        entries = next(keeps(module), None)
        if entries is not None:
            sizes["num_features"] = cast(Tensor, getattr(module, entries.tensor)).shape[0]
    elif type(module) is nn.PReLU:
        sizes["num_parameters"] = cast(Tensor, weight).shape[0]
    elif is_keeper(module):
        sizes |= dict.fromkeys(("in_channels", "out_channels", "groups"), len(cast(Any, weight)))
    elif is_reader(module):
        axis = next(writes(module)).axis
        n_out, n_in = cast(Tensor, weight).shape[axis], cast(Tensor, weight).shape[1 - axis]
        sizes |= dict.fromkeys(("in_features", "in_channels", "nx"), n_in)
        sizes |= dict.fromkeys(("out_features", "out_channels", "nf"), n_out)
    old: list[tuple[str, Any]] = []
    for name, size in sizes.items():
        if name in module.__dict__ and module.__dict__[name] != size:
            old.append((name, module.__dict__[name]))
            setattr(module, name, size)
    return old


def _is_depthwise(conv: nn.Conv2d) -> bool:
    return 1 < conv.groups == conv.in_channels == conv.out_channels


def _suffixes(layer_stack: nn.LSTM, layer: int) -> list[str]:
    found = [f"_l{layer}"]
    return [*found, f"_l{layer}_reverse"] if layer_stack.bidirectional else found


def _recurrent_entries(module: nn.LSTM) -> Iterator[Entries]:
    """Yield the rows of every gate in all layers and directions, and the columns between them."""
    size = module.hidden_size
    for layer in range(module.num_layers):
        for suffix in _suffixes(module, layer):
            names = ["weight_ih", "weight_hh"] + (["bias_ih", "bias_hh"] if module.bias else [])
            for name in names:
                for gate in range(_GATES[type(module)]):
                    yield Entries(name + suffix, 0, Role.WRITE, start=gate * size)
            yield Entries(f"weight_hh{suffix}", 1, Role.READ)
            for direction in range(1 + module.bidirectional) if layer else ():
                yield Entries(f"weight_ih{suffix}", 1, Role.READ, start=direction * size)

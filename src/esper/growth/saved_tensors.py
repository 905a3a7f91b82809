"""The tensors of a model as a file holds them: each once, with its other names beside it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from esper.errors import SavedModelError
from esper.growth.modules import module_names


class TensorTable:
    """The parameters and buffers of a model by name.

    A tensor that has several names is listed under the first; ``aliases`` leads from each other
    name to that one.
    """

    def __init__(self, model: nn.Module) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.aliases: dict[str, str] = {}
        self.transient: set[str] = set()
        """Buffers that their module can make anew, which it says by not calling them persistent."""
        first_names: dict[Tensor, str] = {}
        for prefix, module in module_names(model):
            _require_savable(prefix, module)
            unsaved: set[str] = module.__dict__.get("_non_persistent_buffers_set", set())
            own = [*module.named_parameters(recurse=False, remove_duplicate=False)]
            buffers = [*module.named_buffers(recurse=False, remove_duplicate=False)]
            for key, tensor in [*own, *buffers]:
                name = f"{prefix}.{key}" if prefix else key
                if key in unsaved:
                    self.transient.add(name)
                first = first_names.setdefault(tensor, name)
                if first == name:
                    self.tensors[name] = tensor
                else:
                    self.aliases[name] = first

    def stored_as(self, name: str) -> str:
        """Return the name under which a tensor is listed."""
        return self.aliases.get(name, name)

    def contents(self) -> dict[str, Tensor]:
        """Return what goes into the file: copies in memory of their own, on the CPU."""
        return {name: _copy(name, tensor) for name, tensor in self.tensors.items()}


@dataclass(frozen=True)
class SavedTensors:
    """What a file holds of a model's tensors."""

    values: dict[str, Tensor]
    aliases: dict[str, str]
    """From each further name of a tensor to the name it is stored under."""
    transient: set[str]
    """Names of buffers that the model could have done without."""

    def find_mismatch(self, table: TensorTable) -> str | None:
        """Return the first way in which a model's tensors are not these, or None."""
        here, there = {*table.tensors, *table.aliases}, {*self.values, *self.aliases}
        for name in [*table.tensors, *table.aliases]:
            if name not in there and name not in table.transient:
                return f"{name!r} is missing in the file."
        for name in [*self.values, *self.aliases]:
            if name not in here and name not in self.transient:
                return f"{name!r} is in the file, and the model has no such tensor."
        both = here & there
        for name, first in sorted(self.aliases.items()):
            if {name, first} <= both and table.stored_as(name) != table.stored_as(first):
                return f"{name!r} and {first!r} are one tensor in the file and two in the model."
        for name, first in sorted(table.aliases.items()):
            if {name, first} <= both and self.stored_as(name) != self.stored_as(first):
                return f"{name!r} and {first!r} are two tensors in the file and one in the model."
        for name, tensor in table.tensors.items():
            shape = self.values[self.stored_as(name)].shape if name in there else tensor.shape
            if shape != tensor.shape and name not in table.transient:
                return f"{name!r} is {list(shape)} in the file and {list(tensor.shape)} in it."
        return None

    def fill(self, table: TensorTable) -> None:
        """Give the tensors of a model these values and dtypes."""
        for name, tensor in table.tensors.items():
            if self.stored_as(name) in self.values:
                _put(tensor, self.values[self.stored_as(name)])

    def stored_as(self, name: str) -> str:
        """Return the name under which a tensor's value is stored."""
        return self.aliases.get(name, name)


def _require_savable(prefix: str, module: nn.Module) -> None:
    if type(module).get_extra_state is not nn.Module.get_extra_state:
        where = repr(prefix) if prefix else "the model"
        raise SavedModelError(
            f"{where} keeps extra state (get_extra_state), which is not saved without pickling; "
            "move it into buffers."
        )


def _copy(name: str, tensor: Tensor) -> Tensor:
    is_odd = tensor.is_quantized or (tensor.is_complex() and tensor.dtype != torch.complex64)
    if tensor.layout != torch.strided or tensor.is_meta or is_odd:
        raise SavedModelError(
            f"{name!r} is not an ordinary tensor ({tensor.layout}, {tensor.device}, "
            f"{tensor.dtype}); only dense tensors with values can be saved."
        )
    return tensor.detach().to("cpu", copy=True).contiguous()


def _put(tensor: Tensor, value: Tensor) -> None:
    """Write a value into a tensor; where its dtype or size differs, into memory of its own."""
    is_spread = any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True))
    if tensor.dtype == value.dtype and tensor.shape == value.shape and not is_spread:
        with torch.no_grad():
            tensor.copy_(value)
    else:
        tensor.data = value.to(tensor.device, copy=True)

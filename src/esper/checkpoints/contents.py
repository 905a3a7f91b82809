"""A state as the bytes of its two files, and back. Nothing is ever pickled."""

from __future__ import annotations

import json
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from esper.checkpoints.plain_values import require_plain
from esper.checkpoints.state import State
from esper.errors import CheckpointError

TENSORS_FILE = "state.safetensors"
FACTS_FILE = "state.json"

_DTYPES = {
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
}


def encode(state: State) -> dict[str, bytes]:
    """Return what the files of a state hold, by file name.

    Raises:
        CheckpointError: If a fact or a tensor cannot be saved; the message names it.
    """
    require_plain(state.facts)
    copies = {name: _copy(name, tensor) for name, tensor in state.tensors.items()}
    # The file of tensors has an order of its own; that of the state is kept beside it.
    plain = {"facts": state.facts, "tensors": list(copies)}
    return {TENSORS_FILE: save(copies), FACTS_FILE: json.dumps(plain).encode("ascii")}


def decode(files: dict[str, bytes]) -> State:
    """Return the state of which :func:`encode` made these files.

    Raises:
        CheckpointError: If they are not such files.
    """
    try:
        plain: dict[str, Any] = json.loads(files[FACTS_FILE])
        tensors = load(files[TENSORS_FILE])
        facts, names = cast("dict[str, Any]", plain["facts"]), cast("list[str]", plain["tensors"])
        ordered = {name: tensors.pop(name) for name in names}
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"the files of a state cannot be understood: {error!r}") from error
    if tensors:
        raise CheckpointError(f"{FACTS_FILE} does not name the tensors {sorted(tensors)}.")
    return State(ordered, facts)


def _copy(name: object, tensor: object) -> Tensor:
    """Return a tensor's values in memory of their own, on the CPU."""
    if not isinstance(name, str) or name in ("", "__metadata__") or not _is_unicode(name):
        raise CheckpointError(
            f"a tensor is named {name!r}; a name is a string of Unicode characters, neither empty "
            "nor '__metadata__'."
        )
    if not isinstance(tensor, Tensor):
        raise CheckpointError(
            f"{name!r} is a {type(tensor).__name__} among the tensors; plain values are facts."
        )
    if tensor.layout != torch.strided or tensor.is_meta or tensor.dtype not in _DTYPES:
        raise CheckpointError(
            f"{name!r} is not an ordinary tensor ({tensor.layout}, {tensor.device}, "
            f"{tensor.dtype}); only dense tensors with values can be saved, and complex ones "
            "as complex64 or by torch.view_as_real."
        )
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    return plain.clone(memory_format=torch.contiguous_format)


def _is_unicode(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True

"""A state as the contents of its two files, and back. Nothing is ever pickled."""

from __future__ import annotations

import json
from typing import Any, cast

import torch
from torch import Tensor

from esper.checkpoints.plain_values import require_plain
from esper.checkpoints.state import State
from esper.checkpoints.tensor_file import has_code, pack, unpack
from esper.errors import CheckpointError

TENSORS_FILE = "state.safetensors"
FACTS_FILE = "state.json"

Pieces = list[memoryview]
"""What a file holds, in pieces that are written one after the other."""


def encode(state: State) -> dict[str, Pieces]:
    """Return what the files of a state hold, by file name.

    Raises:
        CheckpointError: If a fact or a tensor cannot be saved; the message names it.
    """
    require_plain(state.facts)
    for name, tensor in state.tensors.items():
        _require_savable(name, tensor)
    # The file of tensors has an order of its own; that of the state is kept beside it.
    plain = {"facts": state.facts, "tensors": list(state.tensors)}
    facts = json.dumps(plain).encode("ascii")
    return {TENSORS_FILE: pack(state.tensors), FACTS_FILE: [memoryview(facts)]}


def decode(files: dict[str, bytes]) -> State:
    """Return the state of which :func:`encode` made these files.

    Raises:
        CheckpointError: If they are not such files.
    """
    try:
        plain: dict[str, Any] = json.loads(files[FACTS_FILE])
        tensors = unpack(files[TENSORS_FILE])
        facts, names = cast("dict[str, Any]", plain["facts"]), cast("list[str]", plain["tensors"])
        ordered = {name: tensors.pop(name) for name in names}
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"the files of a state cannot be understood: {error!r}") from error
    if tensors:
        raise CheckpointError(f"{FACTS_FILE} does not name the tensors {sorted(tensors)}.")
    return State(ordered, facts)


def _require_savable(name: object, tensor: object) -> None:
    if not isinstance(name, str) or name in ("", "__metadata__") or not _is_unicode(name):
        raise CheckpointError(
            f"a tensor is named {name!r}; a name is a string of Unicode characters, neither empty "
            "nor '__metadata__'."
        )
    if not isinstance(tensor, Tensor):
        raise CheckpointError(
            f"{name!r} is a {type(tensor).__name__} among the tensors; plain values are facts."
        )
    if tensor.layout != torch.strided or tensor.is_meta or not has_code(tensor.dtype):
        raise CheckpointError(
            f"{name!r} is not an ordinary tensor ({tensor.layout}, {tensor.device}, "
            f"{tensor.dtype}); only dense tensors with values can be saved, and complex ones "
            "as complex64 or by torch.view_as_real."
        )


def _is_unicode(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True

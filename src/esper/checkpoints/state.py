"""What a checkpoint holds: tensors by name, and plain values beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from esper.errors import CheckpointError


@dataclass(frozen=True, eq=False)
class State:
    """Tensors and plain values from which something goes on where it was."""

    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Tensors by name; parts of a name are separated by ``/``."""

    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    """What JSON can say: None, bool, int, float (also NaN, infinite), str, lists and dicts."""


def merge(parts: Mapping[str, State]) -> State:
    """Return the states of several parts as one; :func:`split` takes it apart again.

    Names of tensors get the name of their part and a ``/`` in front.

    Raises:
        CheckpointError: If the name of a part is empty, holds a ``/`` or is no string.
    """
    merged = State()
    for part, state in parts.items():
        if not isinstance(part, str) or not part or "/" in part:
            raise CheckpointError(
                f"a part of a state is named {part!r}; a name is a string that is not empty and "
                "has no '/' in it."
            )
        merged.facts[part] = state.facts
        merged.tensors.update({f"{part}/{name}": t for name, t in state.tensors.items()})
    return merged


def split(state: State) -> dict[str, State]:
    """Return the parts, by name, that :func:`merge` made a state of.

    Raises:
        CheckpointError: If the state is not one that :func:`merge` made.
    """
    parts: dict[str, State] = {}
    for part, facts in state.facts.items():
        if not isinstance(facts, dict):
            raise CheckpointError(
                f"the state has no parts: its fact {part!r} is a {type(facts).__name__}; only "
                "states made by merge can be split."
            )
        parts[part] = State({}, facts)  # pyright: ignore[reportUnknownArgumentType]
    for name, tensor in state.tensors.items():
        part, slash, rest = name.partition("/")
        if not slash or part not in parts:
            raise CheckpointError(
                f"tensor {name!r} belongs to none of the parts {', '.join(parts) or '(none)'}; "
                "only states made by merge can be split."
            )
        parts[part].tensors[rest] = tensor
    return parts

"""Gymnasium spaces as plain values, so that a saved model knows its observations and actions."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from gymnasium import spaces

from esper.errors import CheckpointError, UnsupportedEnvironmentError
from esper.simic.policy.action_spec import is_box


def encode_space(space: spaces.Space[Any]) -> dict[str, Any]:
    """Return a space as JSON can hold it."""
    if is_box(space):
        return {
            "type": "Box",
            "low": _bounds(space.low),
            "high": _bounds(space.high),
            "shape": [int(n) for n in space.shape],
            "dtype": np.dtype(space.dtype).str,
        }
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        many = cast("spaces.MultiDiscrete[Any]", space)
        return {
            "type": "MultiDiscrete",
            "nvec": np.asarray(many.nvec).tolist(),
            "start": np.asarray(many.start).tolist(),
        }
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "shape": [int(n) for n in space.shape]}
    if isinstance(space, spaces.Dict):
        named = cast("dict[str, spaces.Space[Any]]", space.spaces)
        # Pairs, because the order of the parts is the order of features and heads.
        parts = [[str(name), encode_space(part)] for name, part in named.items()]
        return {"type": "Dict", "spaces": parts}
    if isinstance(space, spaces.Tuple):
        inner = cast("tuple[spaces.Space[Any], ...]", space.spaces)
        return {"type": "Tuple", "spaces": [encode_space(part) for part in inner]}
    raise UnsupportedEnvironmentError(f"the space {space} cannot be saved.")


def decode_space(values: dict[str, Any]) -> spaces.Space[Any]:
    """Return the space that :func:`encode_space` described."""
    kind = values.get("type")
    if kind == "Box":
        shape, dtype = tuple(values["shape"]), np.dtype(values["dtype"])
        low, high = (
            np.broadcast_to(np.array(values[end], np.float64), shape).astype(dtype)
            for end in ("low", "high")
        )
        return spaces.Box(low, high, shape, dtype.type)  # type: ignore[arg-type]
    if kind == "Discrete":
        return spaces.Discrete(values["n"], start=values["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(values["nvec"], start=values["start"])
    if kind == "MultiBinary":
        shape = values["shape"]
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    if kind == "Dict":
        return spaces.Dict([(name, decode_space(part)) for name, part in values["spaces"]])
    if kind == "Tuple":
        return spaces.Tuple([decode_space(part) for part in values["spaces"]])
    raise CheckpointError(f"a saved space has type {kind!r}, which is unknown.")


def is_same_space(space: spaces.Space[Any], other: spaces.Space[Any]) -> bool:
    """Return whether spaces are equal and every ``Dict`` has its parts in the same order.

    Gymnasium's comparison ignores the order.
    """
    return space == other and str(space) == str(other)


def _bounds(values: np.ndarray[Any, Any]) -> Any:
    """Return bounds as one number if they are all the same."""
    flat = np.asarray(values, np.float64)
    first = float(flat.flat[0]) if flat.size else 0.0
    return first if (flat == first).all() else flat.tolist()

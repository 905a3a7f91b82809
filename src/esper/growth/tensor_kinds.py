"""The kinds of tensor that a slot can sit on."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import cast

from torch import Tensor


class TensorKind(Enum):
    """What the axes of a block's output mean."""

    FEATURE_MAP = "feature map [B, C, H, W]"
    SEQUENCE = "sequence [B, T, D]"
    VECTOR = "vector [B, D]"


_KIND_BY_RANK = {4: TensorKind.FEATURE_MAP, 3: TensorKind.SEQUENCE, 2: TensorKind.VECTOR}


def kind_of(value: object) -> TensorKind | None:
    """Return the kind of a block's output, or None if no seed can live on it."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return None
    return _KIND_BY_RANK.get(value.ndim)


def width_of(shape: Sequence[int], kind: TensorKind) -> int:
    """Return the number of channels or features of a tensor of this shape."""
    return int(shape[1] if kind == TensorKind.FEATURE_MAP else shape[-1])


def describe(value: object) -> str:
    """Return in a few words what a block gave back."""
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"a {dtype} tensor of shape {list(value.shape)}"
    if isinstance(value, (tuple, list)):
        parts = cast(Sequence[object], value)
        return f"a {type(parts).__name__} of ({', '.join(map(describe, parts))})"
    return "nothing" if value is None else f"a {type(value).__name__}"

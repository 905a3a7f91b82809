"""What an agent needs to know of an action: its heads, their sizes and which of them matter when.

Shapes: ``H`` heads, ``K`` choices of the widest head, ``O`` ops, that is choices of the op head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from esper.errors import (
    ActionSpecError,
    DtypeError,
    ShapeError,
    UnknownHeadError,
    ValueRangeError,
    did_you_mean,
)

MaskLike = Tensor | np.ndarray


@dataclass(frozen=True, kw_only=True)
class ActionSpec:
    """An action made of several choices (*heads*), one of which, the *op*, decides what it reads.

    A head matters at a step only if the op that was taken reads it. The op itself matters at
    every step: a specification that says otherwise cannot be built, so the number of heads that
    matter at a step is never zero and nothing that divides by it needs a guard.
    """

    names: tuple[str, ...]
    """The heads, in the order of an action's columns."""

    sizes: tuple[int, ...]
    """How many choices each head has."""

    op_head: str
    """The head that decides which heads matter."""

    relevance: tuple[tuple[bool, ...], ...]
    """``relevance[op][head]``: whether that op reads that head."""

    def __post_init__(self) -> None:
        # Lists and arrays are taken too; a specification is hashed, so it keeps tuples.
        object.__setattr__(self, "names", tuple(str(name) for name in self.names))
        object.__setattr__(self, "sizes", tuple(self.sizes))
        _check_heads(self.names, self.sizes, self.op_head)
        object.__setattr__(self, "sizes", tuple(int(size) for size in self.sizes))
        table = tuple(tuple(bool(entry) for entry in row) for row in self.relevance)
        object.__setattr__(self, "relevance", table)
        _check_relevance(table, self)

    @classmethod
    def independent(cls, sizes: Sequence[int], names: Sequence[str] | None = None) -> ActionSpec:
        """Describe an action whose heads all matter at every step, as in ``MultiDiscrete``."""
        heads = tuple(names) if names is not None else tuple(f"head_{i}" for i in range(len(sizes)))
        if not heads:
            raise ActionSpecError("sizes is empty; an action needs at least one head.")
        table = ((True,) * len(heads),) * int(sizes[0])
        widths = tuple(int(size) for size in sizes)
        return cls(names=heads, sizes=widths, op_head=heads[0], relevance=table)

    @classmethod
    def from_space(cls, space: spaces.Space[Any]) -> ActionSpec:
        """Describe a Gymnasium ``MultiDiscrete`` or ``Discrete`` action space."""
        if isinstance(space, spaces.Discrete):
            starts, sizes = [int(space.start)], [int(space.n)]
        elif isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
            starts, sizes = [int(first) for first in space.start], [int(n) for n in space.nvec]
        else:
            raise ActionSpecError(
                f"the action space is {space}; a Discrete or a flat MultiDiscrete is needed."
            )
        if any(starts):
            raise ActionSpecError(f"the action space {space} does not start at 0; it must.")
        return cls.independent(sizes)

    @property
    def n_heads(self) -> int:
        """How many heads an action has."""
        return len(self.names)

    @property
    def n_choices(self) -> int:
        """How many choices the widest head has: the width that every head is padded to."""
        return max(self.sizes)

    @property
    def op_index(self) -> int:
        """The column of an action that holds the op."""
        return self.names.index(self.op_head)

    def index(self, head: str) -> int:
        """Return the column of an action that holds ``head``."""
        if head not in self.names:
            allowed = ", ".join(self.names)
            hint = did_you_mean(head, self.names)
            raise UnknownHeadError(f"there is no head {head!r}; the heads are {allowed}.{hint}")
        return self.names.index(head)

    def relevant_heads(self, ops: Tensor) -> Tensor:
        """Return which heads the taken ops read: ``[...]`` integer ops to ``[..., H]`` bool."""
        if ops.is_floating_point() or ops.dtype == torch.bool:
            raise DtypeError(f"ops has dtype {ops.dtype}; an integer dtype is needed.")
        if ops.numel() and not 0 <= int(ops.min()) <= int(ops.max()) < len(self.relevance):
            raise ValueRangeError(
                f"ops holds {int(ops.min())} to {int(ops.max())}; "
                f"the ops are 0 to {len(self.relevance) - 1}."
            )
        return relevance_table(self, ops.device)[ops.long()]

    def available_heads(self, op_masks: Tensor) -> Tensor:
        """Return which heads a legal op could read: ``[..., O]`` bool to ``[..., H]`` bool."""
        n_ops = len(self.relevance)
        if op_masks.dtype != torch.bool:
            raise DtypeError(f"op_masks has dtype {op_masks.dtype}; torch.bool is needed.")
        if op_masks.ndim == 0 or op_masks.shape[-1] != n_ops:
            shape = tuple(op_masks.shape)
            raise ShapeError(f"op_masks has shape {shape}; its last axis must be the {n_ops} ops.")
        n_readers = op_masks.float() @ relevance_table(self, op_masks.device).float()
        return n_readers > 0

    def pad_masks(self, masks: Mapping[str, MaskLike] | Sequence[MaskLike]) -> Tensor:
        """Return per-head masks ``[B, size]`` as one bool tensor ``[B, H, K]``.

        Takes a mapping from head name to mask or a sequence in the order of ``names``; the masks
        may be tensors or arrays (Gymnasium's ``info["action_mask"]`` is such a sequence).
        """
        if isinstance(masks, Mapping):
            for head in masks:
                self.index(head)
            missing = [name for name in self.names if name not in masks]
            rows = [masks[name] for name in self.names if name in masks]
        else:
            missing = list(self.names[len(masks) :])
            rows = list(masks)
        if missing or len(rows) != self.n_heads:
            raise ShapeError(
                f"masks has {len(rows)} heads, without {missing}; one mask for each of "
                f"{', '.join(self.names)} is needed."
            )
        tensors = [torch.as_tensor(row).bool() for row in rows]
        batch = tensors[0].shape[0] if tensors[0].ndim == 2 else -1
        for name, size, mask in zip(self.names, self.sizes, tensors, strict=True):
            if tuple(mask.shape) != (batch, size):
                raise ShapeError(
                    f"the mask of head {name!r} has shape {tuple(mask.shape)}; "
                    f"[batch, {size}] with one batch size for all heads is needed."
                )
        padded = tensors[0].new_zeros(batch, self.n_heads, self.n_choices)
        for column, (size, mask) in enumerate(zip(self.sizes, tensors, strict=True)):
            padded[:, column, :size] = mask
        return padded


@lru_cache(maxsize=64)
def all_choices(spec: ActionSpec, device: torch.device) -> Tensor:
    """Return every choice of every head, ``[H, K]`` bool: False where a head is padded."""
    rows = [[k < size for k in range(spec.n_choices)] for size in spec.sizes]
    return torch.tensor(rows, dtype=torch.bool, device=device)


@lru_cache(maxsize=64)
def relevance_table(spec: ActionSpec, device: torch.device) -> Tensor:
    """Return the relevance table of a specification as a bool tensor ``[O, H]`` on a device."""
    return torch.tensor(spec.relevance, dtype=torch.bool, device=device)


def _check_heads(names: tuple[str, ...], sizes: tuple[int, ...], op_head: str) -> None:
    if len(names) != len(sizes) or not names:
        raise ActionSpecError(
            f"there are {len(names)} names and {len(sizes)} sizes; each head needs one of each."
        )
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ActionSpecError(f"the heads {repeated} are named twice; names must differ.")
    for name, size in zip(names, sizes, strict=True):
        if not isinstance(size, Integral) or size < 1:
            raise ActionSpecError(f"head {name!r} has {size!r} choices; it needs at least 1.")
    if op_head not in names:
        hint = did_you_mean(op_head, names)
        raise ActionSpecError(f"op_head is {op_head!r}; the heads are {', '.join(names)}.{hint}")


def _check_relevance(table: tuple[tuple[bool, ...], ...], spec: ActionSpec) -> None:
    n_ops = spec.sizes[spec.op_index]
    if len(table) != n_ops:
        raise ActionSpecError(
            f"relevance has {len(table)} rows; head {spec.op_head!r} has {n_ops} choices "
            "and each needs a row."
        )
    for op, row in enumerate(table):
        if len(row) != spec.n_heads:
            raise ActionSpecError(
                f"relevance row {op} has {len(row)} entries; there are {spec.n_heads} heads."
            )
        if not row[spec.op_index]:
            raise ActionSpecError(
                f"relevance says that op {op} does not read head {spec.op_head!r}; "
                "the op matters at every step, so its entry must be true for every op."
            )

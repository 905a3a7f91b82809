"""The structure of an action: its heads, their sizes, and which heads matter when.

Shapes: ``H`` heads, ``D`` discrete heads (the first of the H), ``K`` choices of the widest discrete
head, ``O`` ops (choices of the op head).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any, TypeGuard, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from esper.errors import (
    ActionSpecError,
    UnknownHeadError,
    ValueRangeError,
    did_you_mean,
)
from esper.simic.tensors import INTEGERS, check_tensor


@dataclass(frozen=True, kw_only=True)
class ActionSpec:
    """An action made of several *heads*, one of which, the *op*, decides which heads matter.

    A head is a choice among a few (discrete) or a vector of real numbers (continuous). It matters
    at a step only if the op that was taken reads it. The op itself matters at every step: a
    specification that says otherwise cannot be built, so the number of heads that matter at a
    step is never zero and nothing that divides by it needs a guard.
    """

    names: tuple[str, ...]
    """The heads: discrete ones in the order of an action's columns, then continuous ones."""

    sizes: tuple[int, ...]
    """Number of choices of each discrete head."""

    op_head: str | None = None
    """The discrete head that decides which heads matter; None if there is no discrete head."""

    relevance: tuple[tuple[bool, ...], ...] = ()
    """``relevance[op][head]``: whether that op reads that head. One row without an op head."""

    dims: tuple[int, ...] = ()
    """Length of the vector of each continuous head."""

    def __post_init__(self) -> None:
        # Lists and arrays are accepted; a specification is hashed, so it keeps tuples.
        object.__setattr__(self, "names", tuple(str(name) for name in self.names))
        object.__setattr__(self, "sizes", tuple(self.sizes))
        object.__setattr__(self, "dims", tuple(self.dims))
        _check_heads(self)
        object.__setattr__(self, "sizes", tuple(int(size) for size in self.sizes))
        object.__setattr__(self, "dims", tuple(int(dim) for dim in self.dims))
        table = tuple(tuple(bool(entry) for entry in row) for row in self.relevance)
        object.__setattr__(self, "relevance", table)
        _check_relevance(table, self)
        # Of numbers alone, which every process hashes alike: a specification may be pickled.
        object.__setattr__(self, "_hash", hash((self.sizes, table, self.dims)))

    def __hash__(self) -> int:
        # Kept, because tables of a specification are looked up in every minibatch.
        return self.__dict__["_hash"]

    @classmethod
    def independent(
        cls,
        sizes: Sequence[int],
        names: Sequence[str] | None = None,
        *,
        dims: Sequence[int] = (),
    ) -> ActionSpec:
        """Describe an action whose heads all matter at every step, as in ``MultiDiscrete``."""
        n_heads = len(sizes) + len(dims)
        heads = tuple(names) if names is not None else tuple(f"head_{i}" for i in range(n_heads))
        if not heads:
            raise ActionSpecError("sizes is empty; an action needs at least one head.")
        n_ops = int(sizes[0]) if len(sizes) else 1
        return cls(
            names=heads,
            sizes=tuple(int(size) for size in sizes),
            op_head=heads[0] if len(sizes) else None,
            relevance=((True,) * len(heads),) * n_ops,
            dims=tuple(int(dim) for dim in dims),
        )

    @classmethod
    def from_space(cls, space: spaces.Space[Any]) -> ActionSpec:
        """Describe a Gymnasium action space whose heads all matter at every step.

        ``Discrete``, ``MultiDiscrete``, ``MultiBinary`` (a head of two choices for each bit) and
        ``Box`` (one continuous head), or a ``Dict`` or ``Tuple`` of them.
        """
        names, sizes, dims = list[str](), list[int](), list[int]()
        continuous: list[str] = []
        for name, part in action_parts(space):
            if isinstance(part, spaces.Box):
                continuous.append(name or "action")
                dims.append(int(np.prod(part.shape)))
                continue
            own = part_sizes(part)
            sizes += own
            is_one = name and len(own) == 1
            names += [name] if is_one else [f"{name or 'head'}_{i}" for i in range(len(own))]
        return cls.independent(sizes, [*names, *continuous], dims=dims)

    @property
    def n_heads(self) -> int:
        """Number of heads, discrete and continuous."""
        return len(self.names)

    @property
    def n_discrete(self) -> int:
        """Number of discrete heads: the columns of an action."""
        return len(self.sizes)

    @property
    def n_numbers(self) -> int:
        """Total length of the vectors of all continuous heads."""
        return sum(self.dims)

    @property
    def n_choices(self) -> int:
        """Number of choices of the widest discrete head, to which every one is padded."""
        return max(self.sizes, default=0)

    @property
    def op_index(self) -> int:
        """The column of an action that holds the op; 0 if there is no discrete head."""
        return 0 if self.op_head is None else self.names.index(self.op_head)

    @property
    def is_independent(self) -> bool:
        """Whether every head matters at every step."""
        return all(all(row) for row in self.relevance)

    def index(self, head: str) -> int:
        """Return the column of an action that holds ``head``."""
        if head not in self.names:
            allowed = ", ".join(self.names)
            hint = did_you_mean(head, self.names)
            raise UnknownHeadError(f"there is no head {head!r}; the heads are {allowed}.{hint}")
        return self.names.index(head)

    def relevant_heads(self, ops: Tensor) -> Tensor:
        """Return which heads the taken ops read: ``[...]`` integer ops to ``[..., H]`` bool."""
        check_tensor("ops", ops, dtype=INTEGERS)
        if ops.numel() and not 0 <= int(ops.min()) <= int(ops.max()) < len(self.relevance):
            raise ValueRangeError(
                f"ops holds {int(ops.min())} to {int(ops.max())}; "
                f"the ops are 0 to {len(self.relevance) - 1}."
            )
        return relevance_table(self, ops.device)[ops.long()]

    def available_heads(self, op_masks: Tensor) -> Tensor:
        """Return which heads a legal op could read: ``[..., O]`` bool to ``[..., H]`` bool."""
        shape = (*op_masks.shape[:-1], len(self.relevance))
        check_tensor("op_masks", op_masks, shape, torch.bool)
        n_readers = op_masks.float() @ relevance_table(self, op_masks.device).float()
        return n_readers > 0


def action_parts(space: spaces.Space[Any]) -> list[tuple[str, spaces.Space[Any]]]:
    """Return the parts of an action space, each with its name in a ``Dict`` or ``Tuple``.

    Raises:
        ActionSpecError: If a part is of another kind than :meth:`ActionSpec.from_space` takes.
    """
    if isinstance(space, spaces.Dict):
        named = cast("dict[str, spaces.Space[Any]]", space.spaces)
        parts = [(str(key), part) for key, part in named.items()]
    elif isinstance(space, spaces.Tuple):
        inner = cast("tuple[spaces.Space[Any], ...]", space.spaces)
        parts = [(f"part_{i}", part) for i, part in enumerate(inner)]
    else:
        parts = [("", space)]
    for name, part in parts:
        is_real = is_box(part) and np.issubdtype(part.dtype, np.floating)
        is_flat = isinstance(part, (spaces.MultiDiscrete, spaces.MultiBinary)) and (
            len(part.shape) == 1
        )
        if not (is_flat or is_real or isinstance(part, spaces.Discrete)):
            where = f" ({name!r})" if name else ""
            raise ActionSpecError(
                f"the action space{where} is {part}; Discrete, a flat MultiDiscrete or "
                "MultiBinary, a Box of real numbers, or a Dict or Tuple of these is needed."
            )
    return parts


def is_box(space: spaces.Space[Any]) -> TypeGuard[spaces.Box[Any]]:
    """Return whether a space is a ``Box``, of whatever dtype."""
    return isinstance(space, spaces.Box)


def part_sizes(part: spaces.Space[Any]) -> list[int]:
    """Return the number of choices of each discrete head of a part of an action space."""
    if isinstance(part, spaces.Discrete):
        return [int(part.n)]
    if isinstance(part, spaces.MultiDiscrete):
        return [int(n) for n in part.nvec]
    assert isinstance(part, spaces.MultiBinary), "action_parts checks the kind"
    return [2] * int(part.shape[0])


@lru_cache(maxsize=64)
def all_choices(spec: ActionSpec, device: torch.device) -> Tensor:
    """Return every choice of every discrete head, ``[D, K]`` bool: False where padded."""
    widths = torch.tensor(spec.sizes, dtype=torch.int64, device=device)
    return torch.arange(spec.n_choices, device=device) < widths.unsqueeze(1)


@lru_cache(maxsize=64)
def relevance_table(spec: ActionSpec, device: torch.device) -> Tensor:
    """Return the relevance table of a specification as a bool tensor ``[O, H]`` on a device."""
    return torch.tensor(spec.relevance, dtype=torch.bool, device=device)


_INDEPENDENT = "If every head always matters, write ActionSpec.independent(sizes, names)."


def _check_heads(spec: ActionSpec) -> None:
    names, sizes, dims = spec.names, spec.sizes, spec.dims
    if len(names) != len(sizes) + len(dims) or not names:
        raise ActionSpecError(
            f"there are {len(names)} names, {len(sizes)} sizes and {len(dims)} dims; each head "
            "needs a name, and a size or a dim."
        )
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ActionSpecError(f"the heads {repeated} are named twice; names must differ.")
    for name, size in zip(names, [*sizes, *dims], strict=True):
        if not isinstance(size, Integral) or size < 1:
            raise ActionSpecError(f"head {name!r} has size {size!r}; it needs at least 1.")
    discrete = names[: len(sizes)]
    if spec.op_head is None and sizes:
        raise ActionSpecError(
            f"op_head is None; it must be one of {', '.join(discrete)}. {_INDEPENDENT}"
        )
    if spec.op_head is not None and spec.op_head not in discrete:
        hint = did_you_mean(spec.op_head, discrete)
        raise ActionSpecError(
            f"op_head is {spec.op_head!r}; the discrete heads are {', '.join(discrete)}.{hint}"
        )


def _check_relevance(table: tuple[tuple[bool, ...], ...], spec: ActionSpec) -> None:
    n_ops = spec.sizes[spec.op_index] if spec.sizes else 1
    if not table:
        raise ActionSpecError(f"relevance is empty; each op needs a row. {_INDEPENDENT}")
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
        if spec.op_head is None and not all(row):
            raise ActionSpecError("without an op head, every head matters at every step.")
        if not row[spec.op_index]:
            raise ActionSpecError(
                f"relevance says that op {op} does not read head {spec.op_head!r}; "
                "the op matters at every step, so its entry must be true for every op."
            )

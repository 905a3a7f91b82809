"""Reading masks of legal choices in the spellings that environments and callers have.

Shapes: ``E`` environments, ``D`` discrete heads, ``K`` choices of the widest, ``P`` choices of all
discrete heads side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NoReturn, Protocol, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from esper.errors import ActionSpecError, DtypeError, ShapeError, ValueRangeError
from esper.simic.policy.action_spec import (
    ActionSpec,
    action_parts,
    all_choices,
    is_box,
    part_sizes,
)
from esper.simic.policy.masks import ChoiceMasks, Condition, every_choice
from esper.simic.tensors import check_tensor

CONDITION_SIGN = "|"
"""``"door|move"`` in a dict of masks is the mask of ``door`` given each choice of ``move``."""


_BIT_MASKS = {0: (True, False), 1: (False, True), 2: (True, True)}
"""What a ``MultiBinary`` calls a bit that must be 0, must be 1, or may be either."""


@dataclass(frozen=True, eq=False)
class ActionPart:
    """One part of an action space: the columns or numbers of an action that it takes."""

    name: str
    space: spaces.Space[Any]
    rows: slice

    @property
    def is_continuous(self) -> bool:
        """Whether it is a ``Box``."""
        return isinstance(self.space, spaces.Box)

    @property
    def columns(self) -> list[int]:
        """The discrete heads of the part."""
        return [] if self.is_continuous else list(range(self.rows.start, self.rows.stop))

    def split(self, mask: Any) -> list[Any]:
        """Return a mask as ``space.sample(mask=)`` takes it as a mask of each discrete head."""
        if mask is None:
            return [None] * len(self.columns)
        if isinstance(self.space, spaces.MultiBinary) and np.shape(mask) == self.space.shape:
            return [_BIT_MASKS.get(bit, np.full(2, bit)) for bit in np.asarray(mask).tolist()]
        return [mask] if isinstance(self.space, spaces.Discrete) else list(mask)


def parts_of(space: spaces.Space[Any]) -> list[ActionPart]:
    """Return the parts of an action space."""
    parts, n_columns, n_numbers = list[ActionPart](), 0, 0
    for name, part in action_parts(space):
        if is_box(part):
            first, n_numbers = n_numbers, n_numbers + int(np.prod(part.shape))
            parts.append(ActionPart(name, part, slice(first, n_numbers)))
        else:
            first, n_columns = n_columns, n_columns + len(part_sizes(part))
            parts.append(ActionPart(name, part, slice(first, n_columns)))
    return parts


MaskLike = ArrayLike | Sequence[ArrayLike | None] | Mapping[str, Any]
"""The legal choices, in any of the forms that :class:`MaskReader` reads."""


class MaskReader:
    """Reads the masks that environments give, in any of the usual forms.

    For one environment: a mask for each discrete head (a tuple or list), all of them as one flat
    array or as rows padded with 0, a dict by head name, or what ``sample(mask=)`` of a ``Tuple`` or
    ``Dict`` space takes. In a tuple or dict, None means that everything is legal; a ``Box`` has no
    other mask. A dict may also hold conditional masks: ``"door|move"`` is a table
    ``[choices of move, choices of door]``. Masks are bool, or 0 and 1.
    """

    def __init__(
        self, spec: ActionSpec, device: torch.device, space: spaces.Space[Any] | None = None
    ) -> None:
        self.spec, self._device = spec, device
        starts = np.cumsum([0, *spec.sizes])
        self._place = np.concatenate(
            [np.arange(size) + head * spec.n_choices for head, size in enumerate(spec.sizes)]
            or [np.zeros(0, np.int64)]
        )
        self._head_of = [head for head, size in enumerate(spec.sizes) for _ in range(size)]
        self._sizes = list(spec.sizes)
        self._flat_shapes = ((int(starts[-1]),), (spec.n_discrete, spec.n_choices))
        self._padding = np.setdiff1d(np.arange(spec.n_discrete * spec.n_choices), self._place)
        is_composed = isinstance(space, (spaces.Tuple, spaces.Dict))
        parts = parts_of(cast("spaces.Space[Any]", space)) if is_composed else []
        self._in_tuple = parts if isinstance(space, spaces.Tuple) else []
        self._in_dict = {part.name: part for part in parts if isinstance(space, spaces.Dict)}

    def read_batch(self, masks: Any) -> ChoiceMasks:
        """Read ``info["action_mask"]`` or ``action_masks()`` of a vector environment."""
        if isinstance(masks, Mapping):
            return self._read_named(cast("Mapping[str, Any]", masks))
        if isinstance(masks, (tuple, list)):
            return self.read_each(cast("Sequence[Any]", masks))
        array = np.asarray(masks)
        if array.dtype == object:
            return self.read_each(list(array))
        if array.shape[1:] not in self._flat_shapes:
            self._reject("the action masks of all environments have", array.shape)
        return self._from_flat(array)

    def read_each(self, masks: Sequence[Any]) -> ChoiceMasks:
        """Read the mask of each environment."""
        first = masks[0]
        missing = [env for env, mask in enumerate(masks) if mask is None]
        if missing and self._sizes:
            raise ShapeError(
                f"environment {missing[0]} gave no action mask; "
                "every environment needs one at every reset and step."
            )
        if missing:
            return self._join({}, len(masks))
        if isinstance(first, Mapping):
            names = set(cast("Mapping[str, Any]", first))
            for env, mask in enumerate(masks):
                if not isinstance(mask, Mapping) or set(cast("Mapping[str, Any]", mask)) != names:
                    raise ShapeError(
                        f"the action mask of environment {env} is {mask!r}; that of environment 0 "
                        f"is a dict with the names {sorted(names)}, and all need the same."
                    )
            return self._read_named({name: [mask[name] for mask in masks] for name in names})
        if isinstance(first, (tuple, list)) and not _is_flat(cast("Sequence[Any]", first)):
            return self._read_heads(masks)
        try:
            flat = np.stack(masks)
        except ValueError:
            flat = None
        if flat is None or flat.shape[1:] not in self._flat_shapes:
            shapes = [_shape(mask) for mask in masks]
            wrong = [env for env, shape in enumerate(shapes) if shape not in self._flat_shapes]
            env = (wrong or [env for env, shape in enumerate(shapes) if shape != shapes[0]])[0]
            self._reject(f"the action mask of environment {env} has", shapes[env])
        return self._from_flat(flat)

    def _read_heads(self, masks: Sequence[Any]) -> ChoiceMasks:
        """Read a tuple or list of masks of each environment."""
        n_heads, n_envs = len(self._sizes), len(masks)
        try:
            pieces = list(chain.from_iterable(masks))
            if [*map(len, pieces)] == self._sizes * n_envs and {*map(len, masks)} == {n_heads}:
                return self._from_flat(np.concatenate(pieces).reshape(n_envs, -1))
        except TypeError:
            pass
        split = [self._split(env, mask) for env, mask in enumerate(masks)]
        return self._join({head: [mask[head] for mask in split] for head in range(n_heads)}, n_envs)

    def _split(self, env: int, mask: Any) -> list[Any]:
        """Return the mask of each discrete head of one environment; None where it is free."""
        is_list = isinstance(mask, (tuple, list))
        heads: list[Any] = list(cast("Sequence[Any]", mask)) if is_list else []
        parts = self._in_tuple
        if len(heads) == len(parts) and all(
            one is None for one, part in zip(heads, parts, strict=True) if part.is_continuous
        ):
            pairs = zip(heads, parts, strict=True)
            heads = [head for one, part in pairs for head in part.split(one)]
        if len(heads) != len(self._sizes):
            self._reject(f"the action mask of environment {env} has", _shape(mask))
        return heads

    def _stack(self, head: int, masks: Sequence[Any]) -> NDArray[np.bool_]:
        """Return one head's mask of each environment as ``[E, size]``."""
        name, size = self.spec.names[head], self._sizes[head]
        try:
            array = np.stack(masks)
        except ValueError:
            array = np.zeros(0)
        if array.shape != (len(masks), size) or array.dtype == object:
            for env, mask in enumerate(masks):
                if mask is not None and _shape(mask) != (size,):
                    raise ShapeError(
                        f"the action mask of environment {env} has shape {_shape(mask)} for head "
                        f"{name!r}; ({size},) is needed."
                    )
            array = np.stack([np.ones(size) if mask is None else mask for mask in masks])
        return _as_flags(array, lambda _: name)

    def _from_flat(self, flat: NDArray[Any]) -> ChoiceMasks:
        """Return masks ``[E, P]``, or already padded ``[E, D, K]``, as the policy reads them."""
        if flat.ndim == 3:
            rows = flat.reshape(len(flat), -1)
            self._check_padding(rows[:, self._padding])
            flat = rows[:, self._place]
        flags = _as_flags(flat, lambda place: self.spec.names[self._head_of[place]])
        n_heads, n_choices = self._flat_shapes[1]
        padded = np.zeros((len(flags), n_heads * n_choices), np.bool_)
        padded[:, self._place] = flags
        legal = torch.from_numpy(padded.reshape(-1, n_heads, n_choices)).to(self._device)
        return ChoiceMasks(legal, is_padded=True)

    def _check_padding(self, padding: NDArray[Any]) -> None:
        """Refuse a choice beyond a head's last: the mask is of another space."""
        if padding.any():
            env, place = (int(i) for i in np.argwhere(padding)[0])
            head, choice = divmod(int(self._padding[place]), self.spec.n_choices)
            raise ShapeError(
                f"the action mask of environment {env} holds {padding[env, place]} for choice "
                f"{choice} of head {self.spec.names[head]!r}, which has size {self._sizes[head]}; "
                "pad rows with 0, or give a mask for each head in a tuple."
            )

    def _read_named(self, masks: Mapping[str, Any]) -> ChoiceMasks:
        """Read masks by the names of heads or of parts, conditional ones among them."""
        # Gymnasium marks the environments that gave a value by a flag under "_name".
        given = {
            name: list(value)
            for name, value in masks.items()
            if not (name.startswith("_") and name[1:] in masks)
        }
        for name in given:
            is_given = masks.get(f"_{name}") if f"_{name}" not in given else None
            if is_given is not None and not np.all(is_given):
                raise ShapeError(
                    f"environment {int(np.argmin(is_given))} gave no action mask for {name!r}, but "
                    "others did; all need the same names."
                )
        heads: dict[int, list[Any]] = {}
        for name, values in given.items():
            if CONDITION_SIGN not in name:
                heads |= self._read_name(name, values)
        conditions = [
            self._condition(name, values)
            for name, values in given.items()
            if CONDITION_SIGN in name
        ]
        joined = self._join(heads, len(next(iter(given.values()))))
        return replace(joined, conditions=self._in_order(conditions))

    def _read_name(self, name: str, masks: list[Any]) -> dict[int, list[Any]]:
        """Return the masks of the heads that a name stands for, by their columns."""
        part = self._in_dict.get(name)
        if part is None:
            column = self.spec.index(name)
            columns = [column] if column < self.spec.n_discrete else []
        else:
            columns = part.columns
        split = [[mask] if part is None else part.split(mask) for mask in masks]
        for env, (mask, heads) in enumerate(zip(masks, split, strict=True)):
            if mask is not None and not columns:
                raise ShapeError(
                    f"the action mask of environment {env} has a mask for {name!r}, which is a "
                    "Box; give None or leave it out."
                )
            if columns and len(heads) != len(columns):
                raise ShapeError(
                    f"the action mask of environment {env} has {len(heads)} masks for {name!r}; "
                    f"{len(columns)} are needed."
                )
        return {column: [heads[i] for heads in split] for i, column in enumerate(columns)}

    def _join(self, heads: Mapping[int, Sequence[Any]], n_envs: int) -> ChoiceMasks:
        """Return masks of some heads, by their columns; all choices of others are legal."""
        stacked = [
            self._stack(head, heads[head]) if head in heads else np.ones((n_envs, size), np.bool_)
            for head, size in enumerate(self._sizes)
        ]
        return self._from_flat(np.concatenate([np.zeros((n_envs, 0), np.bool_), *stacked], axis=1))

    def _in_order(self, conditions: list[Condition]) -> tuple[Condition, ...]:
        """Return conditions so that a head is restricted before it restricts another."""
        if len(conditions) < 2:
            return tuple(conditions)
        left = sorted(conditions, key=lambda one: one.parent != self.spec.op_index)
        ordered: list[Condition] = []
        while left:
            restricted = {one.child for one in left}
            free = [one for one in left if one.parent not in restricted]
            if not free:
                names = ", ".join(self.spec.names[one.child] for one in left)
                raise ActionSpecError(f"the conditional masks of {names} depend on each other.")
            ordered += free
            left = [one for one in left if one.parent in restricted]
        return tuple(ordered)

    def _condition(self, name: str, tables: list[Any]) -> Condition:
        child, parent = (self.spec.index(head) for head in name.split(CONDITION_SIGN, 1))
        sizes = [*self._sizes, *[0] * len(self.spec.dims)]
        needed = (sizes[parent], sizes[child])
        shapes = [_shape(table) for table in tables]
        if shapes != [needed] * len(tables):
            env = next(env for env, shape in enumerate(shapes) if shape != needed)
            raise ShapeError(
                f"the action mask of environment {env} has shape {shapes[env]} for {name!r}; "
                f"{needed} is needed."
            )
        flags = _as_flags(np.stack(tables), lambda _: name)
        return Condition(child, parent, torch.from_numpy(flags.copy()).to(self._device))

    def _reject(self, what: str, shape: tuple[int, ...]) -> NoReturn:
        sizes = self.spec.sizes
        raise ShapeError(
            f"{what} shape {tuple(shape)}; a mask for each head (sizes {sizes}), all of them as "
            f"one array of {sum(sizes)}, or a dict by head name is needed."
        )


def _as_flags(masks: NDArray[Any], name_of: Callable[[int], str]) -> NDArray[np.bool_]:
    """Return masks ``[E, ...]`` as bool; ``name_of`` tells the head of a place on the last axis."""
    if masks.dtype == np.bool_:
        return masks
    # The usual case, in few operations: this is done at every step.
    if masks.itemsize == 1 and not masks.tobytes().translate(None, b"\x00\x01"):
        return masks.view(np.bool_)
    if masks.dtype.kind not in "iuf":
        raise DtypeError(f"the action mask has dtype {masks.dtype}; bool, or 0 and 1, is needed.")
    flags = masks.astype(np.bool_)
    if (flags != masks).any():
        at = tuple(int(i) for i in np.argwhere(flags != masks)[0])
        raise ValueRangeError(
            f"the action mask of environment {at[0]} holds {masks[at]} for head "
            f"{name_of(at[-1])!r}; 1 or True is legal, 0 or False is not."
        )
    return flags


def _is_flat(mask: Sequence[Any]) -> bool:
    """Return whether a list is a mask itself and not one of masks."""
    kinds = (bool, int, float, np.generic)
    return len(mask) > 0 and isinstance(mask[0], kinds) and all(isinstance(m, kinds) for m in mask)


def _shape(mask: Any) -> tuple[int, ...]:
    """Return the shape of a mask, or the size of each of its parts if it has several shapes."""
    try:
        return np.shape(mask)
    except ValueError:
        return tuple(np.size(one) if one is not None else 0 for one in mask)


class PolicyMasks(Protocol):
    """Masks of some other kind that know their form for a policy."""

    def for_policy(self) -> ChoiceMasks:
        """Return the legal choices and what rules them out."""
        ...


def as_choice_masks(spec: ActionSpec, masks: Any, batch: int, device: torch.device) -> ChoiceMasks:
    """Return masks of a batch of environments as a policy needs them.

    None allows every choice. Besides what :class:`MaskReader` reads of many environments, they may
    be ``ChoiceMasks``, growth's ``ActionMasks``, or a bool tensor ``[B, D, K]``.
    """
    if masks is None:
        return every_choice(spec, device, batch)
    if hasattr(masks, "for_policy"):
        masks = cast(PolicyMasks, masks).for_policy()
    if isinstance(masks, Tensor):
        masks = ChoiceMasks(masks)
    elif not isinstance(masks, ChoiceMasks):
        masks = MaskReader(spec, device).read_batch(masks)
    choices = masks.to(device)
    check_tensor(
        "masks", choices.legal, [batch, spec.n_discrete, spec.n_choices], torch.bool, device
    )
    if not choices.is_padded:
        # A user's padding may hold anything; a choice beyond a head's last does not exist.
        choices = ChoiceMasks(choices.legal & all_choices(spec, device), choices.conditions)
    if choices.conditions:
        _check_conditions(spec, choices)
    return choices


def _check_conditions(spec: ActionSpec, choices: ChoiceMasks) -> None:
    """Refuse conditions that could not be applied, or not in this order."""
    # Without relevance to decide, the op is a head like any other.
    parents = set[int]() if spec.is_independent else {spec.op_index}
    for condition in choices.conditions:
        child, parent, table = condition.child, condition.parent, condition.table
        if child in parents:
            raise ActionSpecError(
                f"a condition restricts head {spec.names[child]!r} after it was drawn; the op "
                "cannot be restricted, and a head must be before it restricts another."
            )
        parents.add(parent)
        name = f"the condition of head {spec.names[child]!r} on {spec.names[parent]!r}"
        batch = [len(choices.legal)] if table.ndim == 3 else []
        needed = [*batch, spec.sizes[parent], spec.sizes[child]]
        check_tensor(name, table, needed, torch.bool, choices.legal.device)

"""Between an agent's decisions and an environment's action space: actions one way, masks the other.

Shapes: ``E`` environments, ``D`` discrete heads, ``K`` choices of the widest, ``P`` choices of all
discrete heads side by side, ``C`` numbers of continuous heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from esper.errors import ActionSpecError, ShapeError, UnsupportedEnvironmentError
from esper.simic.policy.action_spec import ActionSpec, action_parts, is_box, part_sizes
from esper.simic.policy.masks import ChoiceMasks, Condition

CONDITION_SIGN = "|"
"""``"door|move"`` in a dict of masks is the mask of ``door`` given each choice of ``move``."""


@dataclass(frozen=True, eq=False)
class _Part:
    """One part of an action space: the columns or numbers of an action that it takes."""

    name: str
    space: spaces.Space[Any]
    rows: slice

    @property
    def is_continuous(self) -> bool:
        return isinstance(self.space, spaces.Box)


class ActionCodec:
    """Converts decisions to actions of a Gymnasium space.

    Numbers of continuous heads are clipped to the bounds of their ``Box``, or squashed between
    them by tanh.
    """

    def __init__(self, space: spaces.Space[Any], spec: ActionSpec, *, squash: bool = False) -> None:
        self.space, self.spec, self.squash = space, spec, squash
        self._parts: list[_Part] = []
        sizes, dims = list[int](), list[int]()
        for name, part in action_parts(space):
            counts = dims if is_box(part) else sizes
            own = [int(np.prod(part.shape))] if is_box(part) else part_sizes(part)
            first = sum(dims) if counts is dims else len(sizes)
            counts += own
            end = sum(dims) if counts is dims else len(sizes)
            self._parts.append(_Part(name, part, slice(first, end)))
            if squash and is_box(part) and not part.is_bounded():
                raise UnsupportedEnvironmentError(
                    f"squash is on, but the action space {part} has no bounds; turn it off."
                )
        if tuple(sizes) != spec.sizes or tuple(dims) != spec.dims:
            raise UnsupportedEnvironmentError(
                f"the action space is {space}; the agent's heads have sizes {spec.sizes}"
                + (f" and dims {spec.dims}." if spec.dims or dims else ".")
            )

    def batch(self, actions: NDArray[np.int64], numbers: NDArray[np.float32] | None) -> Any:
        """Return actions ``[E, D]`` and numbers ``[E, C]`` as a vector environment takes them."""
        parts = [self._convert(part, actions, numbers) for part in self._parts]
        if isinstance(self.space, spaces.Dict):
            return {part.name: value for part, value in zip(self._parts, parts, strict=True)}
        return tuple(parts) if isinstance(self.space, spaces.Tuple) else parts[0]

    def each(self, actions: NDArray[np.int64], numbers: NDArray[np.float32] | None) -> list[Any]:
        """Return the same as a list with the action of each environment."""
        batch = self.batch(actions, numbers)
        if isinstance(batch, dict):
            named = cast("dict[str, Any]", batch)
            return [{name: named[name][i] for name in named} for i in range(len(actions))]
        if isinstance(batch, tuple):
            return list(zip(*cast("tuple[Any, ...]", batch), strict=True))
        return list(batch)

    def _convert(
        self, part: _Part, actions: NDArray[np.int64], numbers: NDArray[np.float32] | None
    ) -> Any:
        space = part.space
        if is_box(space):
            assert numbers is not None, "continuous heads draw numbers"
            values = numbers[:, part.rows].reshape(-1, *space.shape)
            if self.squash:
                values = space.low + 0.5 * (np.tanh(values) + 1.0) * (space.high - space.low)
            return np.clip(values, space.low, space.high).astype(space.dtype)
        if isinstance(space, spaces.Discrete):
            return actions[:, part.rows.start] + space.start
        if isinstance(space, spaces.MultiDiscrete):
            return actions[:, part.rows] + space.start
        return actions[:, part.rows].astype(np.int8)


class MaskReader:
    """Reads the masks that environments give, in any of the usual forms.

    For one environment: a mask for each discrete head (a tuple or list), all of them as one flat
    array, or a dict by head name. A dict may also hold conditional masks: ``"door|move"`` is a
    table ``[choices of move, choices of door]``.
    """

    def __init__(self, spec: ActionSpec, device: torch.device) -> None:
        self.spec, self._device = spec, device
        starts = np.cumsum([0, *spec.sizes])
        self._place = np.concatenate(
            [np.arange(size) + head * spec.n_choices for head, size in enumerate(spec.sizes)]
            or [np.zeros(0, np.int64)]
        )
        self._n_flat = int(starts[-1])
        self._sizes = list(spec.sizes)

    def read_batch(self, masks: Any) -> ChoiceMasks:
        """Read ``info["action_mask"]`` or ``action_masks()`` of a vector environment."""
        if isinstance(masks, Mapping):
            return self._read_named(cast("Mapping[str, Any]", masks))
        if isinstance(masks, (tuple, list)):
            return self.read_each(cast("Sequence[Any]", masks))
        array = np.asarray(masks)
        if array.dtype != object:
            return self._from_flat(array)
        return self.read_each(list(array))

    def read_each(self, masks: Sequence[Any]) -> ChoiceMasks:
        """Read the mask of each environment."""
        first = masks[0]
        missing = [env for env, mask in enumerate(masks) if mask is None]
        if missing:
            raise ShapeError(
                f"environment {missing[0]} gave no action mask but others did; "
                "every environment needs one at every reset and step."
            )
        if isinstance(first, Mapping):
            names = set(cast("Mapping[str, Any]", first))
            for env, mask in enumerate(masks):
                if not isinstance(mask, Mapping) or set(cast("Mapping[str, Any]", mask)) != names:
                    raise ShapeError(
                        f"the action mask of environment {env} is {mask!r}; that of environment 0 "
                        f"is a dict with the names {sorted(names)}, and all need the same."
                    )
            return self._read_named({name: [mask[name] for mask in masks] for name in names})
        if isinstance(first, (tuple, list)):
            pieces = [head for mask in masks for head in mask]
            try:
                fits = [*map(len, pieces)] == self._sizes * len(masks)
            except TypeError:
                fits = False
            if not fits:
                self._reject(tuple(np.size(head) for head in cast("Sequence[Any]", first)))
            return self._from_flat(np.concatenate(pieces).reshape(len(masks), -1))
        return self._from_flat(_stack(masks))

    def _from_flat(self, flat: NDArray[Any]) -> ChoiceMasks:
        """Return masks ``[E, P]``, or already padded ``[E, D, K]``, as the policy reads them."""
        spec = self.spec
        if flat.ndim == 3 and flat.shape[1:] == (spec.n_discrete, spec.n_choices):
            return ChoiceMasks(torch.from_numpy(flat.astype(np.bool_)).to(self._device))
        if flat.ndim != 2 or flat.shape[1] != self._n_flat:
            self._reject(flat.shape)
        padded = np.zeros((len(flat), spec.n_discrete * spec.n_choices), np.bool_)
        padded[:, self._place] = flat
        legal = torch.from_numpy(padded).view(-1, spec.n_discrete, spec.n_choices)
        return ChoiceMasks(legal.to(self._device), is_padded=True)

    def _read_named(self, masks: Mapping[str, Any]) -> ChoiceMasks:
        """Read masks by head name, conditional ones among them."""
        # Gymnasium marks the environments that gave a value by a flag under "_name".
        given = {
            name: value
            for name, value in masks.items()
            if not (name.startswith("_") and name[1:] in masks)
        }
        plain = {name: _stack(value) for name, value in given.items() if CONDITION_SIGN not in name}
        discrete = self.spec.names[: self.spec.n_discrete]
        n_envs = len(next(iter(given.values())))
        for name, size in zip(discrete, self.spec.sizes, strict=True):
            plain.setdefault(name, np.ones((n_envs, size), np.bool_))
        legal = self.spec.pad_masks(plain).to(self._device)
        conditions = [
            self._condition(name, _stack(table))
            for name, table in given.items()
            if CONDITION_SIGN in name
        ]
        return ChoiceMasks(legal, self._in_order(conditions), is_padded=True)

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

    def _condition(self, name: str, table: NDArray[Any]) -> Condition:
        child, _, parent = name.partition(CONDITION_SIGN)
        tensor: Tensor = torch.from_numpy(table.astype(np.bool_)).to(self._device)
        return Condition(self.spec.index(child), self.spec.index(parent), tensor)

    def _reject(self, shape: tuple[int, ...]) -> None:
        sizes = self.spec.sizes
        raise ShapeError(
            f"the action mask has shape {tuple(shape)}; a mask for each head (sizes {sizes}), all "
            f"of them as one array of {sum(sizes)}, or a dict by head name is needed."
        )


def _stack(values: Any) -> NDArray[Any]:
    try:
        return np.stack(list(values))
    except ValueError as error:
        raise ShapeError(
            "the action masks of environments have different shapes; each head needs one size."
        ) from error


def require_spec(space: spaces.Space[Any], spec: ActionSpec | None) -> ActionSpec:
    """Return the specification of an action space: the given one if it fits, or the default."""
    made = ActionSpec.from_space(space)
    if spec is not None and isinstance(space, spaces.Dict) and spec.names != made.names:
        raise ActionSpecError(
            f"action_spec has heads {spec.names}; the action space {space} has {made.names}, in "
            "this order."
        )
    if spec is not None and (spec.sizes, spec.dims) != (made.sizes, made.dims):
        raise ActionSpecError(
            f"action_spec has sizes {spec.sizes} and dims {spec.dims}; the action space {space} "
            f"has sizes {made.sizes} and dims {made.dims}."
        )
    return spec or made

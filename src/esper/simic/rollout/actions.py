"""From an agent's decisions to actions of an environment's space.

Shapes: ``E`` environments, ``D`` discrete heads, ``C`` numbers of continuous heads.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from esper.errors import (
    ActionSpecError,
    UnsupportedEnvironmentError,
)
from esper.simic.policy.action_spec import ActionSpec, is_box
from esper.simic.policy.mask_reader import ActionPart, parts_of


class ActionCodec:
    """Converts decisions to actions of a Gymnasium space.

    Numbers of continuous heads are clipped to the bounds of their ``Box``, or squashed between
    them by tanh.
    """

    def __init__(self, space: spaces.Space[Any], spec: ActionSpec, *, squash: bool = False) -> None:
        self.space, self.spec, self.squash = space, spec, squash
        self._parts = parts_of(space)
        for part in self._parts:
            if squash and is_box(part.space) and not part.space.is_bounded():
                raise UnsupportedEnvironmentError(
                    f"squash is on, but the action space {part.space} has no bounds; turn it off."
                )
        needed = ActionSpec.from_space(space)
        if (needed.sizes, needed.dims) != (spec.sizes, spec.dims):
            raise UnsupportedEnvironmentError(
                f"the action space is {space}; the agent's heads have sizes {spec.sizes}"
                + (f" and dims {spec.dims}." if spec.dims or needed.dims else ".")
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
        self, part: ActionPart, actions: NDArray[np.int64], numbers: NDArray[np.float32] | None
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

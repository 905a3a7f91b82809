"""Spaces, masks and final observations in the form that Gymnasium expects.

Shapes: E = environments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from esper.errors import DtypeError
from esper.lifecycle.factored_actions import growth_action_spec
from esper.tamiyo.policy.action_masks import SLOT_BY_OP, ActionMasks
from esper.tamiyo.policy.observations import ObservationLayout


def make_spaces(layout: ObservationLayout) -> tuple[spaces.Box, spaces.MultiDiscrete]:
    """Return the observation space and the action space of one environment."""
    low = layout.low
    return (
        spaces.Box(low, np.ones_like(low), dtype=np.float32),
        spaces.MultiDiscrete(np.array(growth_action_spec(layout.slot_config).sizes)),
    )


def as_choices(actions: Any) -> NDArray[np.int64]:
    """Return actions as int64; reject other than integer types."""
    choices = np.asarray(actions)
    if choices.dtype.kind not in "iu":
        raise DtypeError(
            f"actions have dtype {choices.dtype}; expected integers, one choice for each head."
        )
    return np.ascontiguousarray(choices, np.int64)


def head_masks(masks: ActionMasks) -> list[tuple[NDArray[np.int8], ...]]:
    """Return, for each environment, a mask of each head in the form Gymnasium expects."""
    choices = masks.choices.to(torch.int8).numpy()
    sizes = [masks[name].shape[-1] for name in masks if name != SLOT_BY_OP]
    heads = [choices[:, head, :size] for head, size in enumerate(sizes)]
    return list(zip(*heads, strict=True))


def flat_masks(masks: ActionMasks) -> NDArray[np.bool_]:
    """Return the concatenated masks of all heads, ``[E, sum of sizes]``."""
    return np.concatenate([masks[n].numpy() for n in masks if n != SLOT_BY_OP], axis=1)


def final_observations(
    observations: NDArray[np.float32], done: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """Return the info entries that hold the final observations of finished episodes."""
    table = np.full(len(observations), None, object)
    is_done = np.zeros(len(observations), np.bool_)
    is_done[done] = True
    for env in done.tolist():
        table[env] = observations[env]
    return {"final_obs": table, "_final_obs": is_done}


def spread_reasons(reasons: dict[int, str], n_envs: int) -> NDArray[Any]:
    """Return the reason of each environment, empty where there is none."""
    table = np.full(n_envs, "", object)
    for env, reason in reasons.items():
        table[env] = reason
    return table

"""Which heads of a growth action mattered, and which could have.

Both read the one relevance table of :mod:`esper.lifecycle.factored_actions`.
"""

from __future__ import annotations

from torch import Tensor

from esper.lifecycle.factored_actions import HEAD_NAMES, growth_action_spec
from esper.lifecycle.slot_config import SlotConfig

# The table does not depend on the slots, so any slot configuration serves.
_SPEC = growth_action_spec(SlotConfig(("any",)))


def compute_causal_masks(op_actions: Tensor) -> dict[str, Tensor]:
    """Return, by head, at which steps the op that was taken reads the head.

    Args:
        op_actions: ``[...]`` integer, the op taken at each step.

    Returns:
        Head name to ``[...]`` bool; ``"op"`` is true everywhere.
    """
    return _by_head(_SPEC.relevant_heads(op_actions))


def compute_availability_masks(op_masks: Tensor) -> dict[str, Tensor]:
    """Return, by head, at which steps some legal op reads the head.

    Args:
        op_masks: ``[..., 7]`` bool, the ops that were legal at each step.

    Returns:
        Head name to ``[...]`` bool.
    """
    return _by_head(_SPEC.available_heads(op_masks))


def _by_head(masks: Tensor) -> dict[str, Tensor]:
    return dict(zip(HEAD_NAMES, masks.unbind(dim=-1), strict=True))

"""Which heads of a growth action mattered, and which could have mattered.

Both masks come from the relevance table in :mod:`esper.lifecycle.factored_actions`.
"""

from __future__ import annotations

from torch import Tensor

from esper.lifecycle.factored_actions import HEAD_NAMES, growth_action_spec
from esper.lifecycle.slot_config import SlotConfig

# The table does not depend on the slots, so any slot configuration will do.
_SPEC = growth_action_spec(SlotConfig(("any",)))


def compute_causal_masks(op_actions: Tensor) -> dict[str, Tensor]:
    """Return, for each head, the steps at which the chosen op reads it.

    Args:
        op_actions: ``[...]`` integer, the op taken at each step.

    Returns:
        Head name to ``[...]`` bool; ``"op"`` is true everywhere.
    """
    return _by_head(_SPEC.relevant_heads(op_actions))


def compute_availability_masks(op_masks: Tensor) -> dict[str, Tensor]:
    """Return, for each head, the steps at which some legal op reads it.

    Args:
        op_masks: ``[..., 7]`` bool, the legal ops at each step.

    Returns:
        Head name to ``[...]`` bool.
    """
    return _by_head(_SPEC.available_heads(op_masks))


def _by_head(masks: Tensor) -> dict[str, Tensor]:
    return dict(zip(HEAD_NAMES, masks.unbind(dim=-1), strict=True))

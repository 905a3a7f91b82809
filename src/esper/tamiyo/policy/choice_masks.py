"""Which choices of a factored action are legal, alone and given other choices.

Shapes: ``B`` environments, ``H`` heads, ``K`` choices of the widest head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor

from esper.errors import ActionSpecError, DeviceError, DtypeError, ShapeError
from esper.lifecycle.action_spec import ActionSpec, MaskLike, all_choices


@dataclass(frozen=True)
class Condition:
    """The choices of one head that are legal given the choice of another.

    Given the op, it always binds (an op that does not read the child should allow all of it).
    Given any other head, it binds only at steps whose op reads the child.
    """

    child: int
    """Column of the head that is restricted."""

    parent: int
    """Column of the head whose choice restricts it; drawn before the child."""

    table: Tensor
    """``[B, parent choices, child choices]`` or ``[parent choices, child choices]`` bool."""

    def allowed(self, parent_choice: Tensor) -> Tensor:
        """Return the child's legal choices ``[B, child choices]`` for parent choices ``[B]``."""
        if self.table.ndim == 2:
            return self.table[parent_choice]
        index = parent_choice.view(-1, 1, 1).expand(-1, 1, self.table.shape[-1])
        return self.table.gather(1, index).squeeze(1)


@dataclass(frozen=True)
class ChoiceMasks:
    """The legal choices of a batch of environments."""

    legal: Tensor
    """``[B, H, K]`` bool: choices that some legal action contains. Padding is False."""

    conditions: tuple[Condition, ...] = ()
    """What the choice of one head rules out in another. Those given the op stand first, and one
    whose parent is itself restricted stands after the one that restricts it."""


class PolicyMasks(Protocol):
    """Masks of some other kind that know their form for a policy."""

    def for_policy(self) -> ChoiceMasks:
        """Return the legal choices and what rules them out."""
        ...


MaskInput = (
    ChoiceMasks
    | PolicyMasks
    | Tensor
    | np.ndarray
    | Mapping[str, MaskLike]
    | Sequence[MaskLike]
    | None
)


def as_choice_masks(spec: ActionSpec, masks: MaskInput, observations: Tensor) -> ChoiceMasks:
    """Read masks in any of the forms that users have them in, for observations ``[B, ...]``.

    ``ChoiceMasks``; growth's ``ActionMasks``; one padded tensor or array ``[B, H, K]``; a mask
    ``[B, size]`` for each head, by name or in order; or None, when every choice is legal.
    """
    batch, device = observations.shape[0], observations.device
    if masks is None:
        return ChoiceMasks(all_choices(spec, device).expand(batch, -1, -1))
    if isinstance(masks, np.ndarray) and masks.ndim == 3:
        masks = torch.from_numpy(masks).bool().to(device)
    if hasattr(masks, "for_policy"):
        choices = cast(PolicyMasks, masks).for_policy()
    elif isinstance(masks, ChoiceMasks):
        choices = masks
    elif isinstance(masks, Tensor):
        choices = ChoiceMasks(masks)
    else:
        per_head = cast(Mapping[str, MaskLike] | Sequence[MaskLike], masks)
        choices = ChoiceMasks(spec.pad_masks(per_head).to(device))
    legal = choices.legal
    if tuple(legal.shape) != (batch, spec.n_heads, spec.n_choices):
        raise ShapeError(
            f"masks has shape {tuple(legal.shape)}; "
            f"{[batch, spec.n_heads, spec.n_choices]} (batch, heads, choices) is needed."
        )
    if legal.dtype != torch.bool:
        raise DtypeError(f"masks has dtype {legal.dtype}; torch.bool is needed.")
    if legal.device != device:
        raise DeviceError(f"masks is on {legal.device}; the observations are on {device}.")
    if isinstance(masks, (ChoiceMasks, Tensor)):
        # What a user padded may be anything; a choice beyond a head's last does not exist.
        choices = ChoiceMasks(legal & all_choices(spec, device), choices.conditions)
    _check_conditions(spec, choices)
    return choices


def _check_conditions(spec: ActionSpec, choices: ChoiceMasks) -> None:
    """Refuse conditions that could not be applied, or not in this order."""
    parents = {spec.op_index}
    for condition in choices.conditions:
        child, parent, table = condition.child, condition.parent, condition.table
        if child in parents:
            raise ActionSpecError(
                f"a condition restricts head {spec.names[child]!r} after it was drawn; the op "
                "cannot be restricted, and a head must be before it restricts another."
            )
        parents.add(parent)
        needed = [spec.sizes[parent], spec.sizes[child]]
        if list(table.shape) not in (needed, [len(choices.legal), *needed]):
            raise ShapeError(
                f"the condition of head {spec.names[child]!r} on {spec.names[parent]!r} has shape "
                f"{tuple(table.shape)}; {needed}, with or without the batch before it, is needed."
            )
        if table.dtype != torch.bool or table.device != choices.legal.device:
            raise DtypeError(
                f"the condition of head {spec.names[child]!r} is {table.dtype} on {table.device}; "
                f"torch.bool on {choices.legal.device} is needed."
            )

"""The rules of legality laid out as tables for one slot configuration, on one device."""

from __future__ import annotations

from functools import lru_cache

import torch

from esper.lifecycle.action_spec import all_choices
from esper.lifecycle.factored_actions import HEADS_READ_BY, Op, growth_action_spec
from esper.lifecycle.legality import (
    BLOCKING_STAGES,
    STATES,
    does_state_allow,
)
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import LIVE_STAGES, Stage

# The bits of a state's word that are not ops; `_masks.c` reads the same two.
_LIVE_BIT, _BLOCKING_BIT = 14, 15
_NO_LIMIT = 2**31 - 1


class MaskTables:
    """What the masks of any batch of hosts with these slots are made from.

    Shapes: ``C`` state codes, ``S`` slots, ``O`` ops, ``H`` heads, ``K`` choices.
    """

    def __init__(self, slot_config: SlotConfig, device: torch.device) -> None:
        self.slot_config = slot_config
        self.device = device
        self.spec = growth_action_spec(slot_config)
        self.seed_limit = _NO_LIMIT if slot_config.seed_limit is None else slot_config.seed_limit

        def table(rows: object) -> torch.Tensor:
            return torch.tensor(rows, dtype=torch.bool, device=device)

        self.state_allows = table(
            [
                [
                    does_state_allow(op, stage, is_aged=is_aged, alpha_at_rest=at_rest)
                    and (op != Op.FINISH or slot_config.allow_finish)
                    for op in Op
                ]
                for stage, is_aged, at_rest in STATES
            ]
        )
        """``[C, O]``: what a slot's own state allows."""
        self.is_live = table([stage in LIVE_STAGES for stage, _, _ in STATES])
        self.is_blocking = table([stage in BLOCKING_STAGES for stage, _, _ in STATES])
        slots = slot_config.slot_ids
        self.is_germinable = table([slot_config.is_enabled(slot) for slot in slots])
        self.fits = table(
            [
                [slot_config.does_fit(name, slot) for name in slot_config.blueprints]
                for slot in slots
            ]
        )
        """``[S, blueprints]``: which blueprint may grow in which slot."""
        self.does_everything_fit = bool(self.fits.all())
        self.ops_that_read_slot = table(["slot" in HEADS_READ_BY[op] for op in Op])
        self.all_choices = all_choices(self.spec, device)
        """``[H, K]``: every choice of every head, False where a head is padded."""
        self.choices_shape = tuple(self.all_choices.shape)
        self.slot_by_op_shape = (len(Op), slot_config.max_slots)
        self._state_words = self._pack_state_words()
        self._plan = self._lay_out_plan()
        self.plan_address = self._plan.data_ptr()
        """Where the C kernel finds all of this."""

    def _pack_state_words(self) -> torch.Tensor:
        """Return ``[C]`` words: bit o for op o, and the two bits above."""
        bit = torch.arange(len(Op), device=self.device)
        words = (self.state_allows.long() << bit).sum(dim=-1)
        words |= (self.is_live.long() << _LIVE_BIT) | (self.is_blocking.long() << _BLOCKING_BIT)
        return words.to("cpu", torch.uint16)

    def _lay_out_plan(self) -> torch.Tensor:
        """Return sizes and addresses in the order of the kernel's ``mask_plan``."""
        spec, config = self.spec, self.slot_config
        slot_ops = sum(1 << op for op in Op if "slot" in HEADS_READ_BY[op])
        fields = [
            *(config.max_slots, spec.n_heads, spec.n_choices, len(config.blueprints)),
            *(len(Op), len(Stage)),
            *(spec.index("slot"), spec.index("blueprint"), spec.op_index),
            *(int(Op.GERMINATE), slot_ops, self.seed_limit),
            *(self._state_words.data_ptr(), self.is_germinable.data_ptr()),
            *(0 if self.does_everything_fit else self.fits.data_ptr(), self.all_choices.data_ptr()),
        ]
        return torch.tensor(fields, dtype=torch.int64)


@lru_cache(maxsize=64)
def mask_tables(slot_config: SlotConfig, device: torch.device) -> MaskTables:
    """Return the tables of a slot configuration on a device; made once."""
    return MaskTables(slot_config, device)

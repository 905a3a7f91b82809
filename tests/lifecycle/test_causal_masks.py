"""Causal and availability masks follow the relevance table of the design."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.lifecycle.causal_masks import compute_availability_masks, compute_causal_masks
from esper.lifecycle.factored_actions import HEAD_NAMES, Op, growth_action_spec
from esper.lifecycle.slot_config import SlotConfig

# The heads that each op reads, copied from the table in the design.
TABLE = {
    "wait": "op",
    "germinate": "op slot blueprint style tempo alpha_target",
    "set_alpha_target": "op slot style alpha_target alpha_speed alpha_curve",
    "prune": "op slot alpha_speed alpha_curve",
    "fossilize": "op slot",
    "advance": "op slot",
    "finish": "op",
}


def test_heads_and_ops_are_in_the_order_of_the_design() -> None:
    assert HEAD_NAMES == (
        "slot",
        "blueprint",
        "style",
        "tempo",
        "alpha_target",
        "alpha_speed",
        "alpha_curve",
        "op",
    )
    assert [op.name.lower() for op in Op] == list(TABLE)
    assert growth_action_spec(SlotConfig(("a", "b"))).sizes == (2, 19, 4, 3, 3, 4, 5, 7)


@pytest.mark.parametrize("op", list(Op))
def test_exactly_the_heads_that_an_op_reads_matter(op: Op) -> None:
    masks = compute_causal_masks(torch.tensor(op.value))
    assert {head for head, mask in masks.items() if bool(mask)} == set(
        TABLE[op.name.lower()].split()
    )


@pytest.mark.parametrize("shape", [(), (2, 3, 4), (0, 4)])
def test_masks_have_the_shape_of_the_ops(shape: tuple[int, ...]) -> None:
    ops = torch.randint(0, len(Op), shape)
    masks = compute_causal_masks(ops)
    assert tuple(masks) == HEAD_NAMES
    assert all(mask.shape == shape and mask.dtype == torch.bool for mask in masks.values())
    assert bool(masks["op"].all())


@given(st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=1, max_size=5))
def test_a_head_is_available_if_some_legal_op_reads_it(rows: list[list[bool]]) -> None:
    masks = compute_availability_masks(torch.tensor(rows))
    for head in HEAD_NAMES:
        readers = [head in heads.split() for heads in TABLE.values()]
        expected = [any(a and b for a, b in zip(row, readers, strict=True)) for row in rows]
        assert masks[head].tolist() == expected

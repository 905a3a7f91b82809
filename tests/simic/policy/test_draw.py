"""The compiled draw and the one by tensor operations are the same draw."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esper.errors import NoLegalActionError, NonFiniteError
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.distribution import (
    apply_conditions,
    choices_beside,
    draw_actions,
    draw_by_tensors,
)
from esper.simic.policy.masks import ChoiceMasks, Condition, HeadLayout, layout_of

CPU = torch.device("cpu")
SPEC = ActionSpec(
    names=("a", "op", "b", "c"),
    sizes=(4, 3, 5, 2),
    op_head="op",
    relevance=(
        (True, True, False, False),
        (True, True, True, False),
        (False, True, True, True),
    ),
)
LAYOUT = layout_of(SPEC, CPU)


def some(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return flags of which the first along the last axis is always set."""
    flags = torch.rand(shape, generator=generator) < 0.6
    flags[..., 0] = True
    return flags


def random_masks(n: int, generator: torch.Generator, *, has_conditions: bool) -> ChoiceMasks:
    legal = some((n, 4, 5), generator)
    for head, size in enumerate(SPEC.sizes):
        legal[:, head, size:] = False
    if not has_conditions:
        return ChoiceMasks(legal)
    by_op = Condition(child=0, parent=1, table=some((n, 3, 4), generator))
    by_a = Condition(child=2, parent=0, table=some((4, 5), generator))
    return ChoiceMasks(legal, (by_op, by_a))


@given(st.integers(0, 10_000), st.booleans(), st.booleans())
def test_the_kernel_and_the_tensor_form_draw_the_same(
    seed: int, has_conditions: bool, is_sampled: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    masks = random_masks(7, generator, has_conditions=has_conditions)
    # A slice of a wider tensor, as a network's outputs are.
    logits = (3.0 * torch.randn(7, 15, generator=generator))[:, :14]
    state = generator.get_state()
    source = generator if is_sampled else None
    actions, log_probs, legal = draw_actions(LAYOUT, logits, masks, source)
    generator.set_state(state)
    uniforms = torch.rand(7, 4, generator=generator) if is_sampled else None
    narrowed = apply_conditions(LAYOUT, masks, logits, uniforms)
    expected, expected_log_probs = draw_by_tensors(LAYOUT.pad(logits), narrowed, uniforms)
    assert torch.equal(actions, expected)
    assert torch.equal(legal, narrowed)
    torch.testing.assert_close(log_probs, expected_log_probs, atol=1e-5, rtol=1e-5)


def frequencies(layout: HeadLayout, logits: Tensor, legal: Tensor, n: int) -> Tensor:
    masks = ChoiceMasks(legal.expand(n, -1, -1).contiguous())
    drawn, _, _ = draw_actions(layout, logits.expand(n, -1), masks, torch.Generator())
    return torch.bincount(drawn[:, 0], minlength=legal.shape[-1]) / n


def test_choices_are_as_frequent_as_their_probabilities() -> None:
    layout = layout_of(ActionSpec.independent([5]), CPU)
    logits = torch.tensor([[1.0, -2.0, 0.5, 3.0, 0.0]])
    legal = torch.tensor([[[True, True, False, True, True]]])
    expected = torch.where(legal[0, 0], logits[0], -torch.inf).softmax(0)
    found = frequencies(layout, logits, legal, 40_000)
    # Five standard errors of a frequency.
    assert bool(
        ((found - expected).abs() < 5 * (expected * (1 - expected) / 40_000).sqrt() + 1e-9).all()
    )


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-24])
def test_the_ends_of_the_uniform_numbers_draw_legal_choices(uniform: float) -> None:
    legal = torch.tensor([[False, True, False, True, False]])
    logits = torch.tensor([[9.0, 0.0, 9.0, 0.0, 9.0]])
    choice, _ = draw_by_tensors(logits, legal, torch.tensor([uniform]))
    assert bool(legal[0, choice])


def test_a_head_without_a_legal_choice_and_logits_that_are_not_finite_are_named() -> None:
    masks = random_masks(3, torch.Generator().manual_seed(0), has_conditions=False)
    masks.legal[2, 3] = False
    with pytest.raises(NoLegalActionError, match=r"'c' of environment 2"):
        draw_actions(LAYOUT, torch.zeros(3, 14), masks, torch.Generator())
    logits = torch.zeros(3, 14)
    logits[1, 4] = torch.nan
    masks.legal[:] = True
    with pytest.raises(NonFiniteError, match=r"'op' of environment 1"):
        draw_actions(LAYOUT, logits, masks, torch.Generator())


@given(st.integers(0, 10_000))
def test_the_choices_beside_an_action_are_those_it_was_drawn_from(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    masks = random_masks(7, generator, has_conditions=True)
    logits = 3.0 * torch.randn(7, 14, generator=generator)
    actions, _, legal = draw_actions(LAYOUT, logits, masks, generator)
    assert torch.equal(choices_beside(SPEC, actions, masks), legal)

"""Alpha follows its curves, and seeds are blended according to their style."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.growth.blending import (
    FIRST_CURVE,
    AlphaSchedule,
    blend,
    curve_value,
    effective_change,
    straight_through,
)
from esper.lifecycle.factored_actions import AlphaCurve, BlendStyle
from tests.growth.helpers import same_bits

CURVES = list(AlphaCurve)
SHARES = st.floats(0.0, 1.0)


@pytest.mark.parametrize("curve", CURVES)
def test_a_curve_rises_from_exactly_0_to_exactly_1(curve: AlphaCurve) -> None:
    assert curve_value(curve, 0.0) == 0.0
    assert curve_value(curve, 1.0) == 1.0
    assert curve_value(curve, 0.5) == pytest.approx(0.5, abs=1e-12)


@given(st.sampled_from(CURVES), SHARES, SHARES)
def test_a_curve_never_falls_and_stays_between_0_and_1(curve, one, other) -> None:
    low, high = sorted((one, other))
    assert 0.0 <= curve_value(curve, low) <= curve_value(curve, high) <= 1.0


@given(st.sampled_from(CURVES), SHARES)
def test_a_curve_is_symmetric_about_its_middle(curve, progress) -> None:
    total = curve_value(curve, progress) + curve_value(curve, 1.0 - progress)
    assert total == pytest.approx(1.0, abs=1e-9)


def test_curves_at_a_quarter_worked_by_hand() -> None:
    def sigmoid(steepness: float) -> float:
        at = [1.0 / (1.0 + math.exp(-steepness * (p - 0.5))) for p in (0.0, 0.25, 1.0)]
        return (at[1] - at[0]) / (at[2] - at[0])

    assert curve_value(AlphaCurve.LINEAR, 0.25) == 0.25
    assert curve_value(AlphaCurve.COSINE, 0.25) == pytest.approx((1 - math.sqrt(0.5)) / 2)
    assert curve_value(AlphaCurve.SIGMOID_GENTLE, 0.25) == pytest.approx(sigmoid(6.0))
    assert curve_value(AlphaCurve.SIGMOID, 0.25) == pytest.approx(sigmoid(10.0))
    assert curve_value(AlphaCurve.SIGMOID_SHARP, 0.25) == pytest.approx(sigmoid(16.0))


def test_a_sharper_sigmoid_starts_later() -> None:
    names = (AlphaCurve.SIGMOID_GENTLE, AlphaCurve.SIGMOID, AlphaCurve.SIGMOID_SHARP)
    gentle, middle, sharp = (curve_value(curve, 0.2) for curve in names)
    assert gentle > middle > sharp > 0.0


def test_a_schedule_worked_by_hand() -> None:
    schedule = AlphaSchedule(0.0, 1.0, 4)
    alphas, rests = [], []
    for _ in range(6):
        alphas.append(schedule.alpha)
        rests.append(schedule.is_at_rest)
        schedule = schedule.after_epoch()
    assert alphas == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rests == [False, False, False, True, True, True]


def test_a_schedule_can_ramp_down() -> None:
    schedule = AlphaSchedule(0.7, 0.0, 3, AlphaCurve.COSINE)
    assert schedule.alpha == pytest.approx(0.7 * 0.75)
    assert schedule.after_epoch().alpha == pytest.approx(0.7 * 0.25)
    assert schedule.after_epoch().after_epoch().alpha == 0.0


@pytest.mark.parametrize("n_epochs", [0, 1])
def test_a_ramp_of_at_most_one_epoch_is_at_its_target_immediately(n_epochs: int) -> None:
    schedule = AlphaSchedule(0.1, 0.7, n_epochs)
    assert schedule.is_at_rest
    assert schedule.alpha == 0.7
    assert schedule.after_epoch() == schedule


@given(
    st.floats(0, 1), st.floats(0, 1), st.integers(0, 9), st.sampled_from(CURVES), st.integers(1, 12)
)
def test_alpha_stays_between_start_and_target_and_ends_exactly_there(
    start, target, n_epochs, curve, epochs
) -> None:
    schedule = AlphaSchedule(start, target, n_epochs, curve)
    for _ in range(epochs):
        assert min(start, target) - 1e-12 <= schedule.alpha <= max(start, target) + 1e-12
        schedule = schedule.after_epoch()
    assert (schedule.alpha == target) or epochs + 1 < n_epochs


def test_only_the_sigmoid_styles_first_ramp_is_not_linear() -> None:
    assert {style for style, curve in FIRST_CURVE.items() if curve != AlphaCurve.LINEAR} == {
        BlendStyle.ADD_SIGMOID
    }
    assert set(FIRST_CURVE) == set(BlendStyle)


@pytest.mark.parametrize("style", list(BlendStyle))
def test_the_change_of_each_style_follows_its_formula(style: BlendStyle) -> None:
    y, delta, gate = torch.tensor([2.0, -3.0]), torch.tensor([0.5, 1.0]), torch.tensor([0.0, 1.0])
    expected = {
        BlendStyle.ADD_LINEAR: [0.5, 1.0],
        BlendStyle.ADD_SIGMOID: [0.5, 1.0],
        BlendStyle.MULTIPLY_LINEAR: [2 * math.tanh(0.5), -3 * math.tanh(1.0)],
        BlendStyle.LEARNED_GATE: [0.5, 2.0 / (1.0 + math.exp(-1.0))],
    }
    change = effective_change(style, y, delta, gate)
    torch.testing.assert_close(change, torch.tensor(expected[style]))


@pytest.mark.parametrize("style", list(BlendStyle))
def test_a_zero_seed_output_changes_nothing(style: BlendStyle) -> None:
    y, gate = torch.randn(3, 4), torch.randn(3, 1)
    assert not effective_change(style, y, torch.zeros(3, 4), gate).any()


@pytest.mark.parametrize("style", list(BlendStyle))
def test_gradients_of_blending_match_finite_differences(style: BlendStyle) -> None:
    torch.manual_seed(0)
    y, delta, gate = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in ((3, 4), (3, 4), (3, 1))
    )

    def mix(y: torch.Tensor, delta: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return blend(y, effective_change(style, y, delta, gate), 0.7)

    assert torch.autograd.gradcheck(mix, (y, delta, gate))


def test_blending_at_alpha_0_returns_the_host_even_if_the_seed_is_not_finite() -> None:
    y = torch.tensor([-0.0, 1.0, float("nan")])
    change = torch.tensor([float("nan"), float("inf"), 0.0])
    assert same_bits(blend(y, change, 0.0), y)


def test_blending_at_alpha_1_is_the_sum() -> None:
    y, change = torch.randn(5), torch.randn(5)
    assert same_bits(blend(y, change, 1.0), y + change)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_straight_through_returns_the_host_bit_for_bit(dtype: torch.dtype) -> None:
    y = torch.tensor([-0.0, 0.0, 1e-30, float("nan"), float("-inf"), 3.25], dtype=dtype)
    change = torch.tensor([float("nan"), -0.0, float("inf"), 1.0, float("inf"), 1e30])
    assert same_bits(straight_through(y, change.to(dtype)), y)


def test_straight_through_passes_both_arguments_the_gradient_of_the_sum() -> None:
    y, change = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    weight = torch.randn(4)
    (straight_through(y, change) * weight).sum().backward()
    assert same_bits(y.grad, weight)
    assert same_bits(change.grad, weight)


def test_straight_through_may_be_followed_by_an_in_place_operation() -> None:
    y, change = torch.randn(4), torch.randn(4, requires_grad=True)
    before = y.clone()
    straight_through(y, change).mul_(2.0).sum().backward()
    assert same_bits(y, before)
    assert change.grad.tolist() == [2.0] * 4


def test_each_gradient_has_the_dtype_of_its_tensor() -> None:
    y = torch.randn(4, dtype=torch.bfloat16, requires_grad=True)
    change = torch.randn(4, requires_grad=True)
    straight_through(y, change).sum().backward()
    assert (y.grad.dtype, change.grad.dtype) == (torch.bfloat16, torch.float32)
    assert blend(y, change, 0.5).dtype == torch.bfloat16

"""Mirrored layers output zero, get gradients from the first step on."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from esper.growth.blueprints.widening import draw_mirrored


def make(n_units: int, *, conv: bool = False, bias: bool = True) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(n_units)
    if conv:
        first, second = nn.Conv2d(3, n_units, 3, bias=bias), nn.Conv2d(n_units, 2, 3, bias=False)
    else:
        first, second = nn.Linear(3, n_units, bias=bias), nn.Linear(n_units, 2, bias=False)
    draw_mirrored(first, second)
    return first, second


@given(n_units=st.integers(1, 33), conv=st.booleans(), bias=st.booleans())
def test_the_output_is_zero_for_any_input(n_units: int, conv: bool, bias: bool) -> None:
    first, second = make(n_units, conv=conv, bias=bias)
    x = torch.randn(4, 3, 7, 7) if conv else torch.randn(4, 3)
    out = second.double()(torch.relu(first.double()(x.double())))
    assert out.abs().max() < 1e-13


def test_both_layers_get_gradients_in_the_first_step() -> None:
    first, second = make(8)
    x, y = torch.randn(16, 3), torch.randn(16, 2)
    (second(torch.relu(first(x))) - y).square().mean().backward()
    assert first.weight.grad is not None
    assert second.weight.grad is not None
    assert first.weight.grad.norm() > 0.1
    assert second.weight.grad.norm() > 0.1


def test_weights_have_the_variance_of_he_initialization() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(64, 512), nn.Linear(512, 64, bias=False)
    draw_mirrored(first, second)
    assert first.weight.std().item() == pytest.approx((2 / 64) ** 0.5, rel=0.03)
    assert second.weight.std().item() == pytest.approx((2 / 512) ** 0.5, rel=0.03)
    assert not first.bias.any()

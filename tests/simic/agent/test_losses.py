"""Each term of the loss is its definition, and its gradient that of finite differences."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esper.simic.agent.losses import (
    clipped_surrogate,
    entropy_bonus,
    explained_variance,
    joint_clipped_surrogate,
    normalize_advantages,
    relevant_log_ratio,
    value_loss,
)
from esper.simic.agent.ppo import read_kl
from esper.simic.agent.update_report import UpdateReport, report_update
from esper.simic.policy.action_spec import ActionSpec

N, H = 7, 3
SPEC = ActionSpec.independent([2] * H)


def measured(log_ratio: Tensor, relevant: Tensor, clip_range: float = 0.2) -> UpdateReport:
    """What the update would report of one minibatch with these ratios."""
    zero, ones = torch.zeros(()).double(), torch.ones(N, H).double()
    batch: Any = SimpleNamespace(
        log_ratio=log_ratio,
        entropies=ones,
        relevant=relevant,
        available=ones,
        n_free=torch.tensor(float(N)).double(),
    )
    epoch = [(batch, {"loss": zero})]
    report = report_update(
        epoch, SPEC, clip_range, zero, [], zero, epochs_run=1, stopped_early=False
    )
    assert read_kl(epoch) == pytest.approx(report.approx_kl)
    return report


def has_the_gradient_of_finite_differences(
    function: Callable[[Tensor], Tensor], at: Tensor
) -> bool:
    return torch.autograd.gradcheck(function, (at.clone().requires_grad_(),))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_relevance(seed: int, op: int = H - 1) -> Tensor:
    relevant = (random(N, H, seed=seed) > 0).double()
    relevant[:, op] = 1.0
    return relevant


@given(st.integers(0, 1000))
def test_approx_kl_is_the_weighted_mean_of_the_heads_own(seed: int) -> None:
    relevant = random_relevance(seed)
    log_ratio = random(N, H, seed=seed + 1) * relevant
    # Head by head: its mean over its steps, weighted by the share of steps at which it mattered.
    weighted_sum, total_weight = 0.0, 0.0
    for head in range(H):
        r, mask = log_ratio[:, head], relevant[:, head]
        n_valid = float(mask.sum())
        if n_valid == 0:
            continue
        mean = float(((r.exp() - 1 - r) * mask).sum()) / n_valid
        weighted_sum += mean * n_valid / N
        total_weight += n_valid / N
    assert measured(log_ratio, relevant).approx_kl == pytest.approx(weighted_sum / total_weight)


def test_a_ratio_counts_as_clipped_on_either_side() -> None:
    log_ratio = torch.zeros(N, H).double()
    log_ratio[:4, 0] = torch.tensor([0.79, 0.81, 1.19, 1.21]).double().log()
    clipped = measured(log_ratio, torch.ones(N, H).double()).clip_fraction_by_head
    assert list(clipped.values()) == [2 / N, 0.0, 0.0]
    assert measured(log_ratio, torch.ones(N, H).double(), clip_range=1.5).clip_fraction == 0.0


def test_everything_is_finite_when_only_the_op_matters() -> None:
    relevant = torch.zeros(N, H).double()
    relevant[:, H - 1] = 1.0
    log_probs = 1e4 * random(N, H)
    old = torch.where(relevant.bool(), log_probs, random(N, H, seed=1))
    log_ratio = relevant_log_ratio(log_probs, old, relevant)
    for surrogate in (clipped_surrogate, joint_clipped_surrogate):
        moved = log_ratio.requires_grad_()
        loss = surrogate(moved * relevant, random(N, seed=2), relevant, torch.tensor(float(N)), 0.2)
        (gradient,) = torch.autograd.grad(loss, moved)
        assert bool(torch.isfinite(loss))
        assert bool(torch.isfinite(gradient).all())
        assert bool((gradient[:, :-1] == 0.0).all())
    assert measured(log_ratio.detach(), relevant).approx_kl == 0.0


def test_the_surrogate_worked_by_hand() -> None:
    # Step 0: advantage 2, ratios 1.5 (clipped to 1.2) and, irrelevant, 9. Step 1: advantage -1,
    # ratios 0.5 (clipped to 0.8, which is worse and counts) and 1.1. Step 2: one legal action.
    ratios = torch.tensor([[1.5, 9.0], [0.5, 1.1], [1.3, 1.0]]).double()
    relevant = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]).double()
    loss = clipped_surrogate(
        ratios.log() * relevant,
        torch.tensor([2.0, -1.0, 5.0]).double(),
        relevant,
        torch.tensor(2.0).double(),
        clip_range=0.2,
    )
    assert float(loss) == pytest.approx(-((1.2 * 2) + (-0.8 - 1.1)) / 2)


def test_the_joint_surrogate_worked_by_hand() -> None:
    # Step 0: advantage 2, ratios 1.5 and 0.9, product 1.35 (clipped to 1.2). Step 1: advantage -1,
    # ratios 0.5 and 1.1, product 0.55 (clipped to 0.8, which is worse and counts). Step 2: forced.
    ratios = torch.tensor([[1.5, 0.9], [0.5, 1.1], [1.3, 1.0]]).double()
    relevant = torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]).double()
    advantages = torch.tensor([2.0, -1.0, 5.0]).double()
    n_free = torch.tensor(2.0).double()
    loss = joint_clipped_surrogate(ratios.log() * relevant, advantages, relevant, n_free, 0.2)
    assert float(loss) == pytest.approx(-((1.2 * 2) - 0.8) / 2)


def test_both_ways_of_clipping_agree_on_one_head_and_before_the_first_step() -> None:
    advantages, n_free = random(N), torch.tensor(float(N)).double()
    one = random(N, 1, seed=1)
    arguments = (advantages, torch.ones(N, 1).double(), n_free, 0.2)
    torch.testing.assert_close(
        clipped_surrogate(one, *arguments), joint_clipped_surrogate(one, *arguments)
    )
    ones, gradients = torch.ones(N, H).double(), []
    for surrogate in (clipped_surrogate, joint_clipped_surrogate):
        start = torch.zeros(N, H).double().requires_grad_()
        gradients += torch.autograd.grad(surrogate(start, advantages, ones, n_free, 0.2), start)
    torch.testing.assert_close(gradients[0], gradients[1])


@pytest.mark.parametrize("clip", [None, 0.3])
def test_every_term_has_the_gradient_of_finite_differences(clip: float | None) -> None:
    relevant, n_free = random_relevance(3), torch.tensor(5.0).double()
    log_ratio = 0.3 * random(N, H, seed=6) * relevant
    advantages, returns, old = random(N, seed=9), random(N, seed=1), random(N, seed=2)
    ratios = log_ratio.exp()[relevant.bool()]
    assert bool(
        (ratios > 1.2).any() & (ratios < 0.8).any() & (ratios == ratios.clamp(0.8, 1.2)).any()
    )
    is_same = has_the_gradient_of_finite_differences
    for surrogate in (clipped_surrogate, joint_clipped_surrogate):
        # Only heads that mattered have a gradient; elsewhere the log-ratio is always 0.
        def policy(x: Tensor, surrogate: Any = surrogate) -> Tensor:
            return surrogate(x * relevant, advantages, relevant, n_free, 0.2)

        assert is_same(policy, log_ratio)
    assert is_same(lambda v: value_loss(v, returns, old, clip), random(N, seed=7))
    assert is_same(lambda h: entropy_bonus(h, relevant, n_free), random(N, H, seed=8).abs())


def test_value_clipping_takes_the_larger_error() -> None:
    old, returns = torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0])
    values = torch.tensor([0.9, 0.9])
    # Clipped to 0.2: errors 0.8 and 0.2; unclipped 0.1 and 0.9.
    assert float(value_loss(values, returns, old, 0.2)) == pytest.approx((0.64 + 0.81) / 2)
    assert float(value_loss(values, returns, old, None)) == pytest.approx((0.01 + 0.81) / 2)


def test_entropy_counts_available_heads_per_step() -> None:
    entropies = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    available = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    assert float(entropy_bonus(entropies, available, torch.tensor(2.0))) == 3.5


def test_advantages_are_normalised_with_a_floor() -> None:
    normal = normalize_advantages(5.0 + 3.0 * random(1000))
    assert float(normal.mean()) == pytest.approx(0.0, abs=1e-12)
    assert float(normal.std(correction=0)) == pytest.approx(1.0)
    same = normalize_advantages(torch.full((5,), 0.1))
    assert bool((same.abs() < 1e-1).all())
    assert bool(torch.isfinite(normalize_advantages(torch.ones(1))).all())


def test_explained_variance_of_known_cases() -> None:
    returns = random(50)
    assert float(explained_variance(returns, returns)) == pytest.approx(1.0)
    assert float(explained_variance(torch.zeros(50), returns)) == pytest.approx(0.0)
    assert float(explained_variance(-returns, returns)) == pytest.approx(-3.0)
    assert float(explained_variance(returns, torch.ones(50).double())) == 0.0


@pytest.mark.parametrize("spread", [30.0, 100.0, 1e4])
@pytest.mark.parametrize("surrogate", [clipped_surrogate, joint_clipped_surrogate])
def test_log_ratios_of_any_spread_have_a_finite_loss_and_divergence(
    surrogate: Any, spread: float
) -> None:
    log_probs = (spread * random(N, H).float()).requires_grad_()
    ones, n_free = torch.ones(N, H), torch.tensor(float(N))
    log_ratio = relevant_log_ratio(log_probs, torch.zeros(N, H), ones)
    loss = surrogate(log_ratio, random(N, seed=1).float(), ones, n_free, 0.2)
    (gradient,) = torch.autograd.grad(loss, log_probs)
    assert bool(torch.isfinite(loss))
    assert bool(torch.isfinite(gradient).all())
    assert math.isfinite(measured(log_ratio.detach().double(), ones.double()).approx_kl)


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_value_clipping_leaves_the_gradient_inside_the_range_alone(scale: float) -> None:
    # In single precision, old + (value - old) is not the value: neither branch may lose a step.
    old, returns = scale * random(500).float(), scale * random(500, seed=1).float()
    values = (old + 0.05 * random(500, seed=2).float().clamp(-1.0, 1.0)).requires_grad_()
    gradients = [
        torch.autograd.grad(value_loss(values, returns, old, clip), values)[0]
        for clip in (0.1, None)
    ]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-6)

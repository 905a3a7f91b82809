"""Each term of the loss is its definition, and its gradient that of finite differences."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from esper.simic.agent.losses import (
    clipped_surrogate,
    entropy_bonus,
    explained_variance,
    kl_estimates,
    normalize_advantages,
    relevant_log_ratio,
    value_loss,
)
from esper.simic.agent.update_report import EpochMeasures, count_heads, measure
from esper.simic.policy.action_spec import ActionSpec

N, H = 7, 3
SPEC = ActionSpec.independent([2] * H)


def measured(log_ratio: Tensor, relevant: Tensor, clip_range: float = 0.2) -> EpochMeasures:
    """What the update would read of one minibatch with these ratios."""
    zero, ones = torch.zeros(()).double(), torch.ones(N, H).double()
    counts = count_heads(relevant, ones)
    sums = measure((zero, zero, zero), log_ratio, ones, ones, counts, clip_range)
    return EpochMeasures.read(sums, SPEC)


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
    assert measured(log_ratio, torch.ones(N, H).double()).clipped == [2.0, 0.0, 0.0]
    assert measured(log_ratio, torch.ones(N, H).double(), clip_range=1.5).clipped == [0.0] * 3


def test_everything_is_finite_when_only_the_op_matters() -> None:
    relevant = torch.zeros(N, H).double()
    relevant[:, H - 1] = 1.0
    log_probs = (1e4 * random(N, H)).requires_grad_()
    old = torch.where(relevant.bool(), log_probs.detach(), random(N, H, seed=1))
    log_ratio = relevant_log_ratio(log_probs, old, relevant)
    weight = torch.ones(N).double()
    loss = clipped_surrogate(log_ratio, random(N, seed=2), relevant, weight, 0.2)
    loss.backward()
    assert log_probs.grad is not None
    assert bool(torch.isfinite(loss))
    assert measured(log_ratio.detach(), relevant).approx_kl == 0.0
    assert bool(torch.isfinite(log_probs.grad).all())
    assert bool((log_probs.grad[:, :-1] == 0.0).all())


def test_the_surrogate_worked_by_hand() -> None:
    # Step 0: advantage 2, ratios 1.5 (clipped to 1.2) and, irrelevant, 9. Step 1: advantage -1,
    # ratios 0.5 (clipped to 0.8, which is worse and counts) and 1.1. Step 2: one legal action.
    ratios = torch.tensor([[1.5, 9.0], [0.5, 1.1], [1.3, 1.0]]).double()
    relevant = torch.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 1.0]]).double()
    loss = clipped_surrogate(
        ratios.log() * relevant,
        torch.tensor([2.0, -1.0, 5.0]).double(),
        relevant,
        torch.tensor([1.0, 1.0, 0.0]).double(),
        clip_range=0.2,
    )
    assert float(loss) == pytest.approx(-((1.2 * 2) + (-0.8 - 1.1)) / 2)


def test_a_rollout_of_forced_steps_has_no_policy_loss() -> None:
    log_ratio = torch.zeros(N, H).double().requires_grad_()
    loss = clipped_surrogate(
        log_ratio, random(N), random_relevance(0), torch.zeros(N).double(), 0.2
    )
    loss.backward()
    assert loss.item() == 0.0
    assert log_ratio.grad is not None
    assert bool((log_ratio.grad == 0.0).all())


@pytest.mark.parametrize("clip", [None, 0.3])
def test_every_term_has_the_gradient_of_finite_differences(clip: float | None) -> None:
    relevant, weight = random_relevance(3), (random(N, seed=4) > -0.5).double()
    old = random(N, H, seed=5)
    log_probs = (old + 0.1 * random(N, H, seed=6)).requires_grad_()
    values = random(N, seed=7).requires_grad_()
    entropies = random(N, H, seed=8).abs().requires_grad_()

    def policy(new: Tensor) -> Tensor:
        ratio = relevant_log_ratio(new, old, relevant)
        return clipped_surrogate(ratio, random(N, seed=9), relevant, weight, 0.2)

    assert gradcheck(policy, (log_probs,))
    assert gradcheck(lambda v: value_loss(v, random(N, seed=1), random(N, seed=2), clip), (values,))
    assert gradcheck(lambda h: entropy_bonus(h, relevant), (entropies,))
    assert gradcheck(
        lambda new: kl_estimates(relevant_log_ratio(new, old, relevant)).sum(), (log_probs,)
    )


def test_value_clipping_takes_the_larger_error() -> None:
    old, returns = torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0])
    values = torch.tensor([0.9, 0.9])
    # Clipped to 0.2: errors 0.8 and 0.2; unclipped 0.1 and 0.9.
    assert float(value_loss(values, returns, old, 0.2)) == pytest.approx((0.64 + 0.81) / 2)
    assert float(value_loss(values, returns, old, None)) == pytest.approx((0.01 + 0.81) / 2)


def test_entropy_counts_available_heads_per_step() -> None:
    entropies = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert float(entropy_bonus(entropies, torch.tensor([[1.0, 1.0], [0.0, 1.0]]))) == 3.5


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

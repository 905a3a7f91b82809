"""Continuous heads have the densities and entropies of their distributions."""

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from esper.simic import ActionSpec
from esper.simic.policy.heads import ActionHeads, entropy, log_density, sum_by_head
from esper.simic.policy.mask_reader import as_choice_masks

CPU = torch.device("cpu")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_density_and_entropy_are_those_of_the_normal_distribution() -> None:
    mean, log_std, numbers = random(50, 3), random(3, seed=1), 3.0 * random(50, 3, seed=2)
    expected = Normal(mean, log_std.exp())
    torch.testing.assert_close(log_density(mean, log_std, numbers), expected.log_prob(numbers))
    torch.testing.assert_close(entropy(mean, log_std, squash=False), expected.entropy())


@pytest.mark.parametrize("std", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("mean", [-2.0, 0.0, 0.7, 4.0])
def test_the_entropy_of_a_squashed_number_is_that_of_its_density(mean: float, std: float) -> None:
    # H[a] = -integral of p(a) log p(a) with a = tanh(u) and p(a) = N(u) / (1 - tanh(u)^2).
    u = np.linspace(mean - 12 * std, mean + 12 * std, 200_001)
    log_normal = -0.5 * ((u - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    log_p = log_normal - 2.0 * (np.log(2.0) - u - np.logaddexp(0.0, -2.0 * u))
    expected = -np.trapezoid(np.exp(log_normal) * log_p, u)
    found = entropy(
        torch.tensor([[mean]], dtype=torch.float64),
        torch.tensor([std], dtype=torch.float64).log(),
        squash=True,
    )
    assert float(found) == pytest.approx(expected, abs=2e-3)


def test_the_squashed_entropy_stays_finite_far_out_and_has_the_right_gradient() -> None:
    far = torch.tensor([[-50.0, 50.0, 0.0]], requires_grad=True)
    total = entropy(far, torch.zeros(3), squash=True).sum()
    total.backward()
    assert bool(torch.isfinite(total))
    assert far.grad is not None
    assert bool(torch.isfinite(far.grad).all())
    mean, log_std = random(4, 2).requires_grad_(), (0.3 * random(2, seed=1)).requires_grad_()
    assert torch.autograd.gradcheck(lambda m, s: entropy(m, s, squash=True), (mean, log_std))


def test_numbers_are_summed_by_head() -> None:
    values = torch.arange(10.0).view(2, 5)
    assert sum_by_head(values, (2, 3)).tolist() == [[1.0, 9.0], [11.0, 24.0]]
    assert sum_by_head(values, (5,)).tolist() == [[10.0], [35.0]]


@pytest.mark.parametrize("squash", [False, True])
def test_a_mixed_action_is_drawn_and_evaluated_alike(squash: bool) -> None:
    spec = ActionSpec.independent([2, 3], dims=[1, 2])
    heads = ActionHeads(spec, squash=squash, log_std_init=-0.5)
    outputs = random(40, heads.n_outputs).float()
    choices = as_choice_masks(spec, None, 40, CPU)
    generator = torch.Generator().manual_seed(0)
    actions, numbers, log_probs, legal = heads.draw(outputs, choices, generator)
    assert numbers is not None
    distribution = heads.distribution(outputs, legal)
    found, entropies = distribution.log_probs(actions, numbers), distribution.entropies()
    torch.testing.assert_close(found, log_probs, atol=1e-5, rtol=1e-5)
    assert (tuple(found.shape), tuple(entropies.shape)) == ((40, 4), (40, 4))
    normal = Normal(outputs[:, 5:], float(np.exp(-0.5)))
    density = normal.log_prob(numbers)
    torch.testing.assert_close(found[:, 2], density[:, 0])
    torch.testing.assert_close(found[:, 3], density[:, 1:].sum(1))
    if not squash:
        torch.testing.assert_close(entropies[:, 3], normal.entropy()[:, 1:].sum(1))


def test_the_mode_of_a_continuous_head_is_its_mean() -> None:
    spec = ActionSpec.independent([], dims=[3])
    heads = ActionHeads(spec)
    outputs = random(7, 3).float()
    actions, numbers, _, _ = heads.draw(outputs, as_choice_masks(spec, None, 7, CPU), None)
    assert torch.equal(numbers, outputs)
    assert actions.shape == (7, 0)


def test_draws_have_the_mean_and_deviation_of_the_head() -> None:
    spec = ActionSpec.independent([], dims=[2])
    heads = ActionHeads(spec, log_std_init=0.7)
    outputs = torch.tensor([[1.0, -2.0]]).expand(20_000, 2)
    choices = as_choice_masks(spec, None, 20_000, CPU)
    _, numbers, _, _ = heads.draw(outputs, choices, torch.Generator().manual_seed(0))
    assert numbers is not None
    torch.testing.assert_close(numbers.mean(0), outputs[0], atol=0.05, rtol=0)
    torch.testing.assert_close(numbers.std(0), torch.full((2,), 0.7).exp(), atol=0.05, rtol=0)

"""The probabilities and returns of paths, against every path counted by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esper.training.lessons import (
    expected_returns,
    find_new_paths,
    imitation_loss,
    path_entropy,
    path_log_probs,
    worst_returns,
)

SEEDS = st.integers(0, 2**32 - 1)


def draw_steps(seed: int, n_schedules: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities ``[6, S, 4]`` of acting and finishing, and four lengths."""
    generator = torch.Generator().manual_seed(seed)
    odds = torch.rand(3, 6, n_schedules, 4, generator=generator, dtype=torch.float64) + 0.05
    taken, finishing, _ = odds.log_softmax(0)
    return taken, finishing, torch.tensor([1, 3, 6, 6])


@given(SEEDS)
def test_a_path_is_as_likely_as_its_steps_together(seed: int) -> None:
    taken, finishing, n_epochs = draw_steps(seed, n_schedules=2)
    found = path_log_probs(taken, finishing, n_epochs)
    for host, n in enumerate(n_epochs.tolist()):
        for schedule in range(2):
            for epoch in range(n + 1):
                steps = [float(taken[step, schedule, host]) for step in range(epoch)]
                last = float(finishing[epoch, schedule, host]) if epoch < n else 0.0
                expected = math.fsum([*steps, last])
                assert float(found[epoch, schedule, host]) == pytest.approx(expected)
    assert not found[2:, :, 0].any()


@given(SEEDS)
def test_paths_of_one_schedule_are_everything_if_nothing_else_can_be_done(seed: int) -> None:
    taken, _, n_epochs = draw_steps(seed, n_schedules=1)
    finishing = torch.log1p(-taken.exp())
    log_probs = path_log_probs(taken, finishing, n_epochs)
    is_path = torch.arange(7).view(-1, 1, 1) <= n_epochs
    ones = torch.ones(4, dtype=torch.float64)
    expected = expected_returns(log_probs, torch.ones_like(log_probs), is_path, -5.0 * ones)
    torch.testing.assert_close(expected, ones)


@given(SEEDS)
def test_what_is_expected_is_the_mean_over_paths_by_their_probability(seed: int) -> None:
    taken, finishing, n_epochs = draw_steps(seed, n_schedules=2)
    log_probs = path_log_probs(taken, finishing, n_epochs)
    returns = torch.randn(log_probs.shape, dtype=torch.float64)
    is_path = (torch.arange(7).view(-1, 1, 1) <= n_epochs).expand(-1, 2, -1).clone()
    is_path[0, 1] = False
    worst = worst_returns(returns, is_path)
    expected = expected_returns(log_probs, returns, is_path, worst - 0.5)
    for host in range(4):
        paths = is_path[:, :, host]
        known, p = returns[:, :, host][paths], log_probs[:, :, host][paths].exp()
        assert float(worst[host]) == float(known.min())
        mean = (p * known).sum() + (1.0 - p.sum()) * (known.min() - 0.5)
        assert float(expected[host]) == pytest.approx(float(mean))


def test_leaving_a_path_that_turns_out_bad_gains_nothing() -> None:
    returns = torch.tensor([[0.2], [0.8]], dtype=torch.float64)
    is_path = torch.ones(2, 1, dtype=torch.bool)
    elsewhere = worst_returns(returns, is_path)
    kept = torch.tensor([[0.5], [0.5]], dtype=torch.float64).log()
    left = torch.tensor([[0.1], [0.5]], dtype=torch.float64).log()
    found = [expected_returns(each, returns, is_path, elsewhere) for each in (kept, left)]
    assert float(found[0]) == pytest.approx(0.5)
    assert float(found[1]) <= float(found[0])


def test_the_best_imitation_is_as_likely_as_the_returns_say() -> None:
    returns = torch.tensor([[0.3], [0.1], [9.0]], dtype=torch.float64)
    is_path = torch.tensor([[True], [True], [False]])
    wanted = torch.softmax(torch.tensor([0.3, 0.1], dtype=torch.float64) / 0.05, 0)
    log_probs = torch.cat([wanted.log(), torch.zeros(1, dtype=torch.float64)]).unsqueeze(1)
    minimum = imitation_loss(log_probs, returns, is_path, 0.05)
    assert float(minimum) == pytest.approx(float(-(wanted * wanted.log()).sum()))
    for shift in (-0.3, 0.3):
        other = torch.tensor([[wanted[0].logit() + shift], [0.0]], dtype=torch.float64)
        other = torch.cat([other.log_softmax(0), torch.zeros(1, 1, dtype=torch.float64)])
        assert float(imitation_loss(other, returns, is_path, 0.05)) > float(minimum)


@given(st.lists(st.lists(st.integers(0, 1), min_size=4, max_size=4), min_size=1, max_size=5))
def test_every_path_is_counted_once(rows: list[list[int]]) -> None:
    actions = torch.tensor(rows).unsqueeze(2)
    is_new = find_new_paths(actions)
    paths = [tuple(row[:epoch]) for row in rows for epoch in range(5)]
    kept = [path for path, new in zip(paths, is_new.flatten().tolist(), strict=True) if new]
    assert len(kept) == len(set(kept))
    assert set(kept) == set(paths)


def test_the_entropy_is_that_of_the_paths_there_are() -> None:
    log_probs = torch.tensor([[0.3, 0.1], [0.1, 0.1], [0.6, 0.2]], dtype=torch.float64).log()
    is_path = torch.tensor([[True, True], [True, True], [False, True]])
    shares = [torch.tensor([0.75, 0.25]), torch.tensor([0.25, 0.25, 0.5])]
    expected = [float(-(each * each.log()).sum()) for each in shares]
    assert path_entropy(log_probs, is_path).tolist() == pytest.approx(expected)


def test_gradients_are_right() -> None:
    taken, finishing, n_epochs = draw_steps(0, n_schedules=2)
    returns = torch.randn(7, 2, 4, dtype=torch.float64)
    is_path = (torch.arange(7).view(-1, 1, 1) <= n_epochs).expand(-1, 2, -1)

    def loss(taken: Tensor, finishing: Tensor) -> Tensor:
        log_probs = path_log_probs(taken, finishing, n_epochs)
        expected = expected_returns(log_probs, returns, is_path, torch.zeros(4).double())
        imitated = imitation_loss(log_probs, returns, is_path, 0.5)
        return (expected + imitated + path_entropy(log_probs, is_path)).sum()

    inputs = taken.detach().requires_grad_(), finishing.detach().requires_grad_()
    assert torch.autograd.gradcheck(loss, inputs)

"""The slot policy gives the same outputs for sequences as for steps, and right gradients."""

from __future__ import annotations

import math

import pytest
import torch

from esper.tamiyo.policy.slot_network import SlotPolicy
from tests.tamiyo.policy.slot_worlds import (
    SIZES,
    draw_observations,
    lay_out_all,
    make_policy,
    run_step_by_step,
)

STATE = 2 * SIZES.lstm_size


@pytest.mark.parametrize("n_slots", [1, 4])
def test_a_reset_inside_a_sequence_is_a_new_episode(n_slots: int) -> None:
    policy = make_policy(n_slots)
    observations = draw_observations(n_slots, 5, 2)
    starts = torch.zeros(5, 2, dtype=torch.bool)
    starts[3] = True
    actions, log_probs, values = run_step_by_step(policy, observations, starts)
    nothing = torch.full_like(observations[:1], torch.nan)
    grid = torch.cat([observations[:3], nothing, observations[3:]])
    resets = torch.zeros(6, 2, dtype=torch.bool)
    resets[3] = True
    cells = torch.tensor([0, 1, 2, 3, 4, 5, 8, 9, 10, 11])
    outputs, got_values, _ = policy.evaluate(grid, resets, torch.zeros(2, STATE), cells)
    distribution = policy.heads.distribution(outputs, lay_out_all(policy, 10))
    got_log_probs = distribution.log_probs(actions.flatten(0, 1), None)
    entropies = distribution.entropies()
    torch.testing.assert_close(got_log_probs, log_probs.flatten(0, 1), atol=3e-6, rtol=0)
    torch.testing.assert_close(got_values, values.flatten(), atol=3e-6, rtol=0)
    assert bool((entropies[:, 0] <= math.log(n_slots) + 1e-6).all())


def test_sequences_without_resets_equal_single_steps() -> None:
    policy, observations = make_policy(3), draw_observations(3, 6, 4)
    actions, log_probs, values = run_step_by_step(
        policy, observations, torch.zeros(6, 4, dtype=torch.bool)
    )
    outputs, got_values, _ = policy.evaluate(observations, None, torch.zeros(4, STATE), None)
    distribution = policy.heads.distribution(outputs, lay_out_all(policy, 24))
    got_log_probs = distribution.log_probs(actions.flatten(0, 1), None)
    torch.testing.assert_close(got_log_probs, log_probs.flatten(0, 1), atol=3e-6, rtol=0)
    torch.testing.assert_close(got_values, values.flatten(), atol=3e-6, rtol=0)


@pytest.mark.parametrize("is_fast", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_gradients_equal_finite_differences(is_fast: bool) -> None:
    policy, observations = make_policy(3).double(), draw_observations(3, 2, 2).double()
    # A rectifier has no derivative at 0, where the silent feature is at every step.
    trained = {name: t for name, t in policy.named_parameters() if "features" not in name}
    actions = torch.tensor([[slot, 1, 2, 0, 1, 3, 4, 5] for slot in (0, 1, 2, 0)])
    legal = lay_out_all(policy, 4)

    def answer(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(trained, tensors, strict=True))
        arguments = (observations, None, torch.zeros(2, STATE).double(), None, legal, actions)
        named = {f"policy.{name}": tensor for name, tensor in given.items()}
        return torch.func.functional_call(Evaluating(policy), named, arguments)

    # The fast mode projects the Jacobian instead of comparing all of it.
    assert torch.autograd.gradcheck(answer, list(trained.values()), fast_mode=is_fast)


class Evaluating(torch.nn.Module):
    """Evaluates a policy when called."""

    def __init__(self, policy: SlotPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(
        self,
        observations: torch.Tensor,
        resets: torch.Tensor | None,
        state: torch.Tensor,
        cells: torch.Tensor | None,
        legal: torch.Tensor,
        actions: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        outputs, values, hidden = self.policy.evaluate(observations, resets, state, cells)
        distribution = self.policy.heads.distribution(outputs, legal)
        return distribution.log_probs(actions, None), distribution.entropies(), values, hidden


def test_no_gradient_passes_a_reset_or_reaches_its_weights() -> None:
    policy = make_policy(2)
    observations = draw_observations(2, 4, 2).requires_grad_()
    resets = torch.zeros(4, 2, dtype=torch.bool)
    resets[2] = True
    actions = torch.zeros(2, 8, dtype=torch.long)
    outputs, values, _ = policy.evaluate(
        observations, resets, torch.zeros(2, STATE), torch.tensor([6, 7])
    )
    log_probs = policy.heads.distribution(outputs, lay_out_all(policy, 2)).log_probs(actions, None)
    (log_probs.sum() + values.sum()).backward()
    assert observations.grad is not None
    assert bool((observations.grad[:3] == 0.0).all())
    assert bool((observations.grad[3] != 0.0).any())
    assert bool((policy.lstm.weight_ih_l0.grad[:, -1] == 0.0).all())
    assert bool((policy.features.weight.grad[-1] == 0.0).all())

"""The network gives the same answers step by step and over whole sequences."""

import pytest
import torch

from esper.config.learning import NetworkConfig
from esper.errors import DeviceError, DtypeError, ShapeError
from esper.simic.policy import RecurrentPolicy
from esper.simic.policy.action_spec import ActionSpec
from tests.tamiyo.policy.slot_worlds import run_step_by_step

SPEC = ActionSpec.independent([2, 3])
SIZES = NetworkConfig(feature_size=9, lstm_size=6)


def make_policy(seed: int = 0) -> RecurrentPolicy:
    policy = RecurrentPolicy(SPEC, 4, SIZES, generator=torch.Generator().manual_seed(seed))
    # Not the near-uniform start: answers that hardly depend on the input would agree anyway.
    torch.nn.init.normal_(policy.outputs.weight, generator=torch.Generator().manual_seed(seed))
    return policy


def test_sizes_come_from_the_configuration() -> None:
    policy = RecurrentPolicy(SPEC, 4, NetworkConfig(feature_size=20, lstm_size=30))
    assert policy.lstm.input_size == 20
    assert policy.state_size == 60
    assert policy.outputs.out_features == 2 + 3 + 1


def test_the_lstm_remembers_at_first() -> None:
    bias = RecurrentPolicy(SPEC, 4, SIZES).lstm.bias_ih_l0.view(4, 6)
    assert bias.tolist() == [[0.0] * 6, [1.0] * 6, [0.0] * 6, [0.0] * 6]


def test_the_same_generator_gives_the_same_weights() -> None:
    first, second = make_policy(3), make_policy(3)
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert not torch.equal(first.features.weight, make_policy(4).features.weight)


def test_at_first_actions_are_near_uniform_and_values_zero() -> None:
    policy = RecurrentPolicy(SPEC, 4, generator=torch.Generator().manual_seed(0))
    decision = policy.act(torch.randn(64, 4), None, torch.zeros(64, 256), torch.Generator())
    uniform = -torch.tensor([2.0, 3.0]).log().expand(64, 2)
    torch.testing.assert_close(decision.log_probs, uniform, atol=0.05, rtol=0)
    assert bool((decision.values == 0.0).all())


def test_a_reset_cell_inside_a_sequence_is_a_new_episode() -> None:
    policy = make_policy()
    observations = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(1))
    starts = torch.zeros(5, 2, dtype=torch.bool)
    starts[3] = True
    actions, log_probs, values = run_step_by_step(policy, observations, starts)

    # Rows 0-2, a reset in row 3 that shows anything, rows 3-4 of the episode after it.
    anything = 100.0 * torch.ones(1, 2, 4)
    grid = torch.cat([observations[:3], anything, observations[3:]])
    resets = torch.zeros(6, 2, dtype=torch.bool)
    resets[3] = True
    cells = torch.tensor([0, 1, 2, 3, 4, 5, 8, 9, 10, 11])
    legal = torch.tensor([[[1, 1, 0], [1, 1, 1]]]).bool().expand(10, 2, 3)
    outputs, got_values, _ = policy.evaluate(grid, resets, torch.zeros(2, 12), cells)
    distribution = policy.heads.distribution(outputs, legal)
    got_log_probs = distribution.log_probs(actions.flatten(0, 1), None)
    torch.testing.assert_close(got_log_probs, log_probs.flatten(0, 1), atol=2e-6, rtol=0)
    torch.testing.assert_close(got_values, values.flatten(), atol=2e-6, rtol=0)


def test_a_reset_leaves_a_state_of_exactly_zero() -> None:
    policy = make_policy()
    features = torch.zeros(1, 3, SIZES.feature_size)
    features[..., -1] = 1.0
    state = 5.0 * torch.randn(1, 3, SIZES.lstm_size)
    outputs, (hidden, cell) = policy.lstm(features, (state.tanh(), state))
    for tensor in (outputs, hidden, cell):
        assert bool((tensor == 0.0).all())


def test_no_gradient_passes_a_reset_or_reaches_its_weights() -> None:
    policy = make_policy()
    observations = torch.randn(4, 2, 4, requires_grad=True)
    resets = torch.zeros(4, 2, dtype=torch.bool)
    resets[2] = True
    outputs, values, _ = policy.evaluate(
        observations, resets, torch.zeros(2, 12), torch.tensor([6, 7])
    )
    (outputs.square().sum() + values.sum()).backward()
    assert observations.grad is not None
    assert bool((observations.grad[:3] == 0.0).all())
    assert bool((observations.grad[3] != 0.0).any())
    closing, silent = policy.lstm.weight_ih_l0.grad, policy.features.weight.grad
    assert closing is not None
    assert silent is not None
    assert bool((closing[:, -1] == 0.0).all())
    assert bool((silent[-1] == 0.0).all())


def test_rescaling_the_value_is_exact_and_touches_nothing_else() -> None:
    policy = make_policy().double()
    observations, state = torch.randn(5, 4).double(), torch.randn(5, 12).double()
    before, logits = policy.value(observations, state), policy._step(observations, state)[0]
    policy.rescale_value(2.5, -0.75)
    torch.testing.assert_close(policy.value(observations, state), 2.5 * before - 0.75)
    assert torch.equal(policy._step(observations, state)[0], logits)


def test_arguments_that_do_not_fit_are_named() -> None:
    policy, state = make_policy(), torch.zeros(3, 12)
    masks = torch.ones(3, 2, 3, dtype=torch.bool)
    with pytest.raises(ShapeError, match=r"observations has shape \(3, 5\)"):
        policy.act(torch.zeros(3, 5), None, state, None)
    with pytest.raises(ShapeError, match=r"masks has shape \(2, 2, 3\)"):
        policy.act(torch.zeros(3, 4), masks[:2], state, None)
    with pytest.raises(DtypeError, match=r"masks has dtype torch\.float32"):
        policy.act(torch.zeros(3, 4), masks.float(), state, None)
    with pytest.raises(DeviceError, match="masks is on meta"):
        policy.act(torch.zeros(3, 4), masks.to("meta"), state, None)

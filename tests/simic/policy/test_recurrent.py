"""The network gives the same answers step by step and over whole sequences."""

import pytest
import torch

from esper.config import PolicyConfig
from esper.errors import ConfigError, DeviceError, DtypeError, ShapeError
from esper.simic.policy import RecurrentPolicy
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.recurrent import steps_last_linear
from tests.tamiyo.policy.slot_worlds import run_step_by_step

SPEC = ActionSpec.independent([2, 3])
SIZES = PolicyConfig(feature_size=9, lstm_size=6)


def make_policy(seed: int = 0) -> RecurrentPolicy:
    policy = RecurrentPolicy(SPEC, 4, SIZES, generator=torch.Generator().manual_seed(seed))
    # Not the near-uniform start: answers that hardly depend on the input would agree anyway.
    torch.nn.init.normal_(policy.outputs.weight, generator=torch.Generator().manual_seed(seed))
    return policy


def test_sizes_come_from_the_configuration() -> None:
    policy = RecurrentPolicy(SPEC, 4, PolicyConfig(feature_size=20, lstm_size=30))
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
    legal = policy.lay_out_masks(torch.tensor([[[1, 1, 0], [1, 1, 1]]]).bool().expand(10, 2, 3))
    got_log_probs, _, got_values = policy.evaluate(
        grid, resets, torch.zeros(2, 12), cells, legal, actions.flatten(0, 1)
    )
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
    legal = policy.lay_out_masks(torch.ones(2, 2, 3, dtype=torch.bool))
    actions = torch.zeros(2, 2, dtype=torch.long)
    log_probs, _, values = policy.evaluate(
        observations, resets, torch.zeros(2, 12), torch.tensor([6, 7]), legal, actions
    )
    (log_probs.sum() + values.sum()).backward()
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


def test_the_output_layer_has_the_gradient_of_finite_differences() -> None:
    arguments = [torch.randn(*shape).double().requires_grad_() for shape in ((5, 3), (4, 3), (4,))]
    assert torch.autograd.gradcheck(steps_last_linear, arguments)
    inputs, weight, bias = arguments
    expected = torch.nn.functional.linear(inputs, weight, bias).t()
    torch.testing.assert_close(steps_last_linear(inputs, weight, bias), expected)


def test_arguments_that_do_not_fit_are_named() -> None:
    policy, state = make_policy(), torch.zeros(3, 12)
    masks = torch.ones(3, 2, 3, dtype=torch.bool)
    with pytest.raises(ShapeError, match=r"observations has shape \(3, 5\)"):
        policy.act(torch.zeros(3, 5), None, state, None)
    with pytest.raises(ShapeError, match=r"masks has shape \(2, 2, 3\); \[3, 2, 3\]"):
        policy.act(torch.zeros(3, 4), masks[:2], state, None)
    with pytest.raises(DtypeError, match=r"masks has dtype torch\.float32"):
        policy.act(torch.zeros(3, 4), masks.float(), state, None)
    with pytest.raises(DeviceError, match="masks is on meta; the policy is on cpu"):
        policy.act(torch.zeros(3, 4), masks.to("meta"), state, None)


CATEGORIES = {1: 5, 3: 5, 4: 2}
"""Columns 1 and 3 hold one of five, column 4 one of two."""


def make_embedding_policy(seed: int = 0) -> RecurrentPolicy:
    generator = torch.Generator().manual_seed(seed)
    policy = RecurrentPolicy(SPEC, 6, SIZES, categories=CATEGORIES, generator=generator)
    torch.nn.init.normal_(policy.outputs.weight, generator=torch.Generator().manual_seed(seed))
    return policy


def draw_observations(*shape: int) -> torch.Tensor:
    """Return observations in which some columns hold categories."""
    generator = torch.Generator().manual_seed(5)
    observations = torch.randn(*shape, 6, generator=generator)
    for column, n in CATEGORIES.items():
        observations[..., column] = torch.randint(n + 1, shape, generator=generator) / n
    return observations


def test_a_category_is_replaced_by_its_row_of_the_table_for_its_number() -> None:
    policy = make_embedding_policy()
    observations = draw_observations(40)
    fives, twos = policy.embed.tables["5"].weight, policy.embed.tables["2"].weight
    rows = []
    for seen in observations:
        first, second, third = (round(float(seen[c]) * n) for c, n in CATEGORIES.items())
        rows.append(torch.cat([seen[[0, 2, 5]], twos[third], fives[first], fives[second]]))
    assert torch.equal(policy.embed(observations), torch.stack(rows))
    assert policy.features.in_features == 3 + 3 * PolicyConfig().embedding_size
    assert [tuple(fives.shape), tuple(twos.shape)] == [(6, 4), (3, 4)]


@pytest.mark.parametrize("n", [1, 3, 17, 1000])
def test_every_category_survives_single_precision(n: int) -> None:
    policy = RecurrentPolicy(SPEC, 1, PolicyConfig(embedding_size=1), categories={0: n})
    numbers = torch.arange(n + 1, dtype=torch.float32).unsqueeze(1)
    policy.embed.tables[str(n)].weight.data.copy_(numbers)
    shares = torch.arange(n + 1, dtype=torch.float64).div(n).float().unsqueeze(1)
    assert torch.equal(policy.embed(shares), numbers)


def test_with_categories_sequences_give_the_same_answers_as_steps() -> None:
    policy = make_embedding_policy()
    observations = draw_observations(5, 2)
    starts = torch.zeros(5, 2, dtype=torch.bool)
    starts[3] = True
    actions, log_probs, values = run_step_by_step(policy, observations, starts)
    nothing = torch.full((1, 2, 6), float("nan"))
    grid = torch.cat([observations[:3], nothing, observations[3:]])
    resets = torch.zeros(6, 2, dtype=torch.bool)
    resets[3] = True
    cells = torch.tensor([0, 1, 2, 3, 4, 5, 8, 9, 10, 11])
    legal = policy.lay_out_masks(torch.tensor([[[1, 1, 0], [1, 1, 1]]]).bool().expand(10, 2, 3))
    got_log_probs, _, got_values = policy.evaluate(
        grid, resets, torch.zeros(2, 12), cells, legal, actions.flatten(0, 1)
    )
    torch.testing.assert_close(got_log_probs, log_probs.flatten(0, 1), atol=2e-6, rtol=0)
    torch.testing.assert_close(got_values, values.flatten(), atol=2e-6, rtol=0)


def test_gradients_reach_the_embeddings_of_the_categories_that_were_seen() -> None:
    policy = make_embedding_policy()
    observations = draw_observations(3, 2)
    observations[..., [1, 3]] = torch.tensor([2, 4]) / 5
    legal = policy.lay_out_masks(torch.tensor([[[1, 1, 0], [1, 1, 1]]]).bool().expand(6, 2, 3))
    actions = torch.zeros(6, 2, dtype=torch.long)
    log_probs, _, values = policy.evaluate(
        observations, None, torch.zeros(2, 12), None, legal, actions
    )
    (log_probs.sum() + values.sum()).backward()
    gradient = policy.embed.tables["5"].weight.grad
    assert gradient is not None
    assert (gradient != 0.0).any(dim=1).tolist() == [False, False, True, False, True, False]


def test_a_policy_tells_categories_apart() -> None:
    policy = make_embedding_policy()
    observations = draw_observations(1).repeat(6, 1)
    observations[:, 3] = torch.arange(6) / 5
    values = policy.value(observations, torch.zeros(6, 12))
    assert len(set(values.tolist())) == 6


def test_embeddings_come_from_the_generator() -> None:
    first, second, other = (make_embedding_policy(seed) for seed in (3, 3, 4))
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    weight = first.embed.tables["5"].weight
    assert not torch.equal(weight, other.embed.tables["5"].weight)


def test_without_categories_there_is_nothing_to_embed() -> None:
    plain, empty = make_policy(), RecurrentPolicy(SPEC, 4, SIZES, categories={})
    assert plain.state_dict().keys() == empty.state_dict().keys()
    assert {name.split(".")[0] for name in plain.state_dict()} == {"features", "lstm", "outputs"}


def test_categories_that_cannot_be_are_named() -> None:
    with pytest.raises(ConfigError, match="column 4; an observation has columns 0 to 3"):
        RecurrentPolicy(SPEC, 4, SIZES, categories={4: 2})
    with pytest.raises(ConfigError, match=r"categories\[2\] is 0"):
        RecurrentPolicy(SPEC, 4, SIZES, categories={2: 0})
    with pytest.raises(ConfigError, match="embedding_size is 0"):
        PolicyConfig(embedding_size=0)

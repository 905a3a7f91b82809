"""A policy on any network gives the same answers step by step and over sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.config.learning import NetworkConfig
from esper.errors import ConfigError, EsperError, ShapeError
from esper.simic import ActionSpec, PPOAgent, PPOConfig
from esper.simic.policy.actor_critic import ActorCriticPolicy
from esper.simic.policy.networks import EncoderTowers
from esper.simic.policy.observations import ObservationSpec

SPEC = ActionSpec.independent([2, 3], dims=[2])
OBSERVATIONS = ObservationSpec.of(4)


class GruNetwork(nn.Module):
    """Remembers by a GRU."""

    output_size, state_size = 6, 6

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 6)

    def forward(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.cell(observations, state)
        return state, state


class SplitMemory(nn.Module):
    """Counts in its state, and has other features for the value."""

    output_size, state_size = 4, 1

    def forward(self, observations: Tensor, state: Tensor) -> Any:
        return (observations * (1.0 + state), observations.flip(-1)), state + 1.0


class Plain(nn.Module):
    """Has no memory."""

    output_size = 5

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 5)

    def forward(self, observations: Tensor) -> Tensor:
        return torch.relu(self.layer(observations))


def make_policy(network: nn.Module, seed: int = 0, **settings: Any) -> ActorCriticPolicy:
    generator = torch.Generator().manual_seed(seed)
    policy = ActorCriticPolicy(SPEC, OBSERVATIONS, network, generator=generator, **settings)
    # Not the near-uniform start: answers that hardly depend on the input would agree anyway.
    for layer in (policy.policy_layer.weight, policy.value_layer.weight):
        nn.init.normal_(layer, generator=generator)
    return policy


@pytest.mark.parametrize("network", [GruNetwork, SplitMemory])
def test_a_sequence_with_resets_gives_what_steps_give(network: type[nn.Module]) -> None:
    policy = make_policy(network())
    generator = torch.Generator().manual_seed(1)
    observations = torch.randn(5, 2, 4, generator=generator)
    state, steps = torch.zeros(2, policy.state_size), []
    with torch.no_grad():
        for t in range(5):
            if t == 3:
                state = torch.zeros_like(state)
            decision = policy.act(observations[t], None, state, generator)
            state = decision.next_state
            steps.append(decision)

    # Rows 0-2, a reset in row 3 that shows anything, rows 3-4 of the episode after it.
    grid = torch.cat([observations[:3], 100.0 * torch.ones(1, 2, 4), observations[3:]])
    resets = torch.zeros(6, 2, dtype=torch.bool)
    resets[3] = True
    cells = torch.tensor([0, 1, 2, 3, 4, 5, 8, 9, 10, 11])
    outputs, values, _ = policy.evaluate(grid, resets, torch.zeros(2, policy.state_size), cells)
    log_probs = policy.heads.distribution(
        outputs, torch.cat([step.legal for step in steps])
    ).log_probs(
        torch.cat([step.actions for step in steps]),
        torch.cat([step.numbers for step in steps]),  # type: ignore[misc]
    )
    expected = torch.cat([step.log_probs for step in steps])
    torch.testing.assert_close(log_probs, expected, atol=1e-5, rtol=1e-5)
    expected = torch.cat([step.values for step in steps])
    torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("network", [Plain, None])
def test_without_memory_steps_are_evaluated_as_they_were_taken(network: Any) -> None:
    made = EncoderTowers(OBSERVATIONS, NetworkConfig()) if network is None else network()
    policy = make_policy(made)
    observations = torch.randn(9, 4, generator=torch.Generator().manual_seed(1))
    empty = torch.zeros(9, 0)
    with torch.no_grad():
        decision = policy.act(observations, None, empty, torch.Generator().manual_seed(2))
    outputs, values, _ = policy.evaluate(observations, None, empty, None)
    distribution = policy.heads.distribution(outputs, decision.legal)
    log_probs = distribution.log_probs(decision.actions, decision.numbers)
    torch.testing.assert_close(log_probs, decision.log_probs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(values, decision.values, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(policy.value(observations, empty), decision.values)


def test_features_for_the_value_are_separate_if_there_are_two() -> None:
    policy = make_policy(SplitMemory())
    observations, state = torch.randn(3, 4), torch.zeros(3, 1)
    expected = observations.flip(-1) @ policy.value_layer.weight[0]
    torch.testing.assert_close(policy.value(observations, state), expected)


def test_a_fresh_policy_has_a_value_of_zero_and_hardly_prefers_anything() -> None:
    for network in (EncoderTowers(OBSERVATIONS, NetworkConfig()), GruNetwork(), Plain()):
        policy = ActorCriticPolicy(SPEC, OBSERVATIONS, network)
        observations, state = torch.randn(64, 4), torch.zeros(64, policy.state_size)
        decision = policy.act(observations, None, state, torch.Generator().manual_seed(0))
        assert not bool(decision.values.any())
        uniform = -torch.tensor([2.0, 3.0]).log().expand(64, 2)
        torch.testing.assert_close(decision.log_probs[:, :2], uniform, atol=0.05, rtol=0)


def test_rescaling_the_value_is_exact() -> None:
    policy = make_policy(GruNetwork())
    observations, state = torch.randn(3, 4), torch.randn(3, 6)
    before = policy.value(observations, state)
    policy.rescale_value(2.5, -0.75)
    torch.testing.assert_close(policy.value(observations, state), 2.5 * before - 0.75)


def test_a_network_of_ones_own_keeps_its_weights_and_the_rest_follows_the_seed() -> None:
    network = Plain()
    before = network.layer.weight.clone()
    policies = [
        PPOAgent(SPEC, ActorCriticPolicy(SPEC, OBSERVATIONS, network), seed=seed).policy
        for seed in (1, 2)
    ]
    assert torch.equal(network.layer.weight, before)
    first, second = (policy.policy_layer.weight for policy in policies)  # type: ignore[attr-defined]
    assert not torch.equal(first, second)


def test_the_log_deviation_starts_where_it_is_told_to() -> None:
    policy = make_policy(Plain(), log_std_init=-1.5)
    assert policy.heads.log_std is not None
    assert policy.heads.log_std.tolist() == [-1.5, -1.5]


def test_networks_and_observations_that_do_not_fit_are_named() -> None:
    with pytest.raises(ConfigError, match=r"Linear has output_size None"):
        ActorCriticPolicy(SPEC, OBSERVATIONS, nn.Linear(4, 3))
    policy = make_policy(Plain())
    with pytest.raises(ShapeError, match=r"observations has shape \(3, 5\)"):
        policy.act(torch.zeros(3, 5), None, torch.zeros(3, 0), None)
    named = ObservationSpec({"a": OBSERVATIONS.leaves[""]})
    other = ActorCriticPolicy(SPEC, named, Plain())
    with pytest.raises(EsperError, match="'a'"):
        other.act({"b": torch.zeros(3, 4)}, None, torch.zeros(3, 0), None)
    with pytest.raises(EsperError, match="'a'"):
        other.value(torch.zeros(3, 4), torch.zeros(3, 0))


def test_an_agent_learns_with_a_memory_of_ones_own() -> None:
    # The bit shown at the first of three steps is asked for at the last.
    spec = ActionSpec.independent([2])
    policy = ActorCriticPolicy(spec, OBSERVATIONS, GruNetwork())
    config = PPOConfig(learning_rate=0.02, n_epochs=4, n_minibatches=1, gamma=1.0)
    agent = PPOAgent(spec, policy, config, seed=0)
    generator = torch.Generator().manual_seed(0)
    share = 0.0
    for _ in range(25):
        bits = torch.randint(2, (32,), generator=generator)
        buffer, state = agent.make_buffer(32, 3), agent.initial_state(32)
        for t in range(3):
            observations = torch.zeros(32, 4)
            observations[:, 0] = (2.0 * bits - 1.0) * (t == 0)
            observations[:, 1] = float(t == 2)
            decision = agent.act(observations, None, state)
            state = decision.next_state
            is_right = decision.actions[:, 0] == bits
            ends = torch.full((32,), t == 2)
            buffer.add(
                observations,
                decision,
                rewards=(is_right & ends).float(),
                dones=ends,
                truncated=torch.zeros(32, dtype=torch.bool),
            )
        buffer.finish(torch.zeros(32))
        agent.update(buffer)
        share = float(is_right.float().mean())
    assert share > 0.9

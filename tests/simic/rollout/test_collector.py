"""The collector drives real Gymnasium environments and keeps ends and masks apart."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from esper.config.learning import NetworkConfig
from esper.errors import ShapeError, UnsupportedEnvironmentError
from esper.simic.agent import ActionSpec, PPOAgent
from esper.simic.policy import RecurrentPolicy
from esper.simic.policy.mask_reader import MaskReader
from esper.simic.rollout import VectorCollector


class CountdownEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """Counts down from ``start``; ends as it is told to; one choice of each head is illegal."""

    observation_space = spaces.Box(0.0, 100.0, (2,), np.float32)
    action_space = spaces.MultiDiscrete([2, 3])

    def __init__(self, start: int, terminated: bool, truncated: bool, mask: str = "tuple") -> None:
        self.start, self.ends, self.mask = start, (terminated, truncated), mask

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.left = self.start
        return self.observe(), self.info()

    def step(self, action: np.ndarray) -> Any:
        assert action[0] != 1
        assert action[1] != 2
        self.left -= 1
        terminated, truncated = self.ends if self.left == 0 else (False, False)
        return self.observe(), 1.0, terminated, truncated, self.info()

    def observe(self) -> np.ndarray:
        return np.array([self.left, self.start], np.float32)

    def info(self) -> dict[str, Any]:
        heads = (np.array([1, 0], np.int8), np.array([1, 1, 0], np.int8))
        return {"action_mask": heads if self.mask == "tuple" else np.concatenate(heads)}


def vector(*envs: Any, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> SyncVectorEnv:
    return SyncVectorEnv(list(envs), autoreset_mode=mode)


def make_agent(sizes: list[int] | None = None, observation_size: int = 2) -> PPOAgent:
    spec = ActionSpec.independent(sizes or [2, 3])
    generator = torch.Generator().manual_seed(0)
    sizes_of_net = NetworkConfig(feature_size=6, lstm_size=4)
    policy = RecurrentPolicy(spec, observation_size, sizes_of_net, generator=generator)
    return PPOAgent(spec, policy)


@pytest.mark.parametrize("mask", ["tuple", "flat"])
def test_steps_ends_masks_and_bootstraps_land_where_they_belong(mask: str) -> None:
    agent = make_agent()
    envs = vector(
        lambda: CountdownEnv(3, True, False, mask),
        lambda: CountdownEnv(2, False, True, mask),
        lambda: CountdownEnv(2, True, True, mask),
        lambda: CountdownEnv(99, True, False, mask),
    )
    buffer = agent.make_buffer(4, 5)
    collector = VectorCollector(envs, agent, seed=0)
    episodes = collector.collect(buffer)
    left = buffer.observations[..., 0].int().tolist()
    assert left == [[3, 2, 1, 3, 2], [2, 1, 2, 1, 2], [2, 1, 2, 1, 2], [99, 98, 97, 96, 95]]
    assert buffer.dones.int().tolist() == [
        [0, 0, 1, 0, 0],
        [0, 1, 0, 1, 0],
        [0, 1, 0, 1, 0],
        [0] * 5,
    ]
    # Both at once is the task's own end: nothing follows, so it is not a truncation here.
    assert buffer.truncated.int().tolist() == [[0] * 5, [0, 1, 0, 1, 0], [0] * 5, [0] * 5]
    assert buffer.masks[0, 0].tolist() == [[True, False, False], [True, True, False]]
    assert sorted(episodes.returns) == [2.0, 2.0, 2.0, 2.0, 3.0]
    assert sorted(episodes.lengths) == [2, 2, 2, 2, 3]

    # The truncated step's bootstrap is the value of the state it reached, before the reset.
    state = agent.initial_state(1)
    for observation in ([2.0, 2.0], [1.0, 2.0]):
        state = agent.act(torch.tensor([observation]), None, state).next_state
    expected = agent.value(torch.tensor([[0.0, 2.0]]), state)
    torch.testing.assert_close(buffer.bootstrap_values[1, 1:2], expected)

    # The next buffer goes on where this one stopped.
    collector.collect(buffer)
    assert buffer.observations[3, 0, 0] == 94.0
    assert bool((buffer.hidden_states[3, 0] != 0).any())
    agent.update(buffer)


def test_what_is_stored_is_what_was_acted_on_even_if_the_array_is_used_again() -> None:
    agent = make_agent()
    envs = SyncVectorEnv(
        [lambda: CountdownEnv(9, True, False)], copy=False, autoreset_mode=AutoresetMode.SAME_STEP
    )
    buffer = agent.make_buffer(1, 5)
    VectorCollector(envs, agent, seed=0).collect(buffer)
    assert buffer.observations[0, :, 0].tolist() == [9.0, 8.0, 7.0, 6.0, 5.0]


def test_the_last_value_is_that_of_the_state_reached() -> None:
    agent = make_agent()
    torch.nn.init.normal_(agent.policy.outputs.weight)  # type: ignore[attr-defined]
    envs = vector(lambda: CountdownEnv(9, True, False), lambda: CountdownEnv(3, True, False))
    buffer = agent.make_buffer(2, 3)
    VectorCollector(envs, agent, seed=0).collect(buffer)
    state = agent.initial_state(1)
    for left in (9.0, 8.0, 7.0):
        state = agent.act(torch.tensor([[left, 9.0]]), None, state).next_state
    expected = agent.value(torch.tensor([[6.0, 9.0]]), state)
    torch.testing.assert_close(buffer.bootstrap_values[0, 2:3], expected)
    assert torch.isnan(buffer.bootstrap_values[1, 2])


def test_an_environment_without_a_mask_among_others_is_named() -> None:
    agent = make_agent()
    masks = np.empty(2, object)
    masks[0] = CountdownEnv(3, True, False).info()["action_mask"]
    with pytest.raises(ShapeError, match="environment 1 gave no action mask"):
        MaskReader(agent.spec, agent.device).read_batch(masks)


def test_a_single_discrete_action_works_on_a_classic_environment() -> None:
    agent = make_agent([2], observation_size=4)
    envs = vector(*[lambda: gymnasium.make("CartPole-v1")] * 3)
    buffer = agent.make_buffer(3, 30)
    episodes = VectorCollector(envs, agent, seed=0).collect(buffer)
    assert buffer.lengths.tolist() == [30, 30, 30]
    assert np.isfinite(episodes.mean_return)
    assert agent.update(buffer).n_steps == 90


def test_environments_that_cannot_be_driven_are_refused_with_advice() -> None:
    def make() -> CountdownEnv:
        return CountdownEnv(3, True, False)

    with pytest.raises(UnsupportedEnvironmentError, match="FlattenObservation"):
        VectorCollector(vector(make), make_agent(observation_size=3))
    with pytest.raises(UnsupportedEnvironmentError, match=r"the agent's heads have sizes \(2, 4\)"):
        VectorCollector(vector(make), make_agent([2, 4]))
    agent = make_agent()
    envs = vector(lambda: CountdownEnv(3, True, False, "flat"))
    envs.reset = lambda **_: (np.zeros((1, 2)), {"action_mask": np.ones((1, 7))})  # type: ignore
    with pytest.raises(ShapeError, match=r"shape \(1, 7\)"):
        VectorCollector(envs, agent)


def test_a_rollout_goes_on_from_its_middle_as_if_nothing_had_been() -> None:
    def make_envs() -> SyncVectorEnv:
        return vector(
            lambda: CountdownEnv(3, True, False),
            lambda: CountdownEnv(2, False, True),
            lambda: CountdownEnv(5, True, False),
        )

    def run(pause_at: int | None) -> dict[str, torch.Tensor]:
        agent = make_agent()
        collector, buffer = VectorCollector(make_envs(), agent, seed=0), agent.make_buffer(3, 6)
        buffer.reset()
        for step in range(6):
            if step == pause_at:
                saved = agent.state_dict(), collector.state_dict(), buffer.state_dict()
                envs_state = collector.environments.save_state()
                agent = make_agent()
                buffer, collector = agent.make_buffer(3, 6), VectorCollector(make_envs(), agent)
                collector.environments.load_state(envs_state)
                agent.load_state_dict(saved[0])
                collector.load_state_dict(saved[1])
                buffer.load_state_dict(saved[2])
            taken = collector.step(buffer)
        collector.finish(buffer)
        ends = {"returns": taken.episode_returns, "lengths": taken.episode_lengths}
        tensors = {name: torch.from_numpy(array) for name, array in ends.items()}
        return tensors | buffer.state_dict()

    expected = run(None)
    assert expected["returns"].tolist() == [3.0, 2.0, 1.0]
    for pause_at in range(6):
        found = run(pause_at)
        assert found.keys() == expected.keys()
        for name in expected:
            torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0, equal_nan=True)

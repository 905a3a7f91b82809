"""A saved environment continues where it was, to the bit, or says why it cannot be saved."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation, RecordEpisodeStatistics, TimeLimit
from tests.simic.small_envs import Countdown, Env, Masked, Recall

from esper.errors import UnsupportedEnvironmentError
from esper.simic.rollout.env_state import load_env_state, save_env_state

ENVS = {
    "CartPole": lambda: gymnasium.make("CartPole-v1"),
    "Pendulum": lambda: gymnasium.make("Pendulum-v1"),
    "Acrobot": lambda: gymnasium.make("Acrobot-v1"),
    "MountainCarContinuous": lambda: gymnasium.make("MountainCarContinuous-v0"),
    "FrozenLake": lambda: gymnasium.make("FrozenLake-v1"),
    "masks": lambda: TimeLimit(Masked("dict"), 7),
    "recall": Recall,
    "stacked frames": lambda: FrameStackObservation(TimeLimit(Recall(), 2), 3),
    "queues": lambda: RecordEpisodeStatistics(gymnasium.make("CartPole-v1"), buffer_length=2),
}


def play(env: Env, n: int, random: np.random.Generator) -> list[Any]:
    """Take random steps, and return everything that was seen."""
    seen: list[Any] = []
    for _ in range(n):
        observation, reward, terminated, truncated, _ = env.step(draw(env, random))
        seen.append((np.asarray(observation).tolist(), float(reward), terminated, truncated))
        if terminated or truncated:
            seen.append(np.asarray(env.reset()[0]).tolist())
    return seen


def draw(env: Env, random: np.random.Generator) -> Any:
    masks = getattr(env.unwrapped, "masks", None)
    if masks is not None:
        return np.array([int(np.argmax(mask)) for mask in masks])
    env.action_space.seed(int(random.integers(2**31)))
    return env.action_space.sample()


@pytest.mark.parametrize("name", ENVS)
def test_a_restored_environment_continues_to_the_bit(name: str) -> None:
    env = ENVS[name]()
    env.reset(seed=3)
    play(env, 20, np.random.default_rng(0))
    saved = json.loads(json.dumps(save_env_state(env)))
    expected = play(env, 60, np.random.default_rng(1))

    other = ENVS[name]()
    other.reset(seed=99)
    load_env_state(other, saved)
    assert play(other, 60, np.random.default_rng(1)) == expected


def test_what_is_saved_is_a_copy() -> None:
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    saved = json.dumps(save_env_state(env))
    state = save_env_state(env)
    play(env, 9, np.random.default_rng(0))
    assert json.dumps(state) == saved


class Plain(Countdown):
    """Has attributes of every kind that can be saved."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = np.float32(1.5), np.int64(3), True, None, 1.0 / 3.0, float("inf")
        self.names = {"a": [1, 2], (1, 2): {"b"}, 3: "text"}
        self.queue = deque([1, 2], maxlen=2)
        self.grid = np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::2]
        self.flags = np.array([True, False])
        self.randoms = [
            np.random.Generator(kind(5))
            for kind in (np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64)
        ]


def test_values_of_every_plain_kind_come_back_as_they_were() -> None:
    env, other = Plain(), Plain()
    env.randoms[0].random(3)
    state = json.loads(json.dumps(save_env_state(env)))
    expected = [generator.random() for generator in env.randoms]
    other.names, other.queue, other.flags = {}, deque(), np.zeros(0)
    other.numbers = other.grid = None  # type: ignore[assignment]
    load_env_state(other, state)
    assert other.numbers == env.numbers
    assert [type(value) for value in other.numbers] == [type(value) for value in env.numbers]
    assert (other.names, other.queue, other.queue.maxlen) == (env.names, env.queue, 2)
    assert (other.grid.dtype, other.grid.tolist()) == (np.int16, env.grid.tolist())
    other.grid[0, 0] = 7
    assert (other.flags.dtype, other.flags.tolist()) == (np.bool_, [True, False])
    assert [generator.random() for generator in other.randoms] == expected


def test_an_attribute_that_cannot_be_saved_is_named() -> None:
    env = Countdown()
    env.parts = {"inner": [object()]}  # type: ignore[attr-defined]
    with pytest.raises(
        UnsupportedEnvironmentError, match=r"Countdown\.parts\['inner'\]\[0\] is an object"
    ):
        save_env_state(TimeLimit(env, 5))


class OwnState(Countdown):
    """Says itself what its state is."""

    def __init__(self) -> None:
        super().__init__()
        self.secret = object()

    def state_dict(self) -> dict[str, Any]:
        return {"left": np.array(self.left)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = int(state["left"])


def test_an_environment_may_say_itself_what_its_state_is() -> None:
    env, other = TimeLimit(OwnState(), 9), TimeLimit(OwnState(), 9)
    env.reset(seed=0)
    env.step(0)
    load_env_state(other, json.loads(json.dumps(save_env_state(env))))
    assert other.unwrapped.left == 2  # type: ignore[attr-defined]
    assert other.step(0)[0].tolist() == env.step(0)[0].tolist() == [1.0, 3.0]


def test_a_file_cannot_choose_what_is_called() -> None:
    env = Countdown()
    env.reset(seed=0)
    state = save_env_state(env)
    (layer,) = state
    _, words = layer["attributes"]["_np_random"]["$random"]
    layer["attributes"]["_np_random"] = {"$random": ["test", words]}
    with pytest.raises(KeyError, match="test"):
        load_env_state(env, state)

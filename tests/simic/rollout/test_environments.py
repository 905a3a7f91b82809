"""Environments of any kind give the same steps, ends and masks to the collector."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit, TransformObservation
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from tests.simic.small_envs import Countdown, Doors, Env, Masked

from esper.errors import EsperError, EsperWarning, RolloutError, UnsupportedEnvironmentError
from esper.simic import PPO, ActionSpec, NetworkConfig, PPOAgent, PPOConfig
from esper.simic.policy.actor_critic import ActorCriticPolicy
from esper.simic.policy.networks import EncoderTowers
from esper.simic.policy.observations import ObservationSpec
from esper.simic.policy.recurrent import RecurrentPolicy
from esper.simic.rollout import VectorCollector
from esper.simic.rollout.environments import Environments, LocalEnvironments, VectorEnvironments

MEMBERS: list[Callable[[], Env]] = [
    partial(Countdown, 3),
    partial(Countdown, 2, "truncation"),
    partial(Countdown, 4),
    partial(Countdown, 99),
]
SPEC = ActionSpec.from_space(Countdown.action_space)
OBSERVATIONS = ObservationSpec.from_space(Countdown.observation_space)


def make_agent(memory: bool) -> PPOAgent:
    network = NetworkConfig(hidden_sizes=(8,), feature_size=8, lstm_size=8)
    generator = torch.Generator().manual_seed(0)
    policy: Any
    if memory:
        policy = RecurrentPolicy(SPEC, OBSERVATIONS, network, generator=generator)
        torch.nn.init.normal_(policy.outputs.weight, generator=generator)
    else:
        towers = EncoderTowers(OBSERVATIONS, network)
        policy = ActorCriticPolicy(SPEC, OBSERVATIONS, towers, generator=generator)
        torch.nn.init.normal_(policy.value_layer.weight, generator=generator)
    return PPOAgent(SPEC, policy, PPOConfig(gamma=0.9, gae_lambda=0.8))


def make_environments(kind: str) -> Environments:
    if kind == "local":
        return LocalEnvironments([make() for make in MEMBERS], SPEC)
    envs = SyncVectorEnv(MEMBERS, autoreset_mode=AutoresetMode(kind))
    return VectorEnvironments(envs, SPEC)


KINDS = ["local", *(mode.value for mode in AutoresetMode)]


@pytest.mark.parametrize("memory", [False, True], ids=["mlp", "lstm"])
@pytest.mark.parametrize("kind", KINDS)
def test_advantages_are_those_computed_by_hand_in_every_autoreset_mode(
    kind: str, memory: bool
) -> None:
    """Rewards and ends of a countdown do not depend on actions, so all of it can be written out."""
    agent = make_agent(memory)
    buffer = agent.make_buffer(len(MEMBERS), 7)
    VectorCollector(make_environments(kind), agent, seed=0).collect(buffer)
    buffer.compute_advantages_and_returns(agent.config.gamma, agent.config.gae_lambda)
    for env, (start, is_cut) in enumerate([(3, False), (2, True), (4, False), (99, False)]):
        stored = [t for t in range(7) if not buffer.skipped[env, t]]
        expected = countdown_advantages(agent, start, is_cut, len(stored))
        torch.testing.assert_close(buffer.advantages[env, stored], expected, atol=1e-5, rtol=1e-5)
    assert bool(buffer.skipped.any()) == (kind == AutoresetMode.NEXT_STEP.value)


def countdown_advantages(agent: PPOAgent, start: int, is_cut: bool, n: int) -> torch.Tensor:
    """Return the advantages of n steps, episode by episode, from the definition."""
    gamma, lam = agent.config.gamma, agent.config.gae_lambda
    advantages: list[float] = []
    while len(advantages) < n:
        values, state = [], agent.initial_state(1)
        for left in range(start, -1, -1):
            seen = torch.tensor([[left, start]], dtype=torch.float32)
            values.append(float(agent.value(seen, state)))
            state = agent.act(seen, None, state).next_state
        length = min(start, n - len(advantages))
        # The state that the last stored step led to has a value, unless the task ended there.
        if length == start and not is_cut:
            values[start] = 0.0
        episode = [0.0] * (length + 1)
        for t in reversed(range(length)):
            delta = (start - t - 1) + gamma * values[t + 1] - values[t]
            episode[t] = delta + gamma * lam * episode[t + 1]
        advantages += episode[:length]
    return torch.tensor(advantages)


@pytest.mark.parametrize("memory", [False, True], ids=["mlp", "lstm"])
@pytest.mark.parametrize("kind", [mode.value for mode in AutoresetMode])
def test_a_vector_environment_stores_what_local_environments_store(kind: str, memory: bool) -> None:
    def collect(environments: Environments) -> tuple[Any, Any]:
        agent = make_agent(memory)
        buffer = agent.make_buffer(len(MEMBERS), 12)
        episodes = VectorCollector(environments, agent, seed=0).collect(buffer)
        return buffer, episodes

    local, _ = collect(make_environments("local"))
    vector, episodes = collect(make_environments(kind))
    for env in range(len(MEMBERS)):
        kept = ~vector.skipped[env]
        n = int(kept.sum())
        for name in ("observations", "rewards", "dones", "truncated", "values"):
            expected = getattr(local, name)[env, :n]
            torch.testing.assert_close(getattr(vector, name)[env, kept], expected, msg=name)
        if memory:
            states = vector.hidden_states[env, kept]
            torch.testing.assert_close(states, local.hidden_states[env, :n])
    # The returns of whole episodes: 2 + 1 + 0, 1 + 0 and 3 + 2 + 1 + 0.
    assert set(episodes.returns) == {3.0, 1.0, 6.0}
    assert set(episodes.lengths) == {3, 2, 4}


@pytest.mark.parametrize("memory", [False, True], ids=["mlp", "lstm"])
def test_nothing_is_learned_from_steps_that_only_reset(memory: bool) -> None:
    agent = make_agent(memory)
    buffer = agent.make_buffer(len(MEMBERS), 12)
    environments = make_environments(AutoresetMode.NEXT_STEP.value)
    VectorCollector(environments, agent, seed=0).collect(buffer)
    n_skipped = int(buffer.skipped.sum())
    assert n_skipped > 3
    assert agent.update(buffer).n_steps == 48 - n_skipped


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_episode_is_continued_by_the_value_of_its_last_observation(kind: str) -> None:
    agent = make_agent(memory=False)
    buffer = agent.make_buffer(len(MEMBERS), 6)
    VectorCollector(make_environments(kind), agent, seed=0).collect(buffer)
    value = agent.value(torch.tensor([[0.0, 2.0]]), torch.zeros(1, 0))
    assert buffer.truncated[1, 1]
    torch.testing.assert_close(buffer.bootstrap_values[1, 1:2], value)
    # A step that terminates is followed by nothing.
    assert not bool(buffer.truncated[[0, 2, 3]].any())


def test_a_time_limit_bootstraps_whatever_wraps_it() -> None:
    def make() -> Env:
        limited = TimeLimit(Countdown(99), max_episode_steps=3)
        return TransformObservation(limited, lambda seen: seen + 1.0, limited.observation_space)

    agent = make_agent(memory=False)
    buffer = agent.make_buffer(1, 4)
    VectorCollector(LocalEnvironments([make()], SPEC), agent, seed=0).collect(buffer)
    assert buffer.truncated[0].tolist() == [False, False, True, False]
    value = agent.value(torch.tensor([[97.0, 100.0]]), torch.zeros(1, 0))
    torch.testing.assert_close(buffer.bootstrap_values[0, 2:3], value)


def test_both_ends_at_once_are_a_termination() -> None:
    class Both(Countdown):
        def step(self, action: Any) -> Any:
            seen, reward, ends, _, info = super().step(action)
            return seen, reward, ends, ends, info

    for environments in (
        LocalEnvironments([Both(2)], SPEC),
        VectorEnvironments(SyncVectorEnv([partial(Both, 2)]), SPEC),
    ):
        environments.reset(0)
        for _ in range(2):
            taken = environments.step(np.zeros((1, 1), np.int64), None)
        assert (taken.terminated.tolist(), taken.truncated.tolist()) == ([True], [False])


# -- masks ----------------------------------------------------------------------------------------

MASKED = ActionSpec.from_space(Masked.action_space)
VECTORS: dict[str, Callable[[list[Callable[[], Env]]], Environments]] = {
    "local": lambda makes: LocalEnvironments([make() for make in makes], MASKED),
    **{
        mode.value: lambda makes, mode=mode: VectorEnvironments(
            SyncVectorEnv(makes, autoreset_mode=mode), MASKED
        )
        for mode in AutoresetMode
    },
}
MASK_FORMS = ("tuple", "flat", "dict", "method", "method of tuples")


def make_masked_agent() -> PPOAgent:
    observations = ObservationSpec.from_space(Masked.observation_space)
    towers = EncoderTowers(observations, NetworkConfig(hidden_sizes=(8,)))
    return PPOAgent(MASKED, ActorCriticPolicy(MASKED, observations, towers), seed=0)


class WrappedMasked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that knows nothing of masks."""

    def __init__(self, form: str) -> None:
        super().__init__(TimeLimit(Masked(form), 50))


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        # Each kind and each form at least once; all pairs in the slow tests.
        pytest.param(kind, form, marks=() if (i - j) % len(KINDS) == 0 else pytest.mark.slow)
        for i, kind in enumerate(KINDS)
        for j, form in enumerate(MASK_FORMS)
    ],
)
def test_no_illegal_action_is_ever_taken(kind: str, form: str) -> None:
    """The environment fails at the first of 2,000 actions that its mask forbids."""
    make: Any = partial(WrappedMasked, form)
    agent = make_masked_agent()
    buffer = agent.make_buffer(10, 200)
    VectorCollector(VECTORS[kind]([make] * 10), agent, seed=0).collect(buffer)
    # Masks leave about half of all choices, and what is stored are the masks.
    assert 0.4 < float(buffer.masks[..., :3].float().mean()) < 0.8
    assert bool(buffer.masks.gather(-1, buffer.actions.unsqueeze(-1)).all())


@pytest.mark.parametrize("form", ["tuple", "method"])
def test_worker_processes_give_masks_too(form: str) -> None:
    envs = AsyncVectorEnv([partial(WrappedMasked, form)] * 2)
    try:
        assert PPO(envs, n_steps=50, n_epochs=1, batch_size=50).learn(200).num_timesteps == 200
    finally:
        envs.close()


def test_worker_processes_without_masks_are_not_asked_for_them() -> None:
    envs = AsyncVectorEnv([Countdown] * 2)
    try:
        assert PPO(envs, n_steps=8, n_epochs=1, batch_size=8).learn(32).num_timesteps == 32
    finally:
        envs.close()


def test_masks_of_a_wrapped_vector_environment_are_not_dropped() -> None:
    envs = RecordEpisodeStatistics(SyncVectorEnv([partial(Masked, "method")] * 2))
    assert PPO(envs, n_steps=50, n_epochs=1, batch_size=50).learn(200).num_timesteps == 200


def test_a_vector_environment_may_have_the_method_itself() -> None:
    class Vector(SyncVectorEnv):
        def action_masks(self) -> np.ndarray:
            return np.array([[0, 1], [1, 0]])

    environments = VectorEnvironments(Vector([Countdown] * 2), SPEC)
    _, masks = environments.reset(0)
    assert masks.legal.tolist() == [[[False, True]], [[True, False]]]


class Forgetful(Masked):
    """Gives its mask only at some times."""

    def __init__(self, gives: Callable[[int], bool]) -> None:
        super().__init__("flat")
        self.gives, self.n_calls = gives, -1

    def info(self) -> dict[str, Any]:
        self.n_calls += 1
        return super().info() if self.gives(self.n_calls) else {}

    def step(self, action: Any) -> Any:
        seen, reward, _, _, info = super().step(action)
        return seen, reward, False, False, info


def run_steps(environments: Environments, n: int) -> None:
    _, masks = environments.reset(0)
    for _ in range(n):
        legal = masks.legal.numpy() if masks is not None else np.ones((1, 2, 4), bool)
        masks = environments.step(legal.argmax(-1), None).masks


@pytest.mark.parametrize("kind", VECTORS)
def test_a_mask_that_disappears_is_an_error(kind: str) -> None:
    environments = VECTORS[kind]([lambda: Forgetful(lambda call: call < 5)])
    with pytest.raises(RolloutError, match=r"environment 0.*action_mask.*step 5"):
        run_steps(environments, 5)


@pytest.mark.parametrize("kind", VECTORS)
def test_a_wrong_mask_is_named_by_environment_and_step(kind: str) -> None:
    class Odd(Masked):
        """Gives half a mask at its third step, or one choice too many."""

        def __init__(self, value: float | None) -> None:
            super().__init__("flat")
            self.value, self.n_calls = value, -1

        def info(self) -> dict[str, Any]:
            self.n_calls += 1
            mask = super().info()["action_mask"].astype(float)
            if self.n_calls == 3:
                mask = np.append(mask, 1.0) if self.value is None else mask
                mask[2] = 1.0 if self.value is None else self.value
            return {"action_mask": mask}

        def step(self, action: Any) -> Any:
            seen, reward, _, _, info = super().step(action)
            return seen, reward, False, False, info

    makes: list[Any] = [lambda: Odd(1.0), lambda: Odd(0.5)]
    with pytest.raises(EsperError, match=r"step 3.*environment 1 holds 0.5 for head 'head_0'"):
        run_steps(VECTORS[kind](makes), 3)
    if kind == "local":  # Gymnasium itself cannot stack masks of different sizes
        makes[1] = lambda: Odd(None)
        with pytest.raises(EsperError, match=r"step 3.*environment 1 has shape \(8,\)"):
            run_steps(VECTORS[kind](makes), 3)


@pytest.mark.parametrize("kind", VECTORS)
def test_masks_under_the_plural_key_are_not_dropped(kind: str) -> None:
    class Plural(Masked):
        def info(self) -> dict[str, Any]:
            return {"action_masks": super().info()["action_mask"]}

    run_steps(VECTORS[kind]([Plural] * 2), 20)  # it fails at an illegal action


@pytest.mark.parametrize("kind", VECTORS)
def test_masks_that_nothing_reads_are_an_error(kind: str) -> None:
    class Singular(Masked):
        def __init__(self) -> None:
            super().__init__("method")
            del self.action_masks

        def action_mask(self) -> np.ndarray:
            return self.current_masks()

    with pytest.raises(UnsupportedEnvironmentError, match="action_mask"):
        VECTORS[kind]([Singular]).reset(0)

    class Attribute(Masked):
        action_masks = np.ones(7)  # type: ignore[assignment]

    if kind == "local":
        with pytest.raises(UnsupportedEnvironmentError, match=r"action_masks.*ndarray"):
            VECTORS[kind]([Attribute])


@pytest.mark.parametrize("kind", VECTORS)
def test_masks_in_observations_alone_are_warned_of(kind: str) -> None:
    class Observed(Masked):
        observation_space = spaces.Dict(  # type: ignore[assignment]
            {"seen": Masked.observation_space, "action_mask": spaces.MultiBinary(7)}
        )

        def observe(self) -> Any:
            return {"seen": super().observe(), "action_mask": self.current_masks()}

        def info(self) -> dict[str, Any]:
            return {}

    with pytest.warns(EsperWarning, match=r"info\['action_mask'\]"):
        VECTORS[kind]([Observed]).reset(0)


@pytest.mark.parametrize("kind", VECTORS)
def test_a_mask_that_appears_late_is_an_error(kind: str) -> None:
    class Late(Forgetful):
        def step(self, action: Any) -> Any:
            self.masks = (np.ones(3, np.int8), np.ones(4, np.int8))
            return super().step(action)

    environments = VECTORS[kind]([lambda: Late(lambda call: call >= 3)])
    with pytest.raises(RolloutError, match=r"action_mask.*step 3"):
        run_steps(environments, 3)


@pytest.mark.parametrize("kind", VECTORS)
def test_a_mask_that_one_of_several_environments_forgets_is_an_error(kind: str) -> None:
    makes = [lambda: Masked("flat"), lambda: Forgetful(lambda call: call < 2)]
    environments = VECTORS[kind](makes)  # type: ignore[arg-type]
    with pytest.raises(EsperError, match="environment 1 gave no"):
        run_steps(environments, 2)


@pytest.mark.parametrize("kind", VECTORS)
def test_a_method_that_only_some_environments_have_is_an_error(kind: str) -> None:
    makes = [lambda: Masked("method"), lambda: Masked("flat")]
    with pytest.raises(UnsupportedEnvironmentError, match="environment 1 has no method"):
        VECTORS[kind](makes)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["mlp", "lstm"])
@pytest.mark.parametrize("is_vector", [False, True])
def test_a_conditional_mask_holds_for_user_environments(policy: str, is_vector: bool) -> None:
    env: Any = SyncVectorEnv([Doors] * 4) if is_vector else Doors
    model = PPO(env, policy, n_envs=4, n_steps=125, n_epochs=1)  # type: ignore[arg-type]
    assert model.learn(1_000).num_timesteps == 1_000


# -- what cannot be driven ------------------------------------------------------------------------


def test_environments_of_different_spaces_are_named() -> None:
    class Larger(Countdown):
        action_space = spaces.Discrete(3)

    with pytest.raises(UnsupportedEnvironmentError, match=r"environment 1 has action_space"):
        LocalEnvironments([Countdown(), Larger()], SPEC)


def test_a_vector_environment_must_say_how_it_resets() -> None:
    envs: VectorEnv[Any, Any, Any] = SyncVectorEnv([Countdown])
    envs.metadata = {}
    with pytest.raises(UnsupportedEnvironmentError, match="autoreset_mode"):
        VectorEnvironments(envs, SPEC)


def test_a_truncation_without_a_last_observation_is_an_error() -> None:
    envs = SyncVectorEnv([partial(Countdown, 1, "truncation")])
    envs.metadata = {**envs.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
    environments = VectorEnvironments(envs, SPEC)
    environments.reset(0)
    with pytest.raises(UnsupportedEnvironmentError, match="no 'final_obs'"):
        environments.step(np.zeros((1, 1), np.int64), None)


class Named(Countdown):
    """A countdown whose observation has parts."""

    observation_space = spaces.Dict(
        {"a": Countdown.observation_space, "b": spaces.Box(0.0, 100.0, (1,))}
    )

    def observe(self) -> Any:
        seen = super().observe()
        return {"a": seen, "b": -seen[:1]}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_last_observation_of_a_truncated_episode_may_have_parts(mode: AutoresetMode) -> None:
    makes = [partial(Named, 2, "truncation"), partial(Named, 3, "truncation")]
    environments = VectorEnvironments(SyncVectorEnv(makes, autoreset_mode=mode), SPEC)
    environments.reset(0)
    for _ in range(2):
        taken = environments.step(np.zeros((2, 1), np.int64), None)
    assert taken.truncated.tolist() == [True, False]
    assert isinstance(taken.final, dict)
    assert taken.final["a"][0].tolist() == [0.0, 2.0]
    assert taken.final["b"][0].tolist() == [0.0]
    assert isinstance(taken.observations, dict)
    assert taken.observations["a"][1].tolist() == [1.0, 3.0]


def test_dict_observations_do_not_fit_a_policy_for_vectors() -> None:
    with pytest.raises(UnsupportedEnvironmentError, match="FlattenObservation"):
        VectorCollector(SyncVectorEnv([Named]), make_agent(memory=False))


class ReusesItsArray(Env):
    """Counts to three in an array that it gives again and again."""

    observation_space = spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.count = np.zeros(1, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count[0] = 0.0
        return self.count, {}

    def step(self, action: Any) -> Any:
        self.count += 1.0
        return self.count, 0.0, False, bool(self.count[0] >= 3.0), {}


# In the mode SAME_STEP it is Gymnasium that keeps the array and resets after it.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != AutoresetMode.SAME_STEP.value])
def test_a_last_observation_is_not_overwritten_by_the_reset_that_follows(kind: str) -> None:
    spec = ActionSpec.from_space(ReusesItsArray.action_space)
    envs: Environments = LocalEnvironments([ReusesItsArray(), ReusesItsArray()], spec)
    if kind != "local":
        mode = AutoresetMode(kind)
        envs = VectorEnvironments(SyncVectorEnv([ReusesItsArray] * 2, autoreset_mode=mode), spec)
    envs.reset(0)
    for _ in range(3):
        step = envs.step(np.zeros((2, 1), np.int64), None)
    assert torch.equal(step.final, torch.full((2, 1), 3.0))

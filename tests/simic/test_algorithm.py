"""``PPO`` learns with its defaults, on any environment, and resumes as if nothing had happened."""

from __future__ import annotations

import builtins
import pickle
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from torch import Tensor, nn

from esper.errors import (
    CheckpointError,
    ConfigError,
    EsperError,
    NoLegalActionError,
    NonFiniteError,
    ShapeError,
    UnsupportedEnvironmentError,
)
from esper.simic import (
    PPO,
    ActionSpec,
    Callback,
    Checkpoint,
    Evaluate,
    NetworkConfig,
    evaluate,
    linear,
)
from esper.simic.algorithm import EsperWarning
from esper.storage.checkpoint_folder import CheckpointWarning
from tests.simic.small_envs import Countdown, Doors, Env, Masked, Picks, Recall

SMALL = NetworkConfig(hidden_sizes=(16,), image_size=16)
SMALL_LSTM = NetworkConfig(feature_size=16, lstm_size=16, image_size=16)


def same_weights(first: PPO, second: PPO) -> bool:
    mine, other = first.agent.policy.state_dict(), second.agent.policy.state_dict()
    assert mine.keys() == other.keys()
    return all(torch.equal(mine[name], other[name]) for name in mine)


# -- learning -------------------------------------------------------------------------------------


def test_the_defaults_learn_cartpole() -> None:
    model = PPO("CartPole-v1", n_envs=8, seed=0).learn(8_000)
    # A random policy gets 22; 200 was once called solved.
    assert evaluate(model, n_episodes=10).mean > 200.0


@pytest.mark.parametrize("scale", [1e-3, pytest.param(1.0, marks=pytest.mark.slow), 1e3])
def test_rewards_of_any_size_are_learned_from(scale: float) -> None:
    model = PPO(partial(Picks, scale), n_envs=8, n_steps=32, learning_rate=3e-3).learn(1536)
    # Five choices of four each: chance gets 1.25 of 5.
    assert evaluate(model, n_episodes=4).mean / scale == pytest.approx(5.0)


def test_a_memory_learns_what_cannot_be_seen() -> None:
    settings: Any = {"n_envs": 8, "n_steps": 64, "learning_rate": 1e-2}
    model = PPO(Recall, "lstm", network=SMALL_LSTM, **settings).learn(2560)
    assert evaluate(model, n_episodes=50).mean == 1.0
    model = PPO(Recall, "mlp", network=SMALL, **settings).learn(1024)
    assert evaluate(model, n_episodes=50).mean < 0.75


def test_continuous_actions_are_learned() -> None:
    class Aim(gymnasium.Env[Any, Any]):
        """One step, which pays for an action near a target that is shown."""

        observation_space = spaces.Box(-1.0, 1.0, (2,))
        action_space = spaces.Box(-2.0, 2.0, (2,))

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.target = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
            return self.target, {}

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action)
            return self.target, -float(np.abs(action - self.target).sum()), True, False, {}

    for squash in (False, True):
        network = NetworkConfig(hidden_sizes=(32,), squash=squash, log_std_init=-1.0)
        settings: Any = {"n_envs": 16, "n_steps": 16, "learning_rate": 1e-2, "batch_size": 128}
        model = PPO(Aim, network=network, **settings)
        before = evaluate(model, n_episodes=50).mean
        assert evaluate(model.learn(2048), n_episodes=50).mean > 0.4 * before


def test_images_in_bytes_are_learned_from() -> None:
    class Bright(gymnasium.Env[Any, Any]):
        """Shows a bright half of a picture and pays for saying which."""

        observation_space = spaces.Box(0, 255, (8, 8, 1), np.uint8)
        action_space = spaces.Discrete(2, start=3)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.side = int(self.np_random.integers(2))
            image = self.np_random.integers(0, 100, (8, 8, 1), np.uint8)
            image[:, 4 * self.side : 4 * self.side + 4] += 100
            return image, {}

        def step(self, action: Any) -> Any:
            is_right = action == 3 + self.side
            return self.reset()[0], float(is_right), True, False, {}

    model = PPO(Bright, n_envs=8, n_steps=32, learning_rate=1e-3, network=SMALL, n_epochs=4)
    assert model.policy_name == "cnn"
    assert not model.config.normalize_returns
    assert PPO(Bright, n_steps=8, normalize_returns=True).config.normalize_returns
    assert evaluate(model.learn(1536), n_episodes=50).mean > 0.9


def test_the_seed_decides_everything() -> None:
    def train(seed: int) -> PPO:
        return PPO("CartPole-v1", n_envs=2, n_steps=32, seed=seed, n_epochs=2).learn(128)

    assert same_weights(train(1), train(1))
    assert not same_weights(train(1), train(2))
    fresh = [PPO("CartPole-v1", policy, seed=seed) for policy in ("mlp", "lstm") for seed in (1, 2)]
    assert not same_weights(fresh[0], fresh[1])
    assert not same_weights(fresh[2], fresh[3])


def test_global_randomness_is_neither_used_nor_changed() -> None:
    def train() -> PPO:
        return PPO(Picks, "lstm", n_envs=2, n_steps=16, network=SMALL_LSTM).learn(64)

    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002 - this is what must not matter
    first, state = train(), torch.get_rng_state()
    torch.manual_seed(2)
    assert same_weights(first, train())
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)


# -- environments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "env",
    [
        "CartPole-v1",
        gymnasium.make("CartPole-v1"),
        Picks,
        lambda: Picks(2.0),
        partial(Countdown, 5, "truncation"),
        SyncVectorEnv([Picks] * 3),
        gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync"),
        gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point"),
    ],
    ids=["id", "environment", "class", "function", "partial", "vector", "make_vec", "native"],
)
@pytest.mark.parametrize("policy", ["mlp", "lstm"])
def test_environments_may_come_in_any_form(env: Any, policy: Any) -> None:
    network = SMALL if policy == "mlp" else SMALL_LSTM
    model = PPO(env, policy, n_steps=16, n_epochs=1, network=network)
    model.learn(2 * model.n_envs * 16)
    assert model.num_timesteps == 2 * model.n_envs * 16
    assert np.isfinite(model.metrics["train/value_loss"])


class Everything(gymnasium.Env[Any, Any]):
    """Observations and actions of every kind at once."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
            "vector": spaces.Box(-1.0, 1.0, (3,)),
            "category": spaces.Discrete(4, start=1),
            "bits": spaces.MultiBinary(2),
        }
    )
    action_space = spaces.Tuple(
        [
            spaces.Discrete(3, start=-1),
            spaces.Box(-2.0, 2.0, (2,)),
            spaces.MultiBinary(2),
            spaces.MultiDiscrete([2, 4]),
        ]
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        seen = self.observation_space.sample()
        return seen, float(action[0]), bool(seen["bits"][0]), False, {}


@pytest.mark.parametrize("policy", [None, "lstm"])
def test_observations_and_actions_of_every_kind_go_together(policy: Any) -> None:
    network = SMALL if policy is None else SMALL_LSTM
    model = PPO(Everything, policy, n_envs=2, n_steps=16, network=network).learn(64)
    assert model.policy_name == (policy or "multi-input")
    action, _ = model.predict(Everything().reset(seed=0)[0])
    assert Everything.action_space.contains(action)


@pytest.mark.parametrize("squash", [False, True])
def test_continuous_actions_stay_within_their_bounds(squash: bool) -> None:
    class Narrow(Picks):
        action_space = spaces.Box(np.float32([-0.1, 2.0]), np.float32([0.1, 3.0]))

        def step(self, action: Any) -> Any:
            assert self.action_space.contains(action), action
            return super().step(0)

    network = NetworkConfig(squash=squash, log_std_init=1.0)
    model = PPO(Narrow, n_envs=4, n_steps=50, network=network, n_epochs=1).learn(400)
    drawn = [model.predict(np.zeros(5), deterministic=False)[0] for _ in range(200)]
    assert all(Narrow.action_space.contains(action) for action in drawn)
    # Clipping often ends at a bound; squashing hardly ever does.
    share = np.mean([action[1] in (2.0, 3.0) for action in drawn])
    assert share < 0.05 if squash else share > 0.2


def test_heads_that_do_not_matter_are_declared_by_the_environment_or_the_user() -> None:
    spec = ActionSpec(
        names=("op", "where"),
        sizes=(3, 4),
        op_head="op",
        relevance=((True, False), (True, True), (True, True)),
    )

    class Declared(Masked):
        action_spec = spec

    assert PPO(Declared, n_steps=16).agent.spec is spec
    assert PPO(Masked, n_steps=16, action_spec=spec).agent.spec is spec
    assert PPO(Masked, n_steps=16).agent.spec.is_independent
    with pytest.raises(EsperError, match=r"sizes \(3, 4\).*sizes \(4,\)"):
        PPO(Picks, action_spec=spec)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": "CartPol-v1"}, "Did you mean 'CartPole-v1'"),
        ({"env": 3}, "env is an int"),
        ({"env": lambda: 3}, "returned an int"),
        ({"env": partial(Countdown, bad=1)}, "without arguments"),
        ({"env": Picks(), "n_envs": 2}, "n_envs is 2"),
        ({"env": SyncVectorEnv([Picks] * 2), "n_envs": 3}, "n_envs is 3"),
        ({"n_envs": 0}, "n_envs is 0"),
        ({"n_steps": 0}, "n_steps is 0"),
        ({"n_steps": 1.5}, r"n_steps is 1\.5"),
        ({"seed": -1}, "seed is -1"),
        ({"policy": "ltsm"}, "Did you mean 'lstm'"),
        ({"policy": "cnn"}, "policy is 'cnn'"),
        ({"policy": 3}, "policy is 3"),
        ({"policy": nn.Linear(5, 3)}, "output_size"),
        ({"learning_rat": 0.1}, "Did you mean 'learning_rate'"),
        ({"batchsize": 64}, "Did you mean 'batch_size'"),
        ({"clip": "both"}, "clip is 'both'"),
        ({"learning_rate": -1.0}, r"learning_rate is -1\.0"),
        ({"network": NetworkConfig(squash=True), "env": "Unbounded"}, "no bounds"),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], message: str) -> None:
    class Unbounded(Picks):
        action_space = spaces.Box(-np.inf, np.inf, (2,))

    env = arguments.pop("env", Picks)
    with pytest.raises(EsperError, match=message):
        PPO(Unbounded if env == "Unbounded" else env, **arguments)


def test_learning_needs_a_number_of_steps() -> None:
    model = PPO(Picks, n_steps=16)
    with pytest.raises(ConfigError, match="total_timesteps"):
        model.learn()
    with pytest.raises(ConfigError, match="total_timesteps is 0"):
        model.learn(0)


def test_steps_are_rounded_up_to_whole_rollouts_and_metrics_have_their_usual_names() -> None:
    model = PPO(Picks, n_envs=2, n_steps=16, batch_size=8, n_epochs=3).learn(33)
    assert model.num_timesteps == 64
    assert model.metrics.keys() >= {
        "rollout/ep_rew_mean",
        "rollout/ep_len_mean",
        "time/fps",
        "time/total_timesteps",
        "train/approx_kl",
        "train/clip_fraction",
        "train/clip_range",
        "train/explained_variance",
        "train/learning_rate",
        "train/policy_gradient_loss",
        "train/value_loss",
    }
    assert model.metrics["train/n_gradient_steps"] == 3 * 32 / 8
    assert model.metrics["time/total_timesteps"] == 64.0


def test_a_rollout_holds_2048_steps_unless_told_otherwise() -> None:
    assert PPO(Picks, n_envs=8).n_steps == 256
    assert PPO(Picks).n_steps == 2048
    assert PPO(Picks, n_envs=3000).n_steps == 1


def test_progress_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("esper.progress.LOG_INTERVAL", 0.001)
    PPO(Picks, n_envs=2, n_steps=16, n_epochs=1).learn(256, progress=True)
    shown = capsys.readouterr().err
    assert "of 256 steps" in shown
    assert "return" in shown
    assert "learning: finished in" in shown


def test_numbers_that_are_not_finite_leave_the_policy_as_it_was() -> None:
    class Broken(Picks):
        def observe(self) -> np.ndarray:
            return super().observe() * (np.nan if self.time == 3 else 1.0)

    model = PPO(Broken, n_envs=2, n_steps=16)
    before = {name: t.clone() for name, t in model.agent.policy.state_dict().items()}
    with pytest.raises(NonFiniteError, match=r"not finite|NaN"):
        model.learn(64)
    assert all(torch.equal(before[k], v) for k, v in model.agent.policy.state_dict().items())


def test_an_update_that_goes_wrong_is_taken_back() -> None:
    model = PPO(Picks, n_envs=2, n_steps=16, learning_rate=1e30)
    before = {name: t.clone() for name, t in model.agent.policy.state_dict().items()}
    with pytest.raises(NonFiniteError, match="learning_rate"):
        model.learn(64)
    assert model.num_timesteps == 32
    assert all(torch.equal(before[k], v) for k, v in model.agent.policy.state_dict().items())
    # Nothing of it is left in the optimizer either.
    model.set_rates(learning_rate=1e-3)
    assert np.isfinite(model.learn(64).metrics["train/value_loss"])


# -- using a policy -------------------------------------------------------------------------------


def test_one_observation_and_a_batch_of_them_get_the_same_actions() -> None:
    model = PPO("CartPole-v1", n_envs=2, n_steps=32, network=SMALL).learn(512)
    batch = np.random.default_rng(0).normal(size=(9, 4))
    actions, state = model.predict(batch)
    assert actions.shape == (9,)
    assert state.shape == (9, 0)
    assert [int(model.predict(seen)[0]) for seen in batch] == actions.tolist()
    assert set(actions.tolist()) == {0, 1}
    assert model.predict(batch[0].tolist())[0] == actions[0]


@pytest.mark.parametrize("policy", ["mlp", "lstm"])
def test_observations_of_another_shape_are_named(policy: Any) -> None:
    model = PPO(Picks, policy, n_steps=16)
    for shape in ((4,), (2, 4), ()):
        with pytest.raises(EsperError, match="shape"):
            model.predict(np.zeros(shape))
    named = PPO(Everything, None if policy == "mlp" else policy, n_steps=16)
    seen = Everything().reset(seed=0)[0]
    with pytest.raises(EsperError, match="vector"):
        named.predict({**seen, "vector": np.zeros(4)})
    with pytest.raises(EsperError, match="vector"):
        named.predict({name: part for name, part in seen.items() if name != "vector"})


@pytest.mark.parametrize("use", [lambda model: model.predict([0.0] * 4), evaluate])
def test_using_a_policy_leaves_the_modes_of_its_modules_alone(
    use: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = PPO("CartPole-v1")
    modules = list(model.policy.modules())  # type: ignore[attr-defined]
    modules[0].train()
    modules[1].eval()  # as a user may freeze a part
    before, seen = [module.training for module in modules], list[bool]()

    def fail(*_: object) -> None:
        seen.extend(module.training for module in modules)
        raise RuntimeError

    monkeypatch.setattr(model.policy, "act", fail)
    with pytest.raises(RuntimeError):
        use(model)
    assert not any(seen)
    assert [module.training for module in modules] == before


def test_predict_remembers_by_the_state_it_returns() -> None:
    model = PPO(Recall, "lstm", n_envs=8, n_steps=64, learning_rate=1e-2, network=SMALL_LSTM)
    model.learn(2560)
    env = Recall()
    for seed in range(10):
        seen, state, done = env.reset(seed=seed)[0], None, False
        while not done:
            action, state = model.predict(seen, state)
            seen, reward, done, _, _ = env.step(action)
        assert reward == 1.0
    # Flags start an episode anew, as zeros do.
    shown = np.float32([[1.0, 0.0], [-1.0, 0.0]])
    _, state = model.predict(shown)
    _, fresh = model.predict(shown, state, episode_start=[True, False])
    torch.testing.assert_close(fresh[0], state[0])
    assert not torch.allclose(fresh[1], state[1])
    with pytest.raises(ShapeError, match=r"state has shape \(2, 32\); \[1, 32\]"):
        model.predict(shown[0], state)


@pytest.mark.parametrize("deterministic", [False, True])
def test_predict_obeys_masks_in_every_form(deterministic: bool) -> None:
    model = PPO(Masked, n_steps=16)
    seen = np.zeros(5, np.float32)
    heads = np.array([0, 1, 0]), np.array([0, 0, 0, 1])
    forms = [heads, np.concatenate(heads), {"head_0": heads[0], "head_1": heads[1]}]
    for masks in forms:
        action, _ = model.predict(seen, masks=masks, deterministic=deterministic)
        assert action.tolist() == [1, 3]
    batch = np.zeros((2, 5), np.float32)
    other = np.array([1, 0, 0]), np.array([1, 0, 0, 0])
    batches: list[Any] = [
        [heads, other],
        np.stack([np.concatenate(heads), np.concatenate(other)]),
        {f"head_{i}": np.stack([heads[i], other[i]]) for i in (0, 1)},
    ]
    for masks in batches:
        actions, _ = model.predict(batch, masks=masks, deterministic=deterministic)
        assert actions.tolist() == [[1, 3], [0, 0]]
    with pytest.raises(ShapeError, match=r"\(6,\)"):
        model.predict(seen, masks=np.ones(6))
    for masks in forms:
        with pytest.raises(ShapeError, match=r"shape|for 2 observations"):
            model.predict(batch, masks=masks)
    with pytest.raises(ShapeError, match="masks holds 1 mask for 2 observations"):
        model.predict(batch, masks=[heads])


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_conditional_mask_without_a_legal_choice_is_named(deterministic: bool) -> None:
    table = np.array([[1, 1, 1], [0, 0, 0], [1, 1, 1]])
    masks = {"move": np.array([0, 1, 0]), "door|move": table}
    with pytest.raises(NoLegalActionError, match=r"'door' .* in row 1 of its mask 'door\|move';"):
        PPO(Doors).predict(np.zeros(2), masks=masks, deterministic=deterministic)


# -- saving ---------------------------------------------------------------------------------------


class Own(nn.Module):
    """A network without memory."""

    output_size = 6

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.layer = nn.Linear(space.shape[0], 6)

    def forward(self, observations: Tensor) -> Tensor:
        return torch.tanh(self.layer(observations))


class OwnMemory(nn.Module):
    """A network with a memory."""

    output_size = state_size = 6

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.cell = nn.GRUCell(space.shape[0], 6)

    def forward(self, observations: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.cell(observations, state)
        return state, state


class Squares(Picks):
    """Shows its time as a small picture."""

    observation_space = spaces.Box(0, 255, (8, 8, 1), np.uint8)

    def observe(self) -> np.ndarray:
        image = np.zeros((8, 8, 1), np.uint8)
        image[self.time] = 255
        return image


KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "mlp": (Picks, "mlp", {}),
    "lstm": (Picks, "lstm", {"network": SMALL_LSTM}),
    "cnn": (Squares, "cnn", {"network": SMALL}),
    "everything": (Everything, "multi-input", {"network": SMALL}),
    "everything with memory": (Everything, "lstm", {"network": SMALL_LSTM}),
    "clipped": ("Pendulum-v1", "mlp", {"normalize_rewards": True}),
    "squashed": (
        "Pendulum-v1",
        "mlp",
        {"network": NetworkConfig(squash=True, activation="relu", normalize_observations=True)},
    ),
    "normalised memory": (
        "Pendulum-v1",
        "lstm",
        {"network": NetworkConfig(lstm_size=8, normalize_observations=True)},
    ),
    "masks": (partial(Masked, "dict"), "mlp", {"clip": "joint"}),
    "own": (Picks, Own, {}),
    "own with memory": (Picks, OwnMemory, {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_policy_is_saved_and_loaded_without_unpickling(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env, policy, settings = KINDS[kind]
    model = PPO(env, policy, n_envs=2, n_steps=16, n_epochs=1, **settings).learn(64)
    model.save(tmp_path / "model")

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was unpickled")

    for module, names in ((pickle, ("load", "loads", "Unpickler")), (torch, ("load",))):
        for name in names:
            monkeypatch.setattr(module, name, refuse)
    own = policy if isinstance(policy, type) else None
    given = None if isinstance(env, str) else env
    loaded = PPO.load(tmp_path / "model", given, policy=own)
    without = PPO.load(tmp_path / "model", policy=own)
    monkeypatch.undo()

    model.observation_space.seed(0)
    seen, state = model.observation_space.sample(), None
    masks = np.ones(7) if kind == "masks" else None
    for _ in range(3):
        answers = [one.predict(seen, state, masks=masks) for one in (model, loaded, without)]
        assert str(answers[0][0]) == str(answers[1][0]) == str(answers[2][0])
        state = answers[0][1]
        assert torch.equal(state, answers[1][1])
        seen = model.observation_space.sample()
    assert same_weights(model, loaded)
    assert loaded.settings() == model.settings()
    assert loaded.num_timesteps == 64
    # Training goes on with the same optimizer and statistics of rewards.
    loaded.learn(32)
    assert loaded.num_timesteps == 96


def test_a_network_of_ones_own_must_be_passed_again(tmp_path: Path) -> None:
    PPO(Picks, Own, n_steps=16).save(tmp_path / "model")
    with pytest.raises(CheckpointError, match="pass policy=Own"):
        PPO.load(tmp_path / "model", Picks)


def test_a_model_without_an_environment_predicts_but_does_not_learn(tmp_path: Path) -> None:
    PPO(Picks, n_steps=16, normalize_rewards=True).learn(16).save(tmp_path / "a")
    model = PPO.load(tmp_path / "a")
    with pytest.raises(UnsupportedEnvironmentError, match=r"PPO\.load\(path, env="):
        model.learn(16)
    # Saving it again loses nothing.
    model.save(tmp_path / "b")
    again = PPO.load(tmp_path / "b", Picks)
    assert again.settings()["normalize_rewards"]
    assert again.learn(16).num_timesteps == 32


def test_a_model_fits_only_environments_of_its_spaces(tmp_path: Path) -> None:
    PPO(Picks, n_steps=16).save(tmp_path / "model")
    with pytest.raises(UnsupportedEnvironmentError, match=r"observation space.*2,.*5,"):
        PPO.load(tmp_path / "model", Recall)

    class Wider(Picks):
        observation_space = spaces.Box(0.0, 2.0, (5,), np.float32)

    with pytest.raises(UnsupportedEnvironmentError, match=r"observation space.*2\.0.*1\.0"):
        PPO.load(tmp_path / "model", Wider)

    class MoreMoves(Picks):
        action_space = spaces.Discrete(9)

    message = r"action space is Discrete\(9\).*Discrete\(4\)"
    with pytest.raises(UnsupportedEnvironmentError, match=message):
        PPO.load(tmp_path / "model", MoreMoves)
    for env in (MoreMoves, MoreMoves(), SyncVectorEnv([MoreMoves])):
        with pytest.raises(UnsupportedEnvironmentError, match=message):
            evaluate(PPO(Picks, n_steps=16), env, 1)


def test_a_file_cannot_have_a_module_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "import gymnasium\n"
        "from tests.simic.small_envs import Picks\n"
        "if 'Harm-v0' not in gymnasium.registry:\n"
        "    gymnasium.register('Harm-v0', entry_point=Picks)\n"
    )
    (tmp_path / "harmful_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    model = PPO("harmful_module:Harm-v0", n_steps=16).learn(16)
    model.save(tmp_path / "model")
    del sys.modules["harmful_module"]
    gymnasium.registry.pop("Harm-v0")
    loaded = PPO.load(tmp_path / "model")
    assert "harmful_module" not in sys.modules
    with pytest.raises(UnsupportedEnvironmentError, match="without an environment"):
        loaded.learn(16)
    assert PPO.load(tmp_path / "model", "harmful_module:Harm-v0").learn(16).num_timesteps == 32


def test_saving_again_replaces_the_model(tmp_path: Path) -> None:
    model = PPO(Picks, n_steps=16).learn(16)
    model.save(tmp_path / "model")
    model.learn(16).save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", Picks)
    assert loaded.num_timesteps == 32
    assert same_weights(model, loaded)


# -- resuming -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("four_threads")
def test_only_another_number_of_threads_while_training_is_warned_of(tmp_path: Path) -> None:
    checkpoints, best, saved = (tmp_path / name for name in ("checkpoints", "best", "saved"))
    callbacks = [Checkpoint(checkpoints), Evaluate(16, save_best=best, n_episodes=1)]
    PPO("CartPole-v1", n_steps=16).learn(16, callbacks=callbacks).save(saved)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PPO.resume(checkpoints)
        PPO.load(best)
        PPO.load(saved)
    torch.set_num_threads(3)  # as the user chose, so learn keeps it
    with pytest.warns(CheckpointWarning, match="threads 1, now 3"):
        PPO.resume(checkpoints)


class StopAt(Callback):
    """Interrupts training."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_update_end(self, model: PPO) -> None:
        if model.num_timesteps >= self.steps:
            model.stop()


class Counter(Callback):
    """Has a state of its own, on which training depends."""

    count = 0

    def on_step(self, model: PPO) -> None:
        self.count += 1

    def on_update_end(self, model: PPO) -> None:
        model.set_rates(ent_coef=1e-4 * self.count)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


RESUMED: dict[str, tuple[Any, dict[str, Any]]] = {
    "CartPole": ("CartPole-v1", {}),
    "CartPole with an LSTM": ("CartPole-v1", {"policy": "lstm", "network": SMALL_LSTM}),
    "Pendulum, all normalised": (
        "Pendulum-v1",
        {
            "network": NetworkConfig(hidden_sizes=(16,), normalize_observations=True),
            "normalize_rewards": True,
        },
    ),
    "masks": (partial(Masked, "dict"), {}),
    "masks by method": (partial(Masked, "method"), {}),
    "masks given other choices": (Doors, {}),
    "memory of one's own": (Recall, {"policy": OwnMemory}),
    "vector of members": (
        lambda: SyncVectorEnv([Masked] * 2, autoreset_mode="SameStep"),
        {"n_envs": None},
    ),
}
COVERED = ("CartPole", "masks", "masks by method")
"""Kinds whose parts are all in others."""


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.slow if kind in COVERED else ()) for kind in RESUMED],
)
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(kind: str, tmp_path: Path) -> None:
    env, settings = RESUMED[kind]
    is_vector = kind.startswith("vector")

    def make_env() -> Any:
        return env() if is_vector else env

    def make() -> PPO:
        given: Any = {"n_envs": 2, "n_steps": 32, "n_epochs": 2, "batch_size": 32, **settings}
        return PPO(make_env(), learning_rate=linear(1e-2), seed=3, **given)

    def callbacks(name: str) -> list[Callback]:
        eval_env = None if not is_vector else Masked
        return [
            Checkpoint(tmp_path / name, 64),
            Evaluate(96, n_episodes=2, env=eval_env),
            Counter(),
        ]

    whole = make().learn(256, callbacks=callbacks("whole"))
    make().learn(256, callbacks=[*callbacks("parts"), StopAt(128)])
    policy = settings.get("policy")
    resumed = PPO.resume(
        tmp_path / "parts",
        None if isinstance(env, str) else make_env(),
        policy=policy if isinstance(policy, type) else None,
    )
    assert (resumed.num_timesteps, resumed.total_timesteps) == (128, 256)
    resumed.learn(callbacks=callbacks("parts"))
    assert resumed.num_timesteps == whole.num_timesteps == 256
    assert same_weights(whole, resumed)
    timing = {"time/fps"}
    assert {k: v for k, v in resumed.metrics.items() if k not in timing} == {
        k: v for k, v in whole.metrics.items() if k not in timing
    }


def test_a_vector_environment_may_save_its_own_state(tmp_path: Path) -> None:
    class Whole(SyncVectorEnv):
        def state_dict(self) -> list[Any]:
            return [*(env.left for env in self.envs), *self._autoreset_envs.tolist()]  # type: ignore

        def load_state_dict(self, state: list[Any]) -> None:
            for env, left in zip(self.envs, state, strict=False):
                env.left = left  # type: ignore[attr-defined]
            self._autoreset_envs = np.array(state[len(self.envs) :])

    def make() -> PPO:
        return PPO(Whole([partial(Countdown, n) for n in (3, 5)]), n_steps=16, batch_size=8)

    whole = make().learn(96)
    callbacks = [Checkpoint(tmp_path / "run", 32), StopAt(32)]
    make().learn(96, callbacks=callbacks)
    resumed = PPO.resume(tmp_path / "run", Whole([partial(Countdown, n) for n in (3, 5)]))
    assert same_weights(whole, resumed.learn())


@pytest.mark.parametrize("mode", ["NextStep", "worker processes"])
def test_vector_environments_whose_state_is_out_of_reach_are_told_of(
    mode: str, tmp_path: Path
) -> None:
    envs: Any = SyncVectorEnv([Picks] * 2)
    if mode == "worker processes":
        envs = AsyncVectorEnv([Picks] * 2, autoreset_mode="SameStep")
    model = PPO(envs, n_steps=16, batch_size=8)
    with pytest.warns(EsperWarning, match=r"VectorEnv cannot be saved.*new episodes"):
        model.learn(32, callbacks=Checkpoint(tmp_path / "run", 32))
    model.close()


def test_an_environment_that_cannot_be_saved_is_told_of_and_resumed_with_new_episodes(
    tmp_path: Path,
) -> None:
    class Opaque(Picks):
        def __init__(self) -> None:
            super().__init__()
            self.handle = object()

    model = PPO(Opaque, n_envs=2, n_steps=16)
    with pytest.warns(EsperWarning, match=r"Opaque\.handle is an object.*new episodes"):
        model.learn(96, callbacks=[Checkpoint(tmp_path / "run", 32), StopAt(32)])
    with pytest.warns(EsperWarning, match="new episodes"):
        resumed = PPO.resume(tmp_path / "run", Opaque)
    assert same_weights(model, resumed)
    assert resumed.learn().num_timesteps == 96


def test_a_rate_that_is_any_function_cannot_be_resumed_and_is_told_of(tmp_path: Path) -> None:
    model = PPO(Picks, n_envs=2, n_steps=16, learning_rate=lambda left: 1e-3 * left)
    with pytest.warns(EsperWarning, match=r"learning_rate.*linear"):
        model.learn(64, callbacks=Checkpoint(tmp_path / "run", 32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PPO(Picks, n_envs=2, n_steps=16, learning_rate=linear(1e-3)).learn(
            32, callbacks=Checkpoint(tmp_path / "other", 32)
        )


def test_only_a_checkpoint_can_be_resumed(tmp_path: Path) -> None:
    PPO(Picks, n_steps=16).learn(16).save(tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"PPO\.load"):
        PPO.resume(tmp_path / "model", Picks)


def test_nothing_is_evaluated_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callbacks = [Checkpoint(tmp_path / "run", 16), StopAt(16)]
    PPO("CartPole-v1", n_envs=2, n_steps=8).learn(32, callbacks=callbacks)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("code was run")

    for name in ("eval", "exec"):
        monkeypatch.setattr(builtins, name, refuse)
    monkeypatch.setattr(pickle, "loads", refuse)
    PPO.resume(tmp_path / "run")


def test_closing_closes_the_environments() -> None:
    closed: list[int] = []

    class Closing(Picks):
        def close(self) -> None:
            closed.append(1)

    env: type[Env] = Closing
    PPO(env, n_envs=3, n_steps=16).close()
    assert len(closed) == 3

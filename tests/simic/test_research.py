"""What a researcher changes is honoured: frozen weights, optimizers, losses, hooks, copies."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from torch import Tensor, nn

from esper.errors import CheckpointError, ConfigError, NonFiniteError
from esper.simic import PPO, Callback, Checkpoint, NetworkConfig, PPOAgent, linear
from tests.simic.helpers import fill, make_agent
from tests.simic.small_envs import Masked

SMALL = {"n_envs": 2, "n_steps": 32, "batch_size": 16, "n_epochs": 2}


def small(env: Any = "CartPole-v1", policy: Any = None, **settings: Any) -> PPO:
    return PPO(env, policy, **{**SMALL, **settings})


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def moved(module: nn.Module, before: dict[str, Tensor]) -> set[str]:
    return {name for name, p in module.named_parameters() if not torch.equal(p, before[name])}


@pytest.mark.parametrize("is_frozen_later", [False, True])
def test_frozen_weights_stay_as_they_are(is_frozen_later: bool) -> None:
    model = small()
    if is_frozen_later:
        model.learn(64)  # Adam has momentum by now
    model.policy.network.requires_grad_(False)
    before = weights_of(model.policy)
    model.learn(128)
    layers = ("policy_layer.weight", "policy_layer.bias", "value_layer.weight", "value_layer.bias")
    assert moved(model.policy, before) == set(layers)
    model.policy.network.requires_grad_(True)
    model.learn(64)
    assert any(name.startswith("network.") for name in moved(model.policy, before))


def test_a_frozen_value_is_not_even_rescaled() -> None:
    model = small()
    model.policy.value_layer.requires_grad_(False)
    before = weights_of(model.policy)
    model.learn(128)
    assert not {"value_layer.weight", "value_layer.bias"} & moved(model.policy, before)


def test_a_policy_that_is_frozen_altogether_cannot_learn() -> None:
    model = small()
    model.policy.requires_grad_(False)
    with pytest.raises(ConfigError, match="does not depend on any weight"):
        model.learn(64)


@pytest.mark.parametrize(
    ("env", "policy"), [("CartPole-v1", "mlp"), (lambda: Masked("method"), "lstm")]
)
def test_a_copy_learns_as_the_model_does_and_apart_from_it(env: Any, policy: str) -> None:
    model = small(env, policy).learn(64)
    twin = copy.deepcopy(model)
    before = weights_of(model.policy)
    twin.learn(64)
    assert not moved(model.policy, before)
    assert moved(twin.policy, before)
    model.learn(64)
    assert not moved(model.policy, weights_of(twin.policy))


def test_weight_decay_shrinks_what_the_loss_does_not_hold() -> None:
    def norm_of(optimizer: Any) -> float:
        model = small(optimizer=optimizer, learning_rate=0.1, vf_coef=0.0, normalize_returns=False)
        nn.init.ones_(model.policy.value_layer.weight)
        model.learn(64)
        return float(model.policy.value_layer.weight.detach().norm())

    strong = norm_of(lambda p: torch.optim.AdamW(p, weight_decay=0.5))
    none = norm_of(lambda p: torch.optim.AdamW(p, weight_decay=0.0))
    assert none == pytest.approx(8.0)
    # Each of the 8 gradient steps multiplies weights by 1 - 0.1 * 0.5.
    assert strong == pytest.approx(8.0 * 0.95**8, rel=1e-4)


@pytest.mark.parametrize("name", ["SGD", "RMSprop", "AdamW", "Adamax", "NAdam"])
def test_any_optimizer_of_torch_takes_its_own_steps(name: str) -> None:
    # The reference is a second agent whose gradients a bare optimizer applies.
    agents = [make_agent(learning_rate=0.01, max_grad_norm=None, n_epochs=1) for _ in range(2)]
    kind = getattr(torch.optim, name)
    mine = PPOAgent(agents[0].spec, agents[0].policy, agents[0].config, optimizer=kind)
    other = agents[1]
    bare = kind(list(other.policy.parameters()), lr=0.01)
    other.optimizer.step = lambda: None  # type: ignore[method-assign,assignment]
    for seed in range(2):
        mine.update(fill(mine, seed=seed))
        other.update(fill(other, seed=seed))
        bare.step()
    parameters = zip(mine.policy.parameters(), other.policy.parameters(), strict=True)
    for first, second in parameters:
        torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-5)


def test_parameter_groups_keep_their_proportion_and_follow_the_schedule() -> None:
    def two_rates(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        slow, fast = parameters[:2], parameters[2:]
        groups = [{"params": slow, "lr": 1e-4}, {"params": fast}]
        return torch.optim.Adam(groups, lr=1e-3)

    model = small(learning_rate=linear(1e-3, 5e-4), optimizer=two_rates)
    model.learn(64)
    rates = [group["lr"] for group in model.agent.optimizer.param_groups]
    assert rates == pytest.approx([5e-5, 5e-4])


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda p: torch.optim.Adam(p, lr=0.02), r"lr 0\.02 and learning_rate is 0\.0003"),
        (lambda p: None, "optimizer made a NoneType"),
        (torch.optim.SGD([torch.ones(1)]), "optimizer is a SGD; a class of torch.optim, or a func"),
        ("adam", "optimizer is a str; a class"),
        (nn.Linear, "optimizer is Linear; a class"),
        (lambda: None, "optimizer is a function; a class of torch.optim, or a function of the par"),
        (torch.optim.LBFGS, r"LBFGS, .* whose step\(\) needs no closure"),
        (torch.optim.Muon, "Muon, which failed: Muon only supports 2D"),
    ],
)
def test_optimizers_that_cannot_be_used_are_named(optimizer: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(optimizer=optimizer)


def with_penalty(agent: PPOAgent, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    loss, terms = agent.loss(batch)
    penalty = batch.features.square().mean()
    return loss + 10.0 * penalty, {**terms, "penalty": penalty}


def test_a_loss_of_ones_own_is_minimised_and_its_terms_are_reported() -> None:
    def size_of_features(loss: Any) -> float:
        model = small(loss=loss, learning_rate=1e-2).learn(512)
        assert ("train/penalty" in model.metrics) == (loss is not None)
        observations = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
        return float(model.policy.network(observations)[0].detach().square().mean())

    assert size_of_features(with_penalty) < 0.2 * size_of_features(None)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("mse", "loss is 'mse'; it must be a function of the agent and a minibatch"),
        (lambda batch: batch, "must be a function of the agent and a minibatch"),
        (lambda agent, batch: agent.loss(batch)[0], "returned a Tensor; it must return a scalar"),
        (lambda agent, batch: (1.0, {}), "returned a float and a dict; it must"),
        (lambda agent, batch: (batch.values, {}), r"returned a loss of shape \(16,\); it must"),
        (lambda agent, batch: (batch.values.sum(), {"x": "y"}), "term 'x' of the loss is 'y'; it"),
    ],
)
def test_losses_that_cannot_be_used_are_named(loss: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(loss=loss).learn(64)


def test_a_term_of_the_loss_may_be_of_any_dtype_and_is_a_mean_over_steps() -> None:
    def counting(agent: PPOAgent, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        loss, terms = agent.loss(batch)
        size = torch.tensor(len(batch.returns))
        return loss, {**terms, "size": size, "wide": size.double()}

    plain = make_agent(n_epochs=1, n_minibatches=3)
    agent = PPOAgent(plain.spec, plain.policy, plain.config, loss=counting)
    report = agent.update(fill(agent))  # 44 steps
    sizes = report.other_terms["size"]
    assert 44 / 3 <= sizes < 44
    assert report.other_terms["wide"] == pytest.approx(sizes)


def test_a_loss_may_be_overridden_and_sees_what_the_update_sees() -> None:
    seen: list[Any] = []

    class Agent(PPOAgent):
        def loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
            seen.append(batch)
            return super().loss(batch)

    plain = make_agent(n_epochs=1)
    agent = Agent(plain.spec, plain.policy, plain.config)
    agent.update(fill(agent))
    (batch,) = seen
    assert batch.features.shape == (44, agent.policy.lstm_size)  # type: ignore[attr-defined]
    assert batch.legal.shape == (44, 3, 4)
    expected = (batch.log_probs - batch.old_log_probs) * batch.relevant
    torch.testing.assert_close(batch.log_ratio, expected)


class Named(CartPoleEnv):
    """CartPole whose observations are a dict and say which action was taken last."""

    def __init__(self) -> None:
        super().__init__()
        box = spaces.Box(-1e6, 1e6, (4,))
        self.observation_space = spaces.Dict(pole=box, clock=spaces.Box(0.0, 1e6, (1,)))

    def reset(self, **options: Any) -> Any:
        self.clock = 0.0
        observation, info = super().reset(**options)
        return {"pole": observation, "clock": np.array([0.0], np.float32)}, info

    def step(self, action: Any) -> Any:
        self.clock += 1.0
        observation, *rest = super().step(action)
        return {"pole": observation, "clock": np.array([self.clock], np.float32)}, *rest


@pytest.mark.parametrize("batch_size", [24, 64])
@pytest.mark.parametrize("policy", ["multi-input", "lstm"])
def test_a_loss_sees_the_observations_of_its_steps(policy: str, batch_size: int) -> None:
    n_batches, stored = 0, dict[tuple[float, ...], int]()

    def predicting(agent: PPOAgent, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        nonlocal n_batches
        n_batches += 1
        n = len(batch.features)
        assert batch.observations["pole"].shape == (n, 4)
        assert batch.observations["clock"].shape == (n, 1)
        for pole, old in zip(batch.observations["pole"], batch.old_log_probs, strict=True):
            assert stored[tuple(pole.tolist())] == float(old[0])
        return agent.loss(batch)

    model = small(Named, policy, loss=predicting, batch_size=batch_size)

    def note(model: PPO) -> None:
        step = model.last_step
        poles, log_probs = step.observations["pole"], step.decision.log_probs  # type: ignore
        stored.update(zip(map(tuple, poles.tolist()), log_probs[:, 0].tolist(), strict=True))

    class Noting(Callback):
        on_step = staticmethod(note)

    model.learn(64, callbacks=Noting())
    assert n_batches == 2 * round(64 / batch_size)


@pytest.mark.parametrize("ent_coef", [0.0, 0.3])
def test_the_terms_of_the_loss_add_up_and_always_hold_the_entropy(ent_coef: float) -> None:
    agent = make_agent(n_epochs=1, ent_coef=ent_coef)
    sums: list[Tensor] = []

    def summing(agent: PPOAgent, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        loss, terms = agent.loss(batch)
        sums.append(terms["policy_loss"] + 0.5 * terms["value_loss"] - ent_coef * terms["entropy"])
        torch.testing.assert_close(loss, sums[-1])
        assert terms["entropy"] > 0.0
        return loss, terms

    agent = PPOAgent(agent.spec, agent.policy, agent.config, loss=summing)
    agent.update(fill(agent))
    assert sums


def test_what_was_trained_with_parts_of_ones_own_asks_for_them(tmp_path: Path) -> None:
    model = small(loss=with_penalty, optimizer=torch.optim.RMSprop).learn(64)
    model.save(tmp_path / "model")
    with pytest.raises(CheckpointError, match="loss=with_penalty; pass loss="):
        PPO.load(tmp_path / "model", optimizer=torch.optim.RMSprop)
    with pytest.raises(CheckpointError, match="optimizer=RMSprop"):
        PPO.load(tmp_path / "model", loss=with_penalty)
    own = {"loss": with_penalty, "optimizer": torch.optim.RMSprop}
    loaded = PPO.load(tmp_path / "model", **own)
    saved, now = (one.agent.optimizer.state_dict()["state"] for one in (model, loaded))
    assert torch.equal(saved[0]["square_avg"], now[0]["square_avg"])
    other = PPO.load(tmp_path / "model", loss=with_penalty, optimizer=torch.optim.SGD)
    assert "square_avg" not in other.learn(64).agent.optimizer.state_dict()["state"].get(0, {})


def rmsprop(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(parameters, alpha=0.9)


@pytest.mark.parametrize(
    ("then", "now", "message"),
    [
        ({}, {"loss": with_penalty}, "loss=None, and loss=with_penalty was given"),
        ({}, {"optimizer": rmsprop}, "optimizer=None, and optimizer=RMSprop was given"),
        ({"loss": with_penalty}, {"loss": PPOAgent.loss}, "loss=with_penalty, and .*PPOAgent.loss"),
        ({"optimizer": rmsprop}, {"optimizer": torch.optim.SGD}, "=RMSprop, and optimizer=SGD was"),
        ({"optimizer": rmsprop}, {"optimizer": torch.optim.RMSprop}, None),
    ],
)
def test_training_resumes_with_the_same_loss_and_optimizer_alone(
    then: dict[str, Any], now: dict[str, Any], message: str | None, tmp_path: Path
) -> None:
    small(**then).learn(64, callbacks=Checkpoint(tmp_path / "run", every=64))
    if message is not None:
        with pytest.raises(CheckpointError, match=message):
            PPO.resume(tmp_path / "run", **now)
        with pytest.raises(ConfigError, match=r"'learning_rate'; .* PPO.load\(path, ...\) changes"):
            PPO.resume(tmp_path / "run", learning_rate=1e-2)  # type: ignore[call-arg]
        return
    (group,) = PPO.resume(tmp_path / "run", **now).agent.optimizer.param_groups
    assert group["alpha"] == 0.9  # the settings of the checkpoint


def test_settings_can_be_changed_when_a_model_is_loaded(tmp_path: Path) -> None:
    model = small(learning_rate=1e-3).learn(64)
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", learning_rate=1e-4, n_epochs=3, target_kl=0.01)
    assert (loaded.config.learning_rate, loaded.config.n_epochs) == (1e-4, 3)
    loaded.learn(64)
    assert loaded.metrics["train/learning_rate"] == 1e-4
    assert loaded.config.batch_size == 16
    with pytest.raises(ConfigError, match="epochs"):
        PPO.load(tmp_path / "model", epochs=3)


@pytest.mark.parametrize("minibatch", [1, 2, 3, 4])
@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_a_nan_anywhere_in_an_update_leaves_nothing_behind(epoch: int, minibatch: int) -> None:
    place = 4 * (epoch - 1) + minibatch
    agent, calls = make_agent(n_minibatches=4, n_epochs=3, target_kl=None), 0
    agent.update(fill(agent))
    buffer, before = fill(agent, seed=2), agent.state_dict()

    def spoiled(agent: PPOAgent, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        loss, terms = agent.loss(batch)
        return loss * (math.nan if calls == place else 1.0), terms

    agent.loss_function = spoiled
    with pytest.raises(NonFiniteError, match="the update was undone"):
        agent.update(buffer)
    after = agent.state_dict()
    for part in ("policy", "normalizer"):
        assert all(torch.equal(after[part][name], before[part][name]) for name in before[part])
    moments, old = after["optimizer"]["state"], before["optimizer"]["state"]
    assert moments.keys() == old.keys()
    assert all(torch.equal(moments[i][name], old[i][name]) for i in old for name in old[i])


def test_a_gradient_that_is_not_finite_is_undone_though_the_loss_is() -> None:
    agent = make_agent(n_epochs=1)
    buffer, before = fill(agent), weights_of(agent.policy)

    def steep(agent: PPOAgent, batch: Any) -> Any:
        loss, terms = agent.loss(batch)
        return loss + (batch.values - batch.values.detach()).sqrt().sum(), terms

    agent.loss_function = steep
    with pytest.raises(NonFiniteError, match="gradient"):
        agent.update(buffer)
    assert not moved(agent.policy, before)


class Overflowing(torch.optim.SGD):
    """Writes an infinite weight in its fourth step, where the loss and the gradient were finite."""

    n_steps = 0

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        self.n_steps += 1
        if self.n_steps == 4:
            with torch.no_grad():
                self.param_groups[0]["params"][0].fill_(math.inf)


@pytest.mark.parametrize("n_epochs", [1, 2, 4])
def test_a_weight_that_is_not_finite_is_undone_though_the_last_loss_is(n_epochs: int) -> None:
    agent = make_agent(n_minibatches=4 // n_epochs, n_epochs=n_epochs, target_kl=None)
    agent.optimizer = Overflowing(agent.policy.parameters(), lr=1e-3)
    buffer, before = fill(agent), weights_of(agent.policy)
    with pytest.raises(NonFiniteError, match="weight after the update"):
        agent.update(buffer)
    assert not moved(agent.policy, before)


@pytest.mark.parametrize("policy", ["mlp", "lstm"])
def test_hooks_on_every_module_of_a_built_in_network_are_called(policy: str) -> None:
    model = small(policy=policy)
    called: set[str] = set()
    for name, module in model.policy.named_modules():
        module.register_forward_hook(lambda *_, name=name: called.add(name))
    model.learn(64)
    layers = {
        name
        for name, module in model.policy.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    }
    assert layers
    assert layers <= called


def test_the_value_may_have_a_network_of_another_size(tmp_path: Path) -> None:
    model = small(network=NetworkConfig(hidden_sizes=(8,), value_sizes=(32, 16))).learn(64)
    shapes = {tuple(p.shape) for p in model.policy.network.parameters() if p.ndim == 2}
    assert shapes == {(8, 4), (32, 4), (16, 32)}
    model.save(tmp_path / "model")
    assert PPO.load(tmp_path / "model").network.value_sizes == (32, 16)


def test_a_gradient_is_not_clipped_without_a_limit() -> None:
    norms = []
    for limit in (None, 1e-3):
        agent = make_agent(max_grad_norm=limit, n_epochs=1)
        agent.optimizer.step = lambda: None  # type: ignore[method-assign,assignment]
        report = agent.update(fill(agent))
        flat = torch.cat([p.grad.flatten() for p in agent.policy.parameters()])  # type: ignore
        norms.append((float(flat.norm()), report.gradient_norm))
    (free, reported), (clipped, same) = norms
    assert free == pytest.approx(reported, rel=1e-5)
    assert same == pytest.approx(reported, rel=1e-5)
    assert clipped == pytest.approx(1e-3, rel=1e-3)


def test_the_clip_range_of_the_value_may_be_a_schedule(tmp_path: Path) -> None:
    model = small(clip_range_vf=linear(0.4, 0.2)).learn(128)
    assert model.config.clip_range_vf == pytest.approx(0.2)
    model.set_rates(clip_range_vf=0.3)
    assert model.config.clip_range_vf == 0.3
    model.save(tmp_path / "model")
    assert PPO.load(tmp_path / "model").config.clip_range_vf == 0.3


def test_a_model_may_change_its_environments() -> None:
    model = small(normalize_rewards=True).learn(64)
    before = weights_of(model.policy)

    class Counted(CartPoleEnv):
        n_steps = 0

        def step(self, action: Any) -> Any:
            type(self).n_steps += 1
            return super().step(action)

    model.set_env(Counted)
    model.learn(64)
    assert (model.num_timesteps, Counted.n_steps) == (128, 64)
    assert model.env_name == "Counted"
    assert moved(model.policy, before)
    with pytest.raises(Exception, match="observation space"):
        model.set_env("Pendulum-v1")


class VecEnv:
    """The interface of Stable-Baselines3, on two counters."""

    num_envs = 2
    observation_space = spaces.Box(-9.0, 9.0, (1,))
    action_space = spaces.Discrete(2)
    gives_info = False

    @property
    def unwrapped(self) -> VecEnv:
        return self

    def seed(self, seed: int) -> None:
        self.seeded = seed

    def reset(self) -> np.ndarray:
        self.times = np.array([0, 0])
        self.reset_infos = self._infos()
        return self._observe()

    def _infos(self) -> list[dict[str, Any]]:
        masks = self.action_masks() if self.gives_info else []
        return [{"action_mask": mask} for mask in masks] or [{}, {}]

    def _observe(self) -> np.ndarray:
        return self.times[:, None].astype(np.float32)

    def step(self, actions: np.ndarray) -> Any:
        assert all(self.action_masks()[i][action] for i, action in enumerate(actions))
        self.times += 1
        # Environment 0 ends after 3 steps; environment 1 is cut short after 2.
        dones = self.times >= [3, 2]
        infos = self._infos()
        for i in np.flatnonzero(dones):
            infos[i] |= {
                "terminal_observation": self._observe()[i].copy(),
                "TimeLimit.truncated": i == 1,
            }
            self.times[i] = 0
            self.reset_infos[i] = self._infos()[i]
        return self._observe(), np.ones(2, np.float32), dones, infos

    def action_masks(self) -> list[np.ndarray]:
        return [np.array([True, bool(t % 2)]) for t in self.times]

    def env_method(self, name: str, *args: Any) -> list[Any]:
        if name != "has_wrapper_attr":
            return self.action_masks()
        return [args[0] == "action_masks" and not self.gives_info] * 2

    def close(self) -> None:
        self.times = None


VecEnv.__module__ = "stable_baselines3.common.vec_env.base_vec_env"


@pytest.mark.parametrize("gives_info", [False, True])
def test_a_vector_environment_of_stable_baselines3_is_trained_on_with_its_masks_and_ends(
    gives_info: bool,
) -> None:
    envs = VecEnv()
    envs.gives_info = gives_info
    model = PPO(envs, n_steps=6, batch_size=6, n_epochs=1, seed=3)  # type: ignore[arg-type]
    stored: list[Any] = []
    update = model.agent.update

    def watched(buffer: Any) -> Any:
        stored.append({name: getattr(buffer, name).clone() for name in WATCHED})
        return update(buffer)

    model.agent.update = watched  # type: ignore[method-assign]
    model.learn(12)
    assert (model.n_envs, envs.seeded) == (2, 3)
    (rollout,) = stored
    assert rollout["observations"][..., 0].tolist() == [[0, 1, 2, 0, 1, 2], [0, 1, 0, 1, 0, 1]]
    assert rollout["dones"][0].tolist() == [False, False, True] * 2
    assert rollout["truncated"].tolist() == [[False] * 6, [False, True] * 3]
    # The value of a state that a time limit cut off is that of its last observation.
    assert bool(torch.isfinite(rollout["bootstrap_values"][1, 1::2]).all())
    assert rollout["masks"][0, :, 0, 1].tolist() == [False, True, False] * 2


WATCHED = ("observations", "dones", "truncated", "bootstrap_values", "masks")

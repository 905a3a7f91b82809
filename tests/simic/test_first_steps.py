"""Mistakes of a first hour get one clear line, and nothing of a run is lost."""

from __future__ import annotations

import inspect
import pydoc
from dataclasses import fields
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from esper.errors import (
    CheckpointError,
    ConfigError,
    DtypeError,
    EsperError,
    ShapeError,
    UnsupportedEnvironmentError,
)
from esper.simic import (
    PPO,
    Callback,
    Checkpoint,
    Evaluate,
    NetworkConfig,
    PPOConfig,
    evaluate,
    linear,
)
from esper.simic.algorithm import EsperWarning


class Line(gymnasium.Env[np.ndarray, int]):
    """Three steps, each rewarded by the action."""

    observation_space = spaces.Box(0.0, 3.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        self.time += 1
        return np.full(1, self.time, np.float32), float(action), self.time == 3, False, {}


class Masked(Line):
    def action_masks(self) -> np.ndarray:
        return np.ones(2, np.int8)


class Dropout(nn.Module):
    output_size = 8

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5))

    def forward(self, observations: Tensor) -> Tensor:
        return self.layers(observations)


def small(env: Any = Line, policy: Any = None, **settings: Any) -> PPO:
    return PPO(env, policy, n_steps=8, n_epochs=1, **settings)


def test_a_folder_of_another_runs_checkpoints_is_not_written_to(tmp_path: Path) -> None:
    callback = Checkpoint(tmp_path / "run", every=8)
    model = small().learn(24, callbacks=callback)
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    with pytest.raises(ConfigError, match=r"run holds checkpoints of another run"):
        small().learn(8, callbacks=Checkpoint(tmp_path / "run", every=8))
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before
    # The same run may go on there, by itself or resumed.
    model.learn(8, callbacks=callback)
    resumed = PPO.resume(tmp_path / "run", Line)
    resumed.total_timesteps += 8
    resumed.learn(callbacks=Checkpoint(tmp_path / "run", every=8))
    assert resumed.num_timesteps == 40


def test_resuming_with_other_environments_is_one_clear_line(tmp_path: Path) -> None:
    small(Masked, n_envs=2).learn(16, callbacks=Checkpoint(tmp_path / "run"))
    with pytest.raises(UnsupportedEnvironmentError, match=r"pass it: PPO\.resume"):
        PPO.resume(tmp_path / "run")
    with pytest.raises(UnsupportedEnvironmentError, match="1 environments; 2 were saved"):
        PPO.resume(tmp_path / "run", Masked())
    with pytest.raises(UnsupportedEnvironmentError, match="action_masks"):
        PPO.resume(tmp_path / "run", Line)


def test_a_rate_that_cannot_be_saved_is_announced(tmp_path: Path) -> None:
    with pytest.warns(EsperWarning, match="learning_rate is a function"):
        small(learning_rate=lambda left: 1e-3 * left).save(tmp_path / "model")
    small(learning_rate=linear(1e-3)).save(tmp_path / "other")


def test_a_prediction_does_not_drop_units() -> None:
    model = small(policy=Dropout, seed=1).learn(8)
    drawn = [model.predict(np.ones(1, np.float32), deterministic=True) for _ in range(20)]
    assert len({int(action) for action, _ in drawn}) == 1
    assert model.agent.policy.training  # type: ignore[attr-defined]


def test_small_networks_use_one_thread_and_leave_the_number_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("esper.modes.default_threads", lambda: {2})

    class Counting(Line):
        def step(self, action: int) -> Any:
            seen.append(torch.get_num_threads())
            return super().step(action)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model = PPO(Counting, n_envs=1, n_steps=8, batch_size=8).learn(8)
        n_learning = len(seen)
        evaluate(model, n_episodes=1)
        assert len(seen) > n_learning
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


class NoSpace(Dropout):
    def __init__(self) -> None:
        super().__init__(Line.observation_space)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": "MlpPolicy", "policy": "CartPole-v1"}, "environment comes first"),
        ({"network": {"hidden_sizes": (3,)}}, "must be a NetworkConfig"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'"),
        ({"clip_range": "linear"}, r"clip_range is 'linear'; .* linear\(start, end\)"),
        ({"policy_kwargs": {}}, r"'policy_kwargs'.*NetworkConfig"),
        ({"use_sde": True}, r"'use_sde'.*gSDE"),
        ({"env": "CnnPolicy", "policy": Line()}, r"comes first.*'cnn'"),
        ({"policy": "MlpLstmPolicy"}, r"'MlpLstmPolicy'.*'lstm'"),
        ({"verbose": 3}, "verbose is 3"),
        ({"device": "cuda"}, "device is 'cuda'"),
        ({"batch_size": 4, "n_minibatches": 3}, "batch_size is 4 and n_minibatches is 3"),
        ({"sequence_length": 4}, "sequence_length is 4.* no memory"),
        ({"policy": "lstm", "network": NetworkConfig(hidden_sizes=(3,))}, r"hidden_sizes.*'lstm'"),
        ({"network": NetworkConfig(lstm_size=3)}, "lstm_size is 3.*'mlp'"),
        (
            {"policy": "lstm", "network": NetworkConfig(value_sizes=(3,))},
            r"value_sizes is \(3,\).*'lstm'",
        ),
        ({"policy": Dropout, "network": NetworkConfig(activation="relu")}, "activation is 'relu'"),
        ({"nenvs": 3}, r"'nenvs'.*'n_envs'"),
        ({"policy": NoSpace}, "takes the observation space"),
        (
            {"policy": Dropout, "network": NetworkConfig(normalize_observations=True)},
            "normalize_observations",
        ),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(**{"env": Line, **arguments})


def test_an_environment_of_the_old_kind_is_named() -> None:
    class Old(Line):
        def reset(self, **_: Any) -> Any:
            return np.zeros(1, np.float32)

    with pytest.raises(UnsupportedEnvironmentError, match="reset"):
        small(Old).learn(8)


def test_a_number_of_minibatches_may_agree_with_their_size(tmp_path: Path) -> None:
    model = small(batch_size=4, n_minibatches=2).learn(8)
    assert model.metrics["train/n_gradient_steps"] == 2
    model.save(tmp_path / "model")
    assert PPO.load(tmp_path / "model", Line).config.n_minibatches == 2
    small(n_minibatches=4).save(tmp_path / "other")
    assert PPO.load(tmp_path / "other", Line).config.n_minibatches == 4


def test_a_minibatch_larger_than_a_rollout_is_warned_of() -> None:
    with pytest.warns(EsperWarning, match=r"batch_size is 64.* 8 steps"):
        small(batch_size=64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.learn(8, callback=None), "'callback'.*callbacks="),
        (lambda m: m.learn(8, progress_bar=True), "'progress_bar'.*progress="),
        (lambda m: m.learn(8, reset_num_timesteps=False), "continues to count"),
        (lambda m: m.learn(8, progres=True), "'progres'.*Did you mean 'progress'"),
        (lambda m: m.predict(np.zeros(1), action_masks=None), "'action_masks'.*masks="),
        (lambda m: m.save("x", exclude=[]), "'exclude'"),
        (lambda m: PPO.load("x", custom_objects={}), "'custom_objects'"),
        (lambda m: PPO.load("x", device="cuda"), "device is 'cuda'"),
        (lambda m: evaluate(m, n_eval_episodes=3), "'n_eval_episodes'.*n_episodes="),
        (lambda m: Evaluate(eval_freq=3), "'eval_freq'.*every="),
        (lambda m: Checkpoint(save_freq=3, save_path="x"), "'save_freq'.*every="),
        (lambda m: Checkpoint(), "folder is missing"),
        (lambda m: Checkpoint(1000, "runs"), "folder is 1000"),
        (lambda m: Evaluate("CartPole-v1", 1000), r"Evaluate\('CartPole-v1', 1000\).*env="),
        (lambda m: Evaluate(1.5), r"every is 1\.5"),
        (lambda m: NetworkConfig(net_arch=[64]), "'net_arch'.*hidden_sizes="),
        (lambda m: NetworkConfig(hiden_sizes=(64,)), "'hiden_sizes'.*Did you mean 'hidden_sizes'"),
        (lambda m: small(normalize_observations=True), r"NetworkConfig\(normalize_observations="),
        (lambda m: small(learning_rate=lambda f: None), r"learning_rate\(1\) is None"),
        (lambda m: small(clip_range=lambda: 0.2), "clip_range is a function"),
    ],
)
def test_arguments_of_stable_baselines3_are_answered_with_what_to_write(
    call: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        call(small())


def test_attributes_and_imports_of_stable_baselines3_are_answered_too() -> None:
    model = small()
    with pytest.raises(AttributeError, match=r"'get_env'.*model\.env"):
        model.get_env()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"'gamma'.*model\.config\.gamma"):
        _ = model.gamma  # type: ignore[attr-defined]
    assert not hasattr(model, "anything")
    with pytest.raises(ImportError, match="EvalCallback; use Evaluate"):
        from esper.simic import EvalCallback  # type: ignore[attr-defined]  # noqa: F401


@pytest.mark.parametrize("name", [field.name for field in fields(NetworkConfig)])
def test_settings_of_the_network_are_sent_to_it(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{name}'.*NetworkConfig\({name}="):
        small(**{name: 1})


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("learning_rate", r"model\.set_rates\(learning_rate="),
        ("gamma", r"PPO\(\.\.\., gamma="),
        ("logger", r"model\.log"),
    ],
)
def test_an_attribute_that_nothing_reads_cannot_be_set(name: str, advice: str) -> None:
    model = small()
    with pytest.raises(AttributeError, match=rf"{name} cannot be set to 0\.5.*{advice}"):
        setattr(model, name, 0.5)
    model.note = "anything else can"  # type: ignore[attr-defined]


class Odd(Line):
    """Breaks the contract at its second step, or at its reset."""

    given: Any = None

    def step(self, action: int) -> Any:
        result = super().step(action)
        return self.given(result) if self.time == 2 else result


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda r: (*r[:3], r[4]), "environment 1 returned 4 values at step 2;"),
        (lambda r: (r[0], None, *r[2:]), "environment 1 gave the reward None at step 2;"),
        (lambda r: (r[0], np.ones(1), *r[2:]), r"environment 1 .* array\(\[1\.\]\) at step 2;"),
        (lambda r: (r[0], "a lot", *r[2:]), "environment 1 gave the reward 'a lot'"),
        (lambda r: (np.zeros(3), *r[1:]), r"environment 1, step 2: .* \(3,\); .* \(1,\)"),
        (lambda r: (None, *r[1:]), r"environment 1, step 2: .* \(\);"),
        (lambda r: ({}, *r[1:]), "environment 1, step 2: .* a dict"),
    ],
)
def test_a_step_that_breaks_the_contract_names_environment_and_step(
    given: Any, message: str
) -> None:
    envs = iter([Line(), type("Odd", (Odd,), {"given": staticmethod(given)})()])
    with pytest.raises(EsperError, match=message):
        small(lambda: next(envs), n_envs=2).learn(16)


def test_an_environment_without_a_seed_or_a_space_is_named() -> None:
    class NoSeed(Line):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

    class NoObservationSpace(gymnasium.Env[Any, Any]):
        action_space = spaces.Discrete(2)

    with pytest.raises(UnsupportedEnvironmentError, match=r"environment 0 takes no seed"):
        small(NoSeed).learn(8)
    with pytest.raises(
        UnsupportedEnvironmentError, match="observation_space of NoObservationSpace"
    ):
        small(NoObservationSpace)


def test_what_reset_returns_is_no_observation() -> None:
    with pytest.raises(DtypeError, match=r"observation is a tuple .*reset\(\)"):
        small().predict(Line().reset(seed=0))
    with pytest.raises(ShapeError, match="'target'"):
        small(Unsorted).predict(np.zeros(2))
    with pytest.raises(ShapeError, match="differ in shape"):
        small().predict([[1.0], [1.0, 2.0]])


def test_a_suggestion_is_made_once() -> None:
    with pytest.raises(UnsupportedEnvironmentError) as caught:
        small("CartPol-v1")
    assert str(caught.value).count("Did you mean") == 1


def test_what_is_not_a_saved_model_is_named(tmp_path: Path) -> None:
    for load in (PPO.load, PPO.resume):
        with pytest.raises(CheckpointError, match="no folder nope"):
            load("nope")
        (tmp_path / "model.zip").write_bytes(b"PK")
        with pytest.raises(CheckpointError, match=r"model\.zip is a file"):
            load(tmp_path / "model.zip")


def test_a_state_that_is_not_a_tensor_is_named() -> None:
    model = small(policy="lstm")
    _, state = model.predict(np.zeros(1))
    with pytest.raises(DtypeError, match="state is an ndarray"):
        model.predict(np.zeros(1), state.numpy())  # type: ignore[arg-type]


def test_metrics_are_printed_after_every_update_if_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    small().learn(16)
    assert capsys.readouterr().out == ""
    model = small(verbose=1).learn(16)
    shown = capsys.readouterr().out
    assert shown.count("ep_rew_mean") == 2
    assert f"{model.metrics['train/approx_kl']:.4g}" in shown
    assert all(name.split("/")[-1] in shown for name in model.metrics)


def test_a_model_shows_what_it_is() -> None:
    model = small(n_envs=2, seed=3, device="auto").learn(16)
    shown = repr(model)
    for text in ("'Line'", "'mlp'", "n_envs=2", "n_steps=8", "seed=3", "num_timesteps=16"):
        assert text in shown
    assert model.policy is model.agent.policy
    assert isinstance(model.env, list)
    assert [type(env) for env in model.env] == [Line, Line]
    assert model.device == torch.device("cpu")
    envs = gymnasium.vector.SyncVectorEnv([Line])
    assert small(envs).env is envs


def test_without_a_seed_one_is_drawn_that_repeats_the_run() -> None:
    first, second = small(seed=None), small(seed=None)
    assert first.seed != second.seed
    again = small(seed=first.seed).learn(16)
    assert again.metrics["train/value_loss"] == first.learn(16).metrics["train/value_loss"]


def test_help_explains_every_argument_with_its_default() -> None:
    shown, config = pydoc.plain(pydoc.render_doc(PPO)), pydoc.plain(pydoc.render_doc(PPOConfig))
    for field in fields(PPOConfig):
        assert f"{field.name} ({field.default!r}): " in shown
        assert f" {field.name}: " in config
        assert f"{field.name}: " in config.split("Args:")[1]
    for name in inspect.signature(PPO).parameters:
        assert f"{name}: " in shown.split("Args:")[1]


# -- Ctrl-C ---------------------------------------------------------------------------------------


class Interrupted(Line):
    """Presses Ctrl-C at one of its steps."""

    at = -1
    n_steps = 0

    def step(self, action: int) -> Any:
        type(self).n_steps += 1
        if type(self).n_steps == self.at:
            raise KeyboardInterrupt
        return super().step(action)


class InterruptUpdate(Callback):
    """Presses Ctrl-C in the middle of an update."""

    def on_rollout_end(self, model: PPO) -> None:
        if model.num_timesteps == 32:

            def interrupt(*_: object) -> None:
                raise KeyboardInterrupt

            self.hook = model.agent.optimizer.register_step_post_hook(interrupt)

    def on_interrupt(self, model: PPO) -> None:
        self.hook.remove()


@pytest.mark.parametrize("where", ["the first rollout", "a rollout", "an update"])
def test_an_interrupted_run_is_resumed_exactly_and_its_model_can_be_used(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Interrupted.n_steps, Interrupted.at = (
        0,
        {"the first rollout": 5, "a rollout": 29}.get(where, -1),
    )
    whole = small(seed=5).learn(48)
    model = small(Interrupted, seed=5)
    callbacks: list[Callback] = [Checkpoint(tmp_path / "run", every=1000)]
    if where == "an update":
        callbacks.append(InterruptUpdate())
    with pytest.raises(KeyboardInterrupt):
        model.learn(48, callbacks=callbacks)
    n_steps = {"the first rollout": 0}.get(where, 24)
    shown = capsys.readouterr().out
    assert f"after {n_steps} steps to {tmp_path / 'run'}" in shown
    assert f"PPO.resume({str(tmp_path / 'run')!r}, env)" in shown
    resumed = PPO.resume(tmp_path / "run", Line)
    assert resumed.num_timesteps == {"the first rollout": 0}.get(where, 24)
    for name, weight in resumed.policy.state_dict().items():
        assert torch.equal(weight, model.policy.state_dict()[name])
    resumed.learn()
    for name, weight in whole.policy.state_dict().items():
        assert torch.equal(weight, resumed.policy.state_dict()[name])
    model.predict(np.zeros(1, np.float32))
    before = model.num_timesteps
    assert model.learn(8).num_timesteps == before + 8


# -- the order of a Dict --------------------------------------------------------------------------


class Unsorted(gymnasium.Env[Any, Any]):
    """Pays for the head that the part of the same name asks for; no name is in its place."""

    observation_space = spaces.Dict(
        target=spaces.Box(-1.0, 1.0, (2,), np.float32), clock=spaces.Box(0.0, 9.0, (2,), np.float32)
    )
    action_space = spaces.Dict(
        turn=spaces.Discrete(3), jump=spaces.Discrete(3), drive=spaces.Box(-1.0, 1.0, (1,))
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        reward = float(action["turn"] == 2) - float(action["jump"] == 2) + float(action["drive"][0])
        return self.observe(), reward, self.time == 5, False, {}

    def observe(self) -> Any:
        target = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"target": target, "clock": np.full(2, self.time, np.float32)}


class Sorted(Unsorted):
    action_space = spaces.Dict(dict(Unsorted.action_space))  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["multi-input", "lstm"])
def test_a_saved_model_keeps_the_order_of_a_dict(policy: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"n_envs": 2, "learning_rate": 0.03}
    whole = small(Unsorted, policy, **settings).learn(64)
    best = Evaluate(16, n_episodes=2, save_best=tmp_path / "best")
    stop = [Checkpoint(tmp_path / "run"), best, lambda m: m.num_timesteps < 32]
    cut = small(Unsorted, policy, **settings).learn(64, callbacks=stop)
    observations = [Unsorted().reset(seed=seed)[0] for seed in range(8)]
    cut.save(tmp_path / "model")
    for given in (Unsorted, None):
        loaded = PPO.load(tmp_path / "model", given)
        assert list(loaded.observation_space) == ["target", "clock"]
        assert loaded.agent.spec == cut.agent.spec
        for one in observations:
            action, expected = loaded.predict(one)[0], cut.predict(one)[0]
            assert all(np.array_equal(action[name], expected[name]) for name in expected)
    resumed = PPO.resume(tmp_path / "run", Unsorted).learn()
    for name, weight in whole.policy.state_dict().items():
        assert torch.equal(weight, resumed.policy.state_dict()[name])
    assert PPO.load(tmp_path / "best").action_space == Unsorted.action_space


def test_an_environment_with_its_heads_in_another_order_is_named(tmp_path: Path) -> None:
    small(Unsorted).save(tmp_path / "model")
    with pytest.raises(UnsupportedEnvironmentError, match=r"action space is Dict\('drive'"):
        PPO.load(tmp_path / "model", Sorted)


# -- small things ---------------------------------------------------------------------------------


def test_a_whole_number_of_steps_may_be_a_float() -> None:
    assert small().learn(1.6e1).num_timesteps == 16
    with pytest.raises(ConfigError, match=r"total_timesteps is 10\.5"):
        small().learn(10.5)


def test_one_episode_has_no_interval() -> None:
    result = evaluate(small(), n_episodes=1)
    assert np.isnan(result.low)
    assert np.isnan(result.high)
    assert "over 1 episode," in str(result)
    assert "[" not in str(result)
    assert "over 2 episodes" in str(evaluate(small(), n_episodes=2))


def test_a_model_without_an_environment_says_so(tmp_path: Path) -> None:
    small().save(tmp_path / "model")
    assert repr(PPO.load(tmp_path / "model")).startswith("PPO(None, 'mlp'")


def test_one_checkpoint_is_not_a_folder_of_them(tmp_path: Path) -> None:
    small().learn(8, callbacks=Checkpoint(tmp_path / "run"))
    for load in (PPO.load, PPO.resume):
        with pytest.raises(CheckpointError, match=rf"{tmp_path / 'run'}\."):
            load(tmp_path / "run" / "step-000000008", Line)


def test_a_complete_run_says_how_to_go_on(tmp_path: Path) -> None:
    small().learn(8, callbacks=Checkpoint(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"complete: 8 steps.*learn\(100_000\)"):
        PPO.resume(tmp_path / "run", Line).learn()
    assert PPO.resume(tmp_path / "run", Line).learn(8).num_timesteps == 16


class Sized(nn.Module):
    def __init__(self, space: spaces.Space[Any], width: int = 8, declared: int = 8) -> None:
        super().__init__()
        self.output_size = declared
        self.layer = nn.Linear(1, width)

    def forward(self, observations: Tensor) -> Tensor:
        return self.layer(observations)


def test_a_function_may_make_the_network(tmp_path: Path) -> None:
    def make(space: spaces.Space[Any]) -> nn.Module:
        return Sized(space, 24, 24)

    model = small(policy=make).learn(8)
    assert model.policy_name == "Sized"
    model.save(tmp_path / "model")
    loaded = PPO.load(tmp_path / "model", policy=make)
    observation = np.ones(1, np.float32)
    assert loaded.predict(observation)[0] == model.predict(observation)[0]


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda space: Sized(space, 7), r"Sized returned \(2, 7\).*output_size is 8"),
        (lambda space: Sized(space, 8, 9), r"Sized returned \(2, 8\).*output_size is 9"),
    ],
)
def test_features_of_the_wrong_size_are_named(network: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(policy=network)


def test_a_prediction_without_masks_is_warned_of_once(tmp_path: Path) -> None:
    model = small(Masked).learn(8)
    model.save(tmp_path / "model")
    untrained = (small(Masked), PPO(Masked(), n_steps=8))
    for one in (model, PPO.load(tmp_path / "model"), *untrained):
        one.predict(np.zeros(1), masks=np.ones(2))
        with pytest.warns(EsperWarning, match="no masks"):
            one.predict(np.zeros(1))
        one.predict(np.zeros(1))
    small().learn(8).predict(np.zeros(1))
    small().predict(np.zeros(1))
    loaded = PPO.load(tmp_path / "model")
    with pytest.raises(UnsupportedEnvironmentError, match="was loaded without an environment"):
        evaluate(loaded)


def test_the_progress_bar_ends_with_the_steps_that_were_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(
        "esper.progress.ProgressBar.show", lambda _, *work: shown.append(" ".join(map(str, work)))
    )
    small().learn(9, progress=True)
    assert "16 of 9 steps" in shown[-1]

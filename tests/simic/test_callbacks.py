"""Callbacks see training as it goes, and can log, change rates and stop it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esper.errors import ConfigError
from esper.simic import PPO, Callback, Checkpoint, Evaluate, Evaluated, Tracker, linear
from esper.simic import evaluation as evaluation_module
from tests.simic.small_envs import Picks


def make_model(**settings: Any) -> PPO:
    return PPO(Picks, n_envs=2, n_steps=16, **{"n_epochs": 1, **settings})


class Recorder(Callback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def on_start(self, model: PPO) -> None:
        self.calls.append(("start", model.num_timesteps))

    def on_step(self, model: PPO) -> None:
        self.calls.append(("step", model.num_timesteps))

    def on_rollout_end(self, model: PPO) -> None:
        self.calls.append(("rollout", model.num_timesteps))

    def on_update_end(self, model: PPO) -> None:
        self.calls.append(("update", model.num_timesteps))

    def on_end(self, model: PPO) -> None:
        self.calls.append(("end", model.num_timesteps))


def test_callbacks_are_called_in_the_order_of_training() -> None:
    recorder = Recorder()
    make_model().learn(64, callbacks=recorder)
    steps = [("step", n) for n in range(2, 65, 2)]
    assert recorder.calls == [
        ("start", 0),
        *steps[:16],
        ("rollout", 32),
        ("update", 32),
        *steps[16:],
        ("rollout", 64),
        ("update", 64),
        ("end", 64),
    ]


def test_a_step_can_be_looked_at() -> None:
    class Rewards(Callback):
        total, ends = 0.0, 0

        def on_step(self, model: PPO) -> None:
            assert model.last_step is not None
            self.total += float(model.last_step.rewards.sum())
            self.ends += int(model.last_step.dones.sum())

    rewards, model = Rewards(), make_model()
    model.learn(100, callbacks=rewards)
    # 128 steps of two environments; an episode has five.
    assert rewards.ends == 2 * (64 // 5)
    assert model.metrics["rollout/ep_len_mean"] == 5.0
    assert 0.0 < rewards.total < 128.0


def test_a_callback_can_stop_training() -> None:
    class Stop(Callback):
        def on_step(self, model: PPO) -> None:
            if model.num_timesteps >= 40:
                model.stop()

    model = make_model().learn(1_000, callbacks=Stop())
    assert model.num_timesteps == 64
    # A function that returns False does the same; other values do not.
    assert make_model().learn(1_000, callbacks=lambda model: False).num_timesteps == 32
    assert make_model().learn(100, callbacks=lambda model: None).num_timesteps == 128


def test_a_stopped_model_can_go_on() -> None:
    model = make_model().learn(100, callbacks=lambda model: False)
    assert model.learn(64).num_timesteps == 96


def test_a_callback_can_change_rates_and_log() -> None:
    def halve(model: PPO) -> None:
        model.set_rates(learning_rate=model.config.learning_rate / 2, ent_coef=0.01)
        model.log("my/number", 7)

    model = make_model(learning_rate=0.8, clip_range=linear(0.4)).learn(96, callbacks=halve)
    assert model.config.learning_rate == pytest.approx(0.1)
    assert model.agent.optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    assert (model.config.ent_coef, model.metrics["my/number"]) == (0.01, 7.0)
    # The schedule of a rate that was left alone goes on.
    assert model.metrics["train/clip_range"] == 0.0
    with pytest.raises(ConfigError, match="'gamma'"):
        model.set_rates(gamma=0.5)


def test_callbacks_end_even_if_training_fails() -> None:
    class Fail(Recorder):
        def on_rollout_end(self, model: PPO) -> None:
            raise RuntimeError("something else")

    fail = Fail()
    with pytest.raises(RuntimeError, match="something else"):
        make_model().learn(64, callbacks=[fail])
    assert fail.calls[-1] == ("end", 32)


def test_what_is_no_callback_is_named() -> None:
    with pytest.raises(ConfigError, match="callbacks has 3"):
        make_model().learn(64, callbacks=[3])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="Recorder"):
        make_model().learn(64, callbacks=Recorder)  # type: ignore[arg-type]


# -- evaluation -----------------------------------------------------------------------------------


def test_evaluation_happens_every_so_often_and_at_the_end() -> None:
    evaluate = Evaluate(48, n_episodes=3)
    model = make_model().learn(160, callbacks=evaluate)
    # After the first update at or past 48, 96 and 144 steps; that of 160 is the end too.
    assert [steps for steps, _ in evaluate.results] == [64, 96, 160]
    assert all(len(result.returns) == 3 for _, result in evaluate.results)
    last = evaluate.results[-1][1]
    assert model.metrics["eval/mean_reward"] == last.mean
    assert model.metrics["eval/mean_ep_length"] == 5.0


def test_the_best_model_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    means = iter([1.0, 4.0, 3.0, 4.0])

    def fake(*_: Any, **__: Any) -> Evaluated:
        mean = next(means)
        return Evaluated(np.array([mean]), np.array([5]), mean, mean)

    monkeypatch.setattr(evaluation_module, "evaluate", fake)
    evaluate = Evaluate(32, save_best=tmp_path / "best")
    make_model().learn(128, callbacks=evaluate)
    assert (evaluate.best_mean, PPO.load(tmp_path / "best", Picks).num_timesteps) == (4.0, 64)


def test_evaluation_does_not_change_training() -> None:
    plain, watched = make_model(), make_model()
    plain.learn(128)
    watched.learn(128, callbacks=Evaluate(32, n_episodes=2))
    for mine, other in zip(
        plain.agent.policy.parameters(), watched.agent.policy.parameters(), strict=True
    ):
        assert bool((mine == other).all())


def test_a_callback_used_again_starts_counting_again() -> None:
    evaluate = Evaluate(32, n_episodes=1)
    make_model().learn(96, callbacks=evaluate)
    make_model(seed=1).learn(96, callbacks=evaluate)
    assert [steps for steps, _ in evaluate.results] == [32, 64, 96] * 2


# -- checkpoints and trackers ---------------------------------------------------------------------


def test_checkpoints_are_written_every_so_often_and_at_the_end(tmp_path: Path) -> None:
    steps: list[int] = []

    def watch(model: PPO) -> None:
        if (tmp_path / "run").exists():
            steps.append(PPO.load(tmp_path / "run", Picks).num_timesteps)

    callbacks = [Checkpoint(tmp_path / "run", 64), watch]
    make_model().learn(160, callbacks=callbacks)
    # Functions are called before the checkpoint of the same update is written.
    assert steps == [64, 64, 128]
    assert PPO.load(tmp_path / "run", Picks).num_timesteps == 160


def test_trackers_get_what_other_callbacks_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[tuple[int, dict[str, float]]] = []

    class Fake:
        def log(self, metrics: dict[str, float], step: int) -> None:
            logged.append((step, dict(metrics)))

        def close(self) -> None:
            logged.append((-1, {}))

    def make(name: str, folder: Path, settings: Any, *, first_step: int, **_: Any) -> Fake:
        assert (name, folder, first_step) == ("tensorboard", tmp_path / "run", 1)
        assert settings["ppo"]["learning_rate"] == 3e-4
        return Fake()

    monkeypatch.setattr("esper.simic.callbacks.make_tracker", make)
    callbacks = [
        Tracker("tensorboard", tmp_path / "run"),
        Evaluate(32, n_episodes=1),
        lambda model: model.log("my/number", 1),
    ]
    make_model().learn(64, callbacks=callbacks)
    assert [step for step, _ in logged] == [32, 64, -1]
    assert logged[0][1].keys() >= {"my/number", "eval/mean_reward", "train/approx_kl"}


def test_tensorboard_files_are_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    make_model().learn(64, callbacks=Tracker("tensorboard", tmp_path / "run"))
    assert any("tfevents" in file.name for file in (tmp_path / "run").rglob("*"))


@pytest.mark.parametrize("name", ["csv", "tensorboard"])
def test_metrics_of_another_run_are_left_alone(name: str, tmp_path: Path) -> None:
    if name == "tensorboard":
        pytest.importorskip("tensorboardX")
    model = make_model().learn(32, callbacks=Tracker(name, tmp_path / "run"))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="run holds metrics"):
        make_model().learn(32, callbacks=Tracker(name, tmp_path / "run"))
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    model.learn(32, callbacks=Tracker(name, tmp_path / "run"))


def test_the_best_model_of_another_run_is_left_alone(tmp_path: Path) -> None:
    def best() -> Evaluate:
        return Evaluate(32, n_episodes=1, save_best=tmp_path / "best")

    model = make_model(seed=3).learn(32, callbacks=[best(), Checkpoint(tmp_path / "run")])
    with pytest.raises(ConfigError, match="best holds a model"):
        make_model().learn(32, callbacks=best())
    assert PPO.load(tmp_path / "best").seed == 3
    model.learn(32, callbacks=best())
    PPO.resume(tmp_path / "run", Picks).learn(32, callbacks=best())


# -- what callbacks return ------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [False, np.bool_(False)])
@pytest.mark.parametrize("hook", ["function", "on_step", "on_rollout_end", "on_update_end"])
def test_false_stops_training_from_every_hook(hook: str, answer: Any) -> None:
    class Stop(Callback):
        pass

    if hook != "function":
        setattr(Stop, hook, lambda self, model: answer)
    callback: Any = (lambda model: answer) if hook == "function" else Stop()
    assert make_model().learn(128, callbacks=callback).num_timesteps == 32


@pytest.mark.parametrize("answer", [True, np.bool_(True), None])
def test_true_and_nothing_continue(answer: Any) -> None:
    assert make_model().learn(64, callbacks=lambda model: answer).num_timesteps == 64


@pytest.mark.parametrize("answer", [0, "", 1.0, []])
def test_other_answers_of_a_callback_are_named(answer: Any) -> None:
    class Watch(Callback):
        def on_step(self, model: PPO) -> Any:
            return answer

    def watch(model: PPO) -> Any:
        return answer

    for callback, name in ((Watch(), "Watch.on_step"), (watch, "watch")):
        with pytest.raises(ConfigError, match=re.escape(f"{name} returned {answer!r}")):
            make_model().learn(64, callbacks=callback)


@pytest.mark.parametrize(
    ("method", "instead"),
    [
        ("_on_step", "on_step"),
        ("_on_rollout_end", "on_rollout_end"),
        ("_on_training_start", "on_start"),
        ("_on_training_end", "on_end"),
        ("on_training_start", "on_start"),
    ],
)
def test_methods_of_stable_baselines3_are_named(method: str, instead: str) -> None:
    watch = type("Watch", (Callback,), {method: lambda self: True})()
    with pytest.raises(
        ConfigError, match=rf"Watch has a method {method},.* {instead}\(self, model"
    ):
        make_model().learn(64, callbacks=watch)


def test_a_function_without_an_argument_is_named() -> None:
    with pytest.raises(ConfigError, match=r"<lambda>.* one argument"):
        make_model().learn(64, callbacks=lambda: True)  # type: ignore[arg-type,misc]

"""Training sends its metrics to a tracker: each update once, whether resumed or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from esper.errors import ConfigError
from esper.simic import PPO, Callback, Checkpoint, Evaluate, Tracker
from tests.telemetry.test_sinks import shown_points


class StopAt(Callback):
    """Interrupts training some steps after its last checkpoint."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_update_end(self, model: PPO) -> None:
        if model.num_timesteps >= self.step:
            raise KeyboardInterrupt


def test_tensorboard_shows_interrupted_and_resumed_training_as_one(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    folder = tmp_path / "runs" / "cartpole"
    model = PPO("CartPole-v1", n_envs=2, n_steps=16, n_epochs=1)
    # Checkpoints at 64 and 128 steps: the update at 96 is sent, lost, and sent again.
    callbacks = [Tracker("tensorboard", folder), Checkpoint(folder, every=64), StopAt(96)]
    with pytest.raises(KeyboardInterrupt):
        model.learn(160, callbacks=callbacks)
    model = PPO.resume(folder)
    assert model.num_timesteps == 64
    model.learn(callbacks=[Tracker("tensorboard", folder), Evaluate(64, n_episodes=2)])

    points = shown_points(folder / "tensorboard")
    assert all(len(values) == 1 for values in points.values())
    assert [step for tag, step in points if tag == "train/approx_kl"] == [32, 64, 96, 128, 160]
    assert [step for tag, step in points if tag == "eval/mean_reward"] == [128, 160]
    last = {tag: values[0] for (tag, step), values in points.items() if step == 160}
    assert last == pytest.approx(model.metrics, rel=1e-6, abs=1e-30)


def test_an_unknown_tracker_is_reported_before_training_starts(tmp_path: Path) -> None:
    model = PPO("CartPole-v1", n_steps=16)
    with pytest.raises(ConfigError, match="Did you mean 'tensorboard'"):
        model.learn(16, callbacks=Tracker("tensorbord", tmp_path / "run"))
    assert model.num_timesteps == 0
    assert not list(tmp_path.iterdir())

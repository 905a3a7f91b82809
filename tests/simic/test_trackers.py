"""Training sends its metrics to a tracker: each update once, whether resumed or not."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

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


def test_an_unknown_tracker_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'tensorbord'.*Did you mean 'tensorboard'"):
        Tracker("tensorbord", tmp_path / "run")


def read_csv(folder: Path) -> list[dict[str, str]]:
    with (folder / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_csv_file_holds_a_row_for_each_update_whether_resumed_or_not(tmp_path: Path) -> None:
    seen: dict[int, dict[str, float]] = {}

    def note(model: PPO) -> None:
        seen[model.num_timesteps] = model.metrics

    def callbacks(name: str) -> list[Any]:
        folder = tmp_path / name
        return [Tracker("csv", folder), Evaluate(64, n_episodes=2), Checkpoint(folder, 64), note]

    model = PPO("CartPole-v1", n_envs=2, n_steps=16, n_epochs=1)
    with pytest.raises(KeyboardInterrupt):
        model.learn(160, callbacks=[*callbacks("run"), StopAt(96)])
    assert [row["step"] for row in read_csv(tmp_path / "run")] == ["32", "64"]
    PPO.resume(tmp_path / "run").learn(callbacks=callbacks("run"))
    rows = read_csv(tmp_path / "run")
    assert [int(row.pop("step")) for row in rows] == [32, 64, 96, 128, 160]
    shown = [{name: float(text) for name, text in row.items() if text} for row in rows]
    assert shown == list(seen.values())
    # Another run does not touch the file.
    with pytest.raises(ConfigError, match="run holds metrics"):
        PPO("CartPole-v1", n_steps=16).learn(16, callbacks=Tracker("csv", tmp_path / "run"))
    assert len(read_csv(tmp_path / "run")) == 5

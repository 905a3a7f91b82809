"""Sinks send metrics to trackers, and a resumed run continues the same tracker run."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from esper.errors import ConfigError
from esper.telemetry import metrics_of
from esper.telemetry.records import EvaluationRecord, RoundRecord, UpdateRecord
from esper.telemetry.sinks import Sink, make_sink, make_tracker
from tests.telemetry.samples import example, notice, step

CONFIG = 'task = "digits"\n[ppo]\nlearning_rate = 0.001\n'


def update(number: int) -> UpdateRecord:
    return example(UpdateRecord, round=number)


def round_(number: int, reward: float = 0.0) -> RoundRecord:
    return example(RoundRecord, round=number, ep_rew_mean=reward)


def evaluation(number: int) -> EvaluationRecord:
    return example(EvaluationRecord, round=number, arm="learned", purpose="tuning")


class FakeRun:
    """A fake tracker run that records what it receives."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.is_finished = False

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((step, metrics))

    def finish(self) -> None:
        self.is_finished = True


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[FakeRun]:
    """Replace W&B by a fake and return the runs it starts."""
    found: list[FakeRun] = []

    def init(**options: Any) -> FakeRun:
        found.append(FakeRun(options))
        return found[-1]

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return found


def test_trackers_receive_only_metrics_at_their_rounds(tmp_path: Path, runs: list[FakeRun]) -> None:
    sink: Sink = make_sink("wandb", tmp_path, CONFIG)
    records = [step(1), update(1), round_(1), notice(1), evaluation(1), round_(2)]
    for record in records:
        sink.write(record)
    sink.close()
    (run,) = runs
    expected = [records[i] for i in (1, 2, 4, 5)]
    assert run.logged == [(record.round, metrics_of(record)) for record in expected]
    assert run.is_finished
    assert run.options["config"] == {"task": "digits", "ppo": {"learning_rate": 0.001}}
    assert run.options["project"] == "esper"


def test_a_resumed_run_continues_its_tracker_run_and_another_run_does_not(
    tmp_path: Path, runs: list[FakeRun]
) -> None:
    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    for folder in folders:
        folder.mkdir(parents=True)
    moved = tmp_path / "c" / "run"
    make_sink("wandb", folders[0], CONFIG).close()
    make_sink("wandb", folders[1], CONFIG).close()
    moved.parent.mkdir()
    folders[0].rename(moved)
    make_sink("wandb", moved, CONFIG).close()
    first, other, again = (run.options["id"] for run in runs)
    assert first == again != other
    assert all(run.options["resume"] == "allow" for run in runs)


def test_training_that_starts_anew_in_the_same_folder_is_another_run(
    tmp_path: Path, runs: list[FakeRun]
) -> None:
    for first_step in (1, 101, 1):
        tracker = make_tracker("wandb", tmp_path / "run", {"seed": 3}, first_step=first_step)
        tracker.log({"loss": 0.5}, first_step)
        tracker.close()
    first, resumed, anew = (run.options["id"] for run in runs)
    assert first == resumed != anew
    assert [run.logged for run in runs] == [[(step, {"loss": 0.5})] for step in (1, 101, 1)]
    assert all(run.options["config"] == {"seed": 3} and run.is_finished for run in runs)


def test_a_row_of_a_csv_file_that_was_cut_short_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    for first_step in (1, 3):
        tracker = make_tracker("csv", tmp_path, {}, first_step=first_step)
        for number in range(first_step, first_step + 2):
            tracker.log({"loss": 0.5 * number}, number)
            tracker.log({"eval": float(number)}, number)
        tracker.close()
        assert not path.read_text().endswith(",")
        path.write_text(path.read_text() + "5,2")
    assert path.read_text().splitlines()[:5] == [
        "step,loss,eval",
        "1,0.5,1.0",
        "2,1.0,2.0",
        "3,1.5,3.0",
        "4,2.0,4.0",
    ]


def test_the_wandb_project_can_be_set_by_the_environment(
    tmp_path: Path, runs: list[FakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    make_sink("wandb", tmp_path, CONFIG)
    assert runs[0].options["project"] == "mine"


@pytest.mark.parametrize(
    ("name", "package"),
    [("tensorboard", "tensorboardX"), ("wandb", "wandb")],
)
def test_a_missing_package_is_reported_with_the_install_command(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for make in (
        lambda: make_sink(name, tmp_path / "run", CONFIG),
        lambda: make_tracker(name, tmp_path / "run", {}),
    ):
        with pytest.raises(
            ConfigError, match=rf'{package} is not .*"esper-lite\[{name}\]"'
        ) as caught:
            make()
        assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_an_unknown_sink_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'tensorbord'.* Did you mean 'tensorboard'"):
        make_sink("tensorbord", tmp_path, CONFIG)
    with pytest.raises(ConfigError, match=r"the tracker is 'wandbb'.* Did you mean 'wandb'"):
        make_tracker("wandbb", tmp_path, {})


def events(path: Path) -> Iterator[Any]:
    """Yield the events of a file, each stored as length, checksum, bytes, checksum."""
    from tensorboardX.proto.event_pb2 import Event  # pyright: ignore

    data, place = path.read_bytes(), 0
    while place < len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        yield Event.FromString(data[place + 12 : place + 12 + length])
        place += 16 + length


def shown_points(folder: Path) -> dict[tuple[str, int], list[float]]:
    """Return the points that TensorBoard shows; a new session hides earlier ones."""
    points: dict[tuple[str, int], list[float]] = {}
    for path in sorted(folder.iterdir()):
        for event in events(path):
            if event.session_log.status == 1:
                points = {key: found for key, found in points.items() if key[1] < event.step}
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    points.setdefault((value.tag, event.step), []).append(value.simple_value)
    return points


def test_tensorboard_shows_each_point_of_a_resumed_run_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    sink = make_sink("tensorboard", tmp_path, CONFIG)
    for number in (1, 2, 3):
        sink.write(update(number))
        sink.write(round_(number, reward=number / 4))
    sink.write(step(3))
    sink.close()
    sink = make_sink("tensorboard", tmp_path, CONFIG)
    for number in (2, 3, 4):
        sink.write(update(number))
        sink.write(round_(number, reward=number / 4))
    sink.close()
    points = shown_points(tmp_path / "tensorboard")
    assert all(len(values) == 1 for values in points.values())
    rewards = {step: v[0] for (tag, step), v in points.items() if tag == "rollout/ep_rew_mean"}
    assert rewards == {1: 0.25, 2: 0.5, 3: 0.75, 4: 1.0}
    assert {tag for tag, _ in points} == {*metrics_of(update(1)), *metrics_of(round_(1))}


def test_tensorboard_keeps_a_round_that_is_resumed_at_its_evaluation(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    sink = make_sink("tensorboard", tmp_path, CONFIG)
    for record in (update(1), round_(1), update(2), round_(2)):
        sink.write(record)
    sink.close()
    sink = make_sink("tensorboard", tmp_path, CONFIG)
    sink.write(evaluation(1))
    sink.write(round_(2))
    sink.close()
    points = shown_points(tmp_path / "tensorboard")
    assert ("rollout/ep_rew_mean", 1) in points
    assert ("eval/score", 1) in points
    assert all(len(values) == 1 for values in points.values())


def test_a_sink_without_records_leaves_no_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    sink = make_sink("tensorboard", tmp_path, CONFIG)
    sink.write(step(1))
    sink.close()
    assert not list(tmp_path.iterdir())


def test_tensorboard_shows_resumed_training_once_and_replaces_training_that_starts_anew(
    tmp_path: Path,
) -> None:
    pytest.importorskip("tensorboardX")

    def train(first: int, last: int, value: float) -> dict[tuple[str, int], list[float]]:
        tracker = make_tracker("tensorboard", tmp_path, {"n_envs": 2}, first_step=first)
        for number in range(first, last + 1):
            tracker.log({"rollout/ep_rew_mean": value, "eval/mean_reward": -value}, number)
        tracker.close()
        return shown_points(tmp_path / "tensorboard")

    names = ("rollout/ep_rew_mean", "eval/mean_reward")
    first = train(1, 4, 0.5)
    assert [first[names[0], i] for i in range(1, 5)] == [[0.5]] * 4
    assert [first[names[1], i] for i in range(1, 5)] == [[-0.5]] * 4
    resumed = train(4, 6, 2.0)
    assert [resumed[names[0], i] for i in range(1, 7)] == [[0.5]] * 3 + [[2.0]] * 3
    assert set(train(1, 2, 3.0)) == {(name, i) for name in names for i in (1, 2)}

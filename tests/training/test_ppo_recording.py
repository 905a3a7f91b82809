"""PPO.learn is recorded as a run, which all that reads runs can read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import esper
from esper.cli.main import main
from esper.errors import ConfigError, RunError
from esper.simic import PPO, Checkpoint, Evaluate, Record
from esper.simic.callbacks import Callback
from esper.telemetry import TelemetryWriter
from esper.telemetry.records import RoundRecord, UpdateRecord
from tests.dashboard.served import serve
from tests.simic.small_envs import Doors, Picks


def make_model(**settings: Any) -> PPO:
    return PPO(Picks, **{"n_envs": 2, "n_steps": 16, "n_epochs": 1, "seed": 3, **settings})


@dataclass
class Stop(Callback):
    """Ends training at a step, in some way."""

    at: int
    error: type[BaseException] | None = None

    def on_update_end(self, model: PPO) -> bool | None:
        if model.num_timesteps < self.at:
            return None
        if self.error is not None:
            raise self.error
        return False


def rows_of(folder: Path, kind: type[Any]) -> list[Any]:
    with esper.load_run(folder).telemetry() as telemetry:
        return telemetry.rows(kind)


def numbers_of(folder: Path) -> list[Any]:
    """Return what was recorded, without times."""
    names = ("round", "env_steps", "n_episodes", "ep_rew_mean", "ep_len_mean", "learning_rate")
    rounds = [[getattr(row, name) for name in names] for row in rows_of(folder, RoundRecord)]
    return [*rounds, *rows_of(folder, UpdateRecord)]


def test_every_round_is_recorded_under_the_names_of_metrics(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []
    evaluate = Evaluate(64, n_episodes=3)
    model = make_model()
    model.learn(
        96,
        callbacks=[
            Record(tmp_path / "run"),
            evaluate,
            lambda model: seen.append(dict(model.metrics)),
        ],
    )
    run = esper.load_run(tmp_path / "run")
    assert (run.state, run.rounds_done, run.config.rounds) == ("done", 3, 3)
    assert run.config.task == "PPO on Picks"
    assert run.config.ppo == model.config
    metrics = run.metrics()
    for name in ("train/approx_kl", "train/value_loss", "train/learning_rate"):
        assert metrics[name].values == pytest.approx([one[name] for one in seen])
    assert metrics["time/total_timesteps"].values == [32, 64, 96]
    assert metrics["eval/mean_reward"].rounds == [2, 3]
    assert metrics["eval/mean_reward"].values == [result.mean for _, result in evaluate.results]


def test_the_return_of_a_round_is_that_of_its_episodes(tmp_path: Path) -> None:
    ended: list[list[float]] = []
    make_model().learn(
        64,
        callbacks=[
            Record(tmp_path / "run"),
            lambda model: ended.append(list(model.last_episodes.returns)),
        ],
    )
    rows = rows_of(tmp_path / "run", RoundRecord)
    assert [row.n_episodes for row in rows] == [len(one) for one in ended]
    means = [sum(one) / len(one) for one in ended]
    assert [row.ep_rew_mean for row in rows] == pytest.approx(means)


def test_a_resumed_model_continues_its_record(tmp_path: Path) -> None:
    make_model().learn(160, callbacks=Record(tmp_path / "whole"))
    place = tmp_path / "parts"

    def callbacks(*more: Any) -> list[Any]:
        return [Record(place), Checkpoint(tmp_path / "checkpoints", every=64), *more]

    make_model().learn(160, callbacks=callbacks(Stop(at=96)))
    assert esper.load_run(place).rounds_done == 3
    resumed = PPO.resume(tmp_path / "checkpoints", Picks)
    resumed.learn(callbacks=callbacks())
    run = esper.load_run(place)
    assert (run.state, run.rounds_done, run.config.rounds) == ("done", 5, 5)
    assert numbers_of(place) == numbers_of(tmp_path / "whole")


def test_rounds_after_the_checkpoint_are_recorded_anew(tmp_path: Path) -> None:
    folder, checkpoints = tmp_path / "run", tmp_path / "checkpoints"
    saved = Checkpoint(checkpoints, every=64)
    with pytest.raises(ZeroDivisionError):
        make_model().learn(
            160, callbacks=[Record(folder), saved, Stop(at=96, error=ZeroDivisionError)]
        )
    assert (esper.load_run(folder).state, esper.load_run(folder).rounds_done) == ("failed", 2)
    PPO.resume(checkpoints, Picks).learn(callbacks=Record(folder))
    assert [row.round for row in rows_of(folder, RoundRecord)] == [1, 2, 3, 4, 5]


def test_a_second_call_continues_the_record(tmp_path: Path) -> None:
    model, record = make_model(), Record(tmp_path / "run")
    model.learn(64, callbacks=record).learn(64, callbacks=record)
    run = esper.load_run(tmp_path / "run")
    assert (run.rounds_done, run.config.rounds) == (4, 4)


def test_an_interrupted_training_says_so(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_model().learn(
            96, callbacks=[Record(tmp_path / "run"), Stop(at=64, error=KeyboardInterrupt)]
        )
    assert esper.load_run(tmp_path / "run").state == "interrupted"


def test_the_folder_of_another_run_is_rejected(tmp_path: Path) -> None:
    make_model().learn(32, callbacks=Record(tmp_path / "run"))
    with pytest.raises(RunError, match=r"holds another run \(PPO on Picks\)"):
        make_model().learn(32, callbacks=Record(tmp_path / "run"))
    make_model().learn(64, callbacks=[Record(tmp_path / "other"), Checkpoint(tmp_path / "c", 64)])
    resumed = PPO.resume(tmp_path / "c", Picks)
    with pytest.raises(RunError, match="does not record 64 environment steps"):
        resumed.learn(32, callbacks=Record(tmp_path / "run"))
    with pytest.raises(ConfigError, match="folder is 7"):
        Record(7)  # type: ignore[arg-type]


def test_without_a_folder_a_new_one_is_named_after_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESPER_RUNS", str(tmp_path / "runs"))
    record = Record()
    make_model().learn(32, callbacks=record)
    assert record.folder is not None
    assert record.folder.parent == tmp_path / "runs"
    assert record.folder.name.startswith("PPO-on-Picks-")


def test_training_continues_if_the_record_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise esper.errors.StorageError("the disk is full.")

    def break_disk(model: PPO) -> None:
        monkeypatch.setattr(TelemetryWriter, "write_many", fail)

    with pytest.warns(esper.errors.EsperWarning, match="continues unrecorded: the disk is full"):
        model = make_model().learn(96, callbacks=[Record(tmp_path / "run"), break_disk])
    assert model.num_timesteps == 96


def test_the_dashboard_and_the_commands_read_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = PPO(Doors, n_envs=2, n_steps=16, n_epochs=1, gamma=0.9)
    model.learn(64, callbacks=[Record(tmp_path / "runs" / "doors"), Evaluate(32, n_episodes=2)])
    with serve(tmp_path / "runs") as served:
        (row,) = served.ask("/api/runs").json["runs"]
        assert (row["task"], row["state"], row["grows"]) == ("PPO on Doors", "done", False)
        for part in ("", "/metrics", "/health", "/learned", "/environments", "/episodes"):
            assert served.ask(f"/api/runs/doors{part}").status == 200
        overview = served.ask("/api/runs/doors").json["overview"]
        assert (overview["learns"], overview["grows"]) == (True, False)
        assert served.ask("/api/runs/doors/health").json["seconds_by_part"]["names"] == [
            "rollout",
            "update",
        ]
    folder = str(tmp_path / "runs" / "doors")
    assert main(["show", folder]) == 0
    assert "Resume with" not in capsys.readouterr().out
    assert main(["report", folder]) == 0
    assert main(["resume", folder]) == 2
    assert "PPO.resume" in capsys.readouterr().err
    assert json.loads(json.dumps(overview))["heads"] == list(model.agent.spec.names)

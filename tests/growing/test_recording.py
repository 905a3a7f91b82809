"""A training loop of the user's own, recorded as a run and read by what reads runs."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import esper
from esper.cli.main import main
from esper.dashboard import views
from esper.errors import EsperError, GrowerError, RunError, StorageError
from esper.telemetry import TelemetryWarning, TelemetryWriter, open_run
from esper.telemetry.records import EpisodeRecord, Record, RoundRecord, SeedEventRecord, StepRecord
from tests.dashboard.served import serve
from tests.growing.test_grower import Loop, assert_equal
from tests.tamiyo.fresh_controllers import fresh_controller

EPOCHS = 9


def run_epoch(loop: Loop, epoch: int) -> None:
    """Train an epoch; the fourth has a bad batch."""
    loop.run_epoch(lambda n, loss: loss * math.nan if n == 1 and epoch == 3 else loss)


def train(folder: Path, epochs: int = EPOCHS, *, until: int | None = None, **options: Any) -> Loop:
    loop = Loop(options.pop("controller", fresh_controller()), epochs=epochs, **options)
    assert loop.grower.record(folder) == folder
    for epoch in range(until or epochs):
        run_epoch(loop, epoch)
    return loop


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, esper.Trace]:
    path = tmp_path_factory.mktemp("runs") / "mine"
    return path, train(path).grower.trace


def rows(path: Path, kind: type[Any]) -> list[Any]:
    with open_run(path) as telemetry:
        return telemetry.rows(kind)


def test_a_step_is_a_decision_and_the_epoch_after_it(recorded: tuple[Path, esper.Trace]) -> None:
    path, trace = recorded
    with open_run(path) as telemetry:
        detail = views.episode_detail(telemetry, 0, 0)
    assert detail is not None
    assert [step["epoch"] for step in detail["steps"]] == list(range(1, EPOCHS + 1))
    assert [step["score"] for step in detail["steps"]] == [one.score for one in trace]
    assert [step["flops"] for step in detail["steps"]] == [one.flops for one in trace]
    first, *others = detail["steps"]
    assert (first["op"], first["probabilities"], first["log_prob"]) == ("wait", None, None)
    assert first["decided_after"] == 0
    for step, before in zip(others, trace, strict=False):
        assert step["decided_after"] == before.epoch
        assert step["op_done"] == before.op
        assert step["slot"] == (before.slot or None)
        assert step["blueprint"] == (before.blueprint or None)
        odds = dict(zip(esper.Op, step["probabilities"]["op"], strict=True))  # type: ignore[index]
        for op, share in odds.items():
            expected = before.probabilities.get(op.name.lower())
            assert (share or None) == (
                None if expected is None else pytest.approx(expected, abs=1e-4)
            )
    germinated = {(one.epoch, one.slot) for one in trace if one.op == "germinate"}
    assert germinated
    assert germinated == {
        (one["decided_after"], one["slot"])
        for one in detail["events"]
        if one["from_stage"] == "dormant"
    }
    assert detail["n_epochs_max"] == EPOCHS
    assert detail["result"] is not None
    assert detail["result"]["final_score"] == trace[-1].score


def test_the_probabilities_are_those_of_the_choices(recorded: tuple[Path, esper.Trace]) -> None:
    path, trace = recorded
    with open_run(path) as telemetry:
        detail = views.episode_detail(telemetry, 0, 0)
    assert detail is not None
    for step, before in zip(detail["steps"][1:], trace, strict=False):
        assert list(step["choices"].values()) == before.choices
        assert step["probabilities"] is not None
        assert step["log_prob"] is not None
        joint = 1.0
        for head in step["relevant"]:
            shares = step["probabilities"][head]
            assert sum(share or 0.0 for share in shares) == pytest.approx(1.0, abs=1e-3)
            share = shares[step["choices"][head]]
            assert share is not None
            joint *= share
        assert math.exp(step["log_prob"]) == pytest.approx(joint, rel=0.01)


def test_recording_does_not_change_the_training(tmp_path: Path) -> None:
    plain, watched = (Loop("shipped", epochs=5) for _ in range(2))
    watched.grower.record(tmp_path / "watched")
    for loop in (plain, watched):
        torch.manual_seed(7)
        for epoch in range(5):
            run_epoch(loop, epoch)
    assert watched.grower.trace.to_json() == plain.grower.trace.to_json()
    assert_equal(watched.tensors(), plain.tensors())


def test_what_is_not_known_reads_as_unknown(recorded: tuple[Path, esper.Trace]) -> None:
    path, trace = recorded
    with open_run(path) as telemetry:
        detail = views.episode_detail(telemetry, 0, 0)
        headline, about = views.headline(telemetry), views.overview(telemetry)
        metrics = telemetry.metrics()
    assert detail is not None
    assert detail["result"] is not None
    assert detail["result"]["ep_rew"] is None
    for step, value in zip(detail["steps"], [None, *(one.value for one in trace)], strict=False):
        assert (step["reward"], step["value"]) == (None, value)
        assert set(step["terms"].values()) == {None}
    assert (headline["best_return"], headline["score_gain"]) == (None, None)
    assert headline["seed_parameters"] == trace[-1].seed_parameters
    assert about["learns"] is False
    assert not any(name.startswith(("eval/", "rollout/")) for name in metrics)
    assert metrics["growth/score"].values == [one.score for one in trace]


def test_bars_follow_the_stages_of_the_model(recorded: tuple[Path, esper.Trace]) -> None:
    """A decision's stages are those of the next epoch, at whose end the slots have moved on."""
    path, trace = recorded
    with open_run(path) as telemetry:
        detail = views.episode_detail(telemetry, 0, 0)
    assert detail is not None
    germinated = [(one.slot, one.blueprint, one.epoch) for one in trace if one.blueprint]
    bars = [(bar["slot"], bar["blueprint"], bar["parts"][0]["from"]) for bar in detail["bars"]]
    assert sorted(bars) == sorted(germinated)
    for bar in detail["bars"]:
        ends = [part["to"] for part in bar["parts"]]
        assert [part["from"] for part in bar["parts"]] == [bar["parts"][0]["from"], *ends[:-1]]
    rescues = [(one["epoch"], one["reason"]) for one in detail["governor"]]
    assert rescues == [(4, "the loss is nan")]


def test_the_dashboard_shows_it(recorded: tuple[Path, esper.Trace]) -> None:
    path, trace = recorded
    with serve(path.parent) as served:
        (row,) = served.ask("/api/runs").json["runs"]
        assert (row["task"], row["state"], row["problem"]) == ("own training", "done", None)
        assert (row["rounds_done"], row["rounds"]) == (EPOCHS, EPOCHS)
        for view in ("", "/metrics", "/episodes?order=best", "/episodes/0/0", "/environments"):
            assert served.ask(f"/api/runs/mine{view}").status == 200, view
        for view in ("/learned", "/health"):
            assert served.ask(f"/api/runs/mine{view}").status == 200, view
        (host,) = served.ask("/api/runs/mine/environments").json["envs"]
    assert host["scores"] == [one.score for one in trace]
    assert host["ep_rew"] is None


def test_commands_show_it_and_do_not_resume_it(
    recorded: tuple[Path, esper.Trace], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, trace = recorded
    assert main(["show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert f"done, own training, round {EPOCHS} of {EPOCHS}" in shown
    assert f"{trace[-1].score:.3f}" in shown
    assert "Resume with" not in shown
    assert main(["runs", str(path.parent)]) == 0
    assert main(["report", str(path), "--out", str(tmp_path / "report.html")]) == 0
    report = (tmp_path / "report.html").read_text()
    assert '"own training"' in report
    assert "esper evaluate" not in report.partition("<main")[2].partition("</main>")[0]
    assert "esper train" not in report.partition("<main")[2].partition("</main>")[0]
    capsys.readouterr()
    assert main(["resume", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "grower.state_dict()" in line
    run = esper.load_run(path)
    for use in (
        lambda: esper.resume(run),
        run.best_host,
        lambda: Loop(controller=run),
    ):
        with pytest.raises(RunError, match=r"grower\.record"):
            use()
    assert run.plot("timeline", env=0, episode=0).axes


def comparable(records: list[Record]) -> list[Any]:
    clocks = {"seconds", "steps_per_second", "rss_bytes", "probabilities", "log_prob"}
    return [
        {name: repr(getattr(one, name)) for name in one.__slots__ if name not in clocks}
        for one in records
    ]


@pytest.mark.parametrize("epoch", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 6))])
def test_a_record_continues_where_the_state_was_saved(
    recorded: tuple[Path, esper.Trace], tmp_path: Path, epoch: int
) -> None:
    path, _ = recorded
    loop = Loop(fresh_controller(), epochs=EPOCHS)
    loop.grower.record(tmp_path / "again")
    file = io.BytesIO()

    for number in range(min(epoch + 2, EPOCHS)):  # two epochs more than are saved
        run_epoch(loop, number)
        if number + 1 == epoch:
            torch.save(loop.grower.state_dict(), file)
    del loop  # the record is closed with its Grower
    assert esper.load_run(tmp_path / "again").state == "interrupted"
    file.seek(0)
    other = Loop(fresh_controller(), epochs=EPOCHS)
    other.grower.load_state_dict(torch.load(file, weights_only=True))
    other.grower.record(tmp_path / "again")
    for number in range(epoch, EPOCHS):
        run_epoch(other, number)
    for kind in (StepRecord, SeedEventRecord, RoundRecord, EpisodeRecord):
        assert comparable(rows(tmp_path / "again", kind)) == comparable(rows(path, kind)), kind
    assert esper.load_run(tmp_path / "again").state == "done"


def test_a_training_that_ends_early_is_closed_by_hand(tmp_path: Path) -> None:
    loop = train(tmp_path / "short", until=3)
    with pytest.raises(GrowerError, match="short"):
        loop.grower.record(tmp_path / "other")
    assert esper.load_run(tmp_path / "short").state == "running"
    loop.grower.end_recording()
    loop.grower.end_recording()
    assert esper.load_run(tmp_path / "short").state == "done"
    (episode,) = rows(tmp_path / "short", EpisodeRecord)
    assert (episode.n_epochs, episode.was_truncated) == (3, True)
    assert episode.final_score == loop.grower.trace[-1].score
    loop.run_epoch()
    assert len(rows(tmp_path / "short", RoundRecord)) == 3


class Finisher:
    """Ends the training after three epochs."""

    name = "finisher"

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        self.n = 0

    def act(self, observations: Any, masks: Any, starts: Any) -> Any:
        self.n += 1
        op = esper.Op.FINISH if self.n == 3 else esper.Op.WAIT
        return torch.tensor([[0, 0, 0, 0, 0, 0, 0, op]]).numpy()


def test_the_controller_ends_the_episode_with_a_step_of_its_own(tmp_path: Path) -> None:
    train(tmp_path / "ended", until=4, controller=Finisher(), price=0.1)
    (episode,) = rows(tmp_path / "ended", EpisodeRecord)
    assert (episode.n_epochs, episode.ep_len, episode.was_truncated) == (3, 4, False)
    assert (episode.budget_epochs, episode.flop_price, episode.title) == (EPOCHS, 0.1, None)
    steps = rows(tmp_path / "ended", StepRecord)
    assert [(one.epoch, esper.Op(one.op_done).name) for one in steps] == [
        (1, "WAIT"),
        (2, "WAIT"),
        (3, "WAIT"),
        (3, "FINISH"),
    ]
    with open_run(tmp_path / "ended") as telemetry:
        detail = views.episode_detail(telemetry, 0, 0)
    assert detail is not None
    assert [step["decided_after"] for step in detail["steps"]] == [0, 1, 2, 3]
    assert esper.load_run(tmp_path / "ended").state == "done"


def test_folders_of_other_trainings_are_left_alone(
    recorded: tuple[Path, esper.Trace], tmp_path: Path
) -> None:
    path, _ = recorded
    before = (path / "telemetry.sqlite").read_bytes()
    with pytest.raises(RunError, match="trained"):
        Loop(epochs=EPOCHS).grower.record(path)
    with pytest.raises(RunError, match="9 rounds"):
        Loop(epochs=EPOCHS + 1).grower.record(path)
    other = Loop(epochs=EPOCHS)
    other.run_epoch()
    first = train(tmp_path / "none", until=1, controller="fixed")
    with pytest.raises(RunError, match="in use"):
        other.grower.record(tmp_path / "none")
    first.grower.end_recording()
    other.run_epoch()
    with pytest.raises(RunError, match="records 1 epoch"):
        other.grower.record(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(EsperError, match="file"):
        other.grower.record(tmp_path / "file" / "below")
    assert (path / "telemetry.sqlite").read_bytes() == before


def test_a_failing_disk_ends_the_record_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = train(tmp_path / "full", until=2)

    def fail(*_: Any) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(TelemetryWriter, "write_many", fail)
    with pytest.warns(TelemetryWarning, match="the disk is full"):
        loop.run_epoch()
    loop.run_epoch()
    assert loop.grower.epoch == 4


def test_only_the_first_process_records(tmp_path: Path) -> None:
    loop = Loop("fixed", epochs=1)
    loop.grower.ranks.number = 1
    assert loop.grower.record(tmp_path / "second") is None
    assert not (tmp_path / "second").exists()
    loop.grower.end_recording()

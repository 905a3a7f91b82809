"""Runs start once, resume from checkpoints and belong to one process."""

import fcntl
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from esper.errors import CheckpointError, RunError, TelemetryError
from esper.storage.checkpoint_folder import CheckpointFolder, CheckpointWarning
from esper.storage.run_folder import RunFolder
from esper.telemetry import TelemetryWarning, TelemetryWriter
from esper.telemetry.records import EvaluationRecord, RoundRecord
from esper.training import runs as training
from esper.training.run import Run, list_runs, load_run
from esper.training.runs import RunInterrupted, resume, train
from esper.training.signals import StopRequest
from tests.training.tiny import Seen, liveliness, run_digests, tiny_config


@pytest.fixture(scope="module")
def stopped_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped in its ninth step."""
    stop, folder = StopRequest(), tmp_path_factory.mktemp("stopped") / "done"

    def look(record: Any) -> None:
        if getattr(record, "step", 0) == 9:
            stop.ask("enough")

    with liveliness(), pytest.raises(RunInterrupted, match=r"esper\.resume") as caught:
        train(tiny_config(), run_dir=folder, watchers=[Seen(look)], stop=stop)
    assert caught.value.run.state == "interrupted"
    return folder


@pytest.fixture
def stopped(stopped_folder: Path, tmp_path: Path) -> Path:
    """A copy of it, with the name of the uninterrupted run."""
    return Path(shutil.copytree(stopped_folder, tmp_path / "done"))


def test_a_folder_with_a_run_is_rejected_and_left_alone(done_run: Run) -> None:
    before = run_digests(done_run.path)
    with pytest.raises(RunError, match=done_run.name):
        train(tiny_config(), run_dir=done_run.path)
    assert run_digests(done_run.path) == before


def test_resuming_a_finished_run_does_nothing(
    done_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "Trainer", None)
    again = resume(done_run.path)
    assert (again.state, again.rounds_done, again.path) == ("done", 3, done_run.path)


def test_runs_are_found_by_path_and_by_name(done_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESPER_RUNS", str(done_run.path.parent))
    assert load_run("done").path == done_run.path
    assert [run.name for run in list_runs()] == ["done"]
    with pytest.raises(RunError, match="Did you mean 'done'"):
        load_run("don")


def test_a_run_sets_and_restores_the_number_of_threads(tmp_path: Path) -> None:
    stop, used, before = StopRequest(), set[int](), torch.get_num_threads()

    def look(record: Any) -> None:
        used.add(torch.get_num_threads())
        if isinstance(record, EvaluationRecord):
            stop.ask("enough")

    config = tiny_config(threads=before + 2, budget__n_epochs=2)
    with pytest.raises(RunInterrupted):
        train(config, run_dir=tmp_path / "run", watchers=[Seen(look)], stop=stop)
    assert used == {before + 2}
    assert torch.get_num_threads() == before


def test_the_last_checkpoints_are_kept(done_run: Run) -> None:
    folder = CheckpointFolder(done_run.path / "checkpoints")
    assert folder.names() == [f"step-{step:09d}" for step in (16, 17, 18)]
    assert not [path for path in folder.path.iterdir() if path.name.startswith(".")]


def test_a_run_that_another_process_works_on_is_rejected(stopped: Path) -> None:
    code = (
        "import sys\n"
        "from esper.storage.run_folder import RunFolder\n"
        "with RunFolder(sys.argv[1]).locked():\n"
        "    print('locked', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, stopped],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        assert load_run(stopped).state == "running"
        with pytest.raises(RunError, match=f"process {other.pid}"):
            resume(stopped)
        other.kill()
    assert load_run(stopped).state == "interrupted"


def test_a_run_killed_before_its_first_save_starts_over_with_a_warning(
    tmp_path: Path,
) -> None:
    config = tiny_config(rounds=1, n_steps=2, budget__n_epochs=2)
    RunFolder.create(tmp_path / "killed", config)
    assert load_run(tmp_path / "killed").state == "empty"
    with pytest.warns(CheckpointWarning, match="not saved"):
        assert resume(tmp_path / "killed").state == "done"


def test_a_damaged_checkpoint_is_skipped_with_a_warning_and_the_run_is_the_same(
    stopped: Path, done_run: Run
) -> None:
    names = CheckpointFolder(stopped / "checkpoints").names()
    torn = stopped / "checkpoints" / names[-1] / "state.safetensors"
    torn.write_bytes(torn.read_bytes()[:-100])
    with liveliness(), pytest.warns(CheckpointWarning, match="step-000000009"):
        run = resume(stopped)
    assert run_digests(run.path) == run_digests(done_run.path)
    with run.telemetry() as telemetry:
        first, second = telemetry.sessions()
    assert first.outcome == "interrupted"
    assert "from step-000000008" in (second.message or "")
    assert "damaged checkpoints: step-000000009" in (second.message or "")


def test_a_run_without_an_intact_checkpoint_does_not_start_over(stopped: Path) -> None:
    for name in CheckpointFolder(stopped / "checkpoints").names():
        (stopped / "checkpoints" / name / "manifest.json").write_text("{}")
    with (
        pytest.warns(CheckpointWarning),
        pytest.raises(CheckpointError, match=str(stopped)),
    ):
        resume(stopped)
    shutil.rmtree(stopped / "checkpoints")
    with pytest.raises(CheckpointError, match=str(stopped)):
        resume(stopped)


def test_telemetry_that_ends_too_early_is_an_error(stopped: Path) -> None:
    with TelemetryWriter(stopped / "telemetry.sqlite") as writer:
        writer.rewind(20)
    with pytest.raises(TelemetryError, match="row 20 "):
        resume(stopped)


def _remove(path: Path) -> None:
    path.unlink()


def _fill_with_noise(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096 : 4096 * 20] = random.Random(1).randbytes(4096 * 19)
    path.write_bytes(bytes(content))


def _flip_a_version_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[63] ^= 64  # user_version
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        (_remove, 0),
        (_fill_with_noise, 1),
        (_flip_a_version_bit, 1),
    ],
)
def test_a_run_whose_telemetry_is_lost_resumes_with_the_same_results(
    stopped: Path, done_run: Run, damage: Callable[[Path], None], kept: int
) -> None:
    damage(stopped / "telemetry.sqlite")
    with pytest.warns(TelemetryWarning, match=r"Records of earlier|Earlier records") as warned:
        run = resume(stopped)
    assert len(warned) == 1
    assert len(list(stopped.glob("telemetry-damaged-*.sqlite"))) == kept
    assert run.state == "done"
    assert run.folder.summary_file.read_bytes() == done_run.folder.summary_file.read_bytes()
    with run.telemetry() as telemetry:
        assert telemetry.run.name == run.name
        assert telemetry.sessions()[0].message is not None
        assert "arlier" in (telemetry.sessions()[0].message or "")
        assert telemetry.rows(RoundRecord)[-1].round == run.config.rounds


def test_a_damaged_summary_is_reported_and_can_be_recreated(done_run: Run, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(done_run.path, tmp_path / "done"))
    (copy / "summary.json").write_text("{")
    with pytest.raises(RunError, match=r"summary\.json"):
        _ = load_run(copy).summary
    (copy / "summary.json").unlink()
    with liveliness():
        run = resume(copy)
    assert run_digests(run.path) == run_digests(done_run.path)


def test_a_failing_watcher_is_reported_once_and_does_not_end_the_run(tmp_path: Path) -> None:
    def fail(_: Any) -> None:
        raise OSError("no connection")

    seen, other = Seen(fail), Seen()
    config = tiny_config(rounds=1, n_steps=2, budget__n_epochs=2)
    with pytest.warns(RuntimeWarning, match="Seen failed") as warned:
        run = train(config, run_dir=tmp_path / "run", watchers=[seen, other])
    assert run.state == "done"
    assert len(warned) == 1
    assert len(seen.records) == 1
    assert len(other.records) > 10


def test_checking_whether_a_run_is_in_use_does_not_block_it(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", tiny_config())
    folder.lock_file.touch()
    with open(folder.lock_file, "rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)  # as is_in_use does for a moment
        letting_go = threading.Timer(0.1, fcntl.flock, (looking, fcntl.LOCK_UN))
        letting_go.start()
        with folder.locked():
            assert folder.is_in_use
        letting_go.join()


def test_a_run_says_which_hosts_are_slower_than_compiled_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Reader(Seen):
        notes: ClassVar[list[str]] = []

        def watch_note(self, message: str) -> None:
            self.notes.append(message)

    monkeypatch.setattr("esper.populations.vector_hosts._kernel", None)
    train(tiny_config(rounds=1), run_dir=tmp_path / "run", watchers=[Reader()], workers=0)
    (note,) = Reader.notes
    assert "PyTorch trains all hosts" in note
    assert "the kernel was not built" in note

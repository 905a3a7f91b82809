"""Runs with worker processes whose own process is killed, or whose task crashes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.training.test_shards import sharded
from tests.training.tiny import run_digests

from esper.errors import TrainingError
from esper.training import workers
from esper.training.runs import resume, train

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The digests of a run in this process."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    train(sharded(rounds=4), run_dir=folder, workers=0)
    return run_digests(folder)


def workers_of(pid: int) -> list[int]:
    """Return the process IDs of a process's workers."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            is_worker = b"multiprocessing.spawn" in (folder / "cmdline").read_bytes()
            if int(parent) == pid and is_worker:
                found.append(int(folder.name))
    return sorted(found)


SCRIPT = """
import sys
from esper.training.runs import train
from tests.training.test_shards import sharded
train(sharded(rounds=4), run_dir=sys.argv[1], workers=2)
"""


@pytest.mark.parametrize("step", [3, 6, 12])
def test_a_killed_run_leaves_no_worker_and_is_resumed(
    step: int, reference: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder)])
    while not list(folder.glob(f"checkpoints/*{step:04d}*")):
        assert process.poll() is None
        time.sleep(0.02)
    children = workers_of(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(children) >= 2
    end = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < end, "a worker outlives the process that it works for"
        time.sleep(0.05)
    resume(folder, workers=0 if step == 6 else 3)
    assert run_digests(folder) == reference


def test_a_task_that_crashes_ends_the_run_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    monkeypatch.setenv("ESPER_TEST_CRASH", "1")
    monkeypatch.setattr(workers, "WARM_UP", "tests.training.crashing")
    with pytest.raises(TrainingError, match=r"shard 1 of 3 ended 3 workers in a row.*SIGKILL"):
        train(sharded(), run_dir=folder, workers=1)
    monkeypatch.delenv("ESPER_TEST_CRASH")
    run = resume(folder, workers=0)
    assert run.is_complete

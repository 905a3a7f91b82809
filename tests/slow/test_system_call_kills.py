"""A run killed at any system call that changes a file, or on a full disk, is resumed as it was."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.campaign import N_FULL_DISKS, N_KILLS
from tests.slow import system_call_kills

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc builds the library that kills"),
]


def attack(tmp_path: Path, *words: object) -> dict[str, Any]:
    """Carry out an attack in a process with the library that kills; return what happened."""
    source, library = Path(__file__).with_name("kill_at_call.c"), tmp_path / "kill_at_call.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", source, "-o", library, "-ldl"], check=True)
    # In memory where possible: a killed process loses nothing that it wrote, flushed or not.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as place:
        done = subprocess.run(
            [sys.executable, system_call_kills.__file__, place, *map(str, words)],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
                "OMP_NUM_THREADS": "1",
                "LD_PRELOAD": str(library),
            },
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("n_workers", [0, 2])
def test_runs_killed_at_100_system_calls_end_as_if_left_alone(
    n_workers: int, tmp_path: Path
) -> None:
    found = attack(tmp_path, "kills", N_KILLS, n_workers)
    print(
        f"{found['kills']} kills among {found['calls']} calls; {found['started_again']} runs had "
        "no folder yet and were started again"
    )
    assert found["kills"] >= N_KILLS
    assert found["different"] == []
    assert found["started_again"] < N_KILLS / 10


def test_a_full_disk_is_one_line_and_the_run_is_resumed_to_the_same_end(tmp_path: Path) -> None:
    found = attack(tmp_path, "full", N_FULL_DISKS)
    print(f"the disk was full at {found['fills']} of {found['calls']} calls")
    assert found["wrong"] == []
    assert found["unnoticed"] < N_FULL_DISKS / 4

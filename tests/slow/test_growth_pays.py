"""The benchmark of growth runs as a command, and continues after a kill."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "benchmarks/growth_pays.py", "--small", "--only", "digits-mlp", "--out")


def test_a_killed_benchmark_continues_and_ends_with_a_verdict(tmp_path: Path) -> None:
    rows = tmp_path / "runs.jsonl"
    with subprocess.Popen([*COMMAND, str(tmp_path)], cwd=ROOT, stdout=subprocess.DEVNULL) as first:
        deadline = time.monotonic() + 120.0
        while not (rows.exists() and len(rows.read_text().splitlines()) >= 5):
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        first.kill()
    kept = rows.read_text()
    done = subprocess.run([*COMMAND, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert rows.read_text().startswith(kept)
    lines = [line.split('"result"')[0] for line in rows.read_text().splitlines()]
    assert len(lines) == len(set(lines))
    verdicts = ("Growth pays", "Not shown", "Nothing to gain")
    assert sum(word in done.stdout for word in verdicts) == 1
    assert (tmp_path / "loss.png").stat().st_size > 0
    assert "1>4" in (tmp_path / "results.md").read_text()


def test_a_wrong_number_of_processes_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, str(tmp_path), "--jobs", "0"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "--jobs is 0" in done.stderr

"""A run that is killed at any moment and resumed equals an uninterrupted one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training import killing

ROOT = Path(__file__).parents[2]
SOURCES = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
STAGES = {"germinated", "training", "blending", "holding", "fossilized", "embargoed"}


def carry_out(plan: str, folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, killing.__file__, plan, folder],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(plan: str, folder: Path) -> dict[str, Any]:
    found = carry_out(plan, folder)
    kills = killing.PLANS[plan].kills
    assert set(found["killed"]) == set(kills)
    for name, killed in found["killed"].items():
        assert killed["ends"] == [signal.SIGKILL] * len(kills[name]) + [0], name
        assert killed["sessions"][-1] == "done", name
        assert killed["digests"] == found["reference"], name
    return found


def test_a_run_killed_while_blending_saving_or_evaluating_is_the_same_run(
    tmp_path: Path,
) -> None:
    found = check("fast", tmp_path)
    assert set(found["stages"]) >= STAGES


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["every step", "every seventh step", "images"])
def test_a_run_killed_at_every_kind_of_moment_is_the_same_run(plan: str, tmp_path: Path) -> None:
    found = check(plan, tmp_path)
    assert plan == "images" or set(found["stages"]) >= STAGES

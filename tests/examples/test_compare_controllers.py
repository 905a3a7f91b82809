"""The example compares controllers, run as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "compare_controllers.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_controller_has_a_row_with_its_difference_from_waiting() -> None:
    done = run("--task", "spirals", "--hosts", "4")
    assert done.returncode == 0, done.stderr
    for name in ("wait", "stop after 8", "grow once", "random", "heuristic"):
        assert re.search(rf"│ {name} +│ +\d\.\d{{3}}", done.stdout), name
    assert len(re.findall(r"[+-]\d\.\d{3} ± \d\.\d{3}", done.stdout)) == 4


def test_a_task_that_there_is_not_gets_one_line() -> None:
    done = run("--task", "spiral")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Did you mean 'spirals'" in done.stderr

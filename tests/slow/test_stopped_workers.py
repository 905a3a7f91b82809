"""Any subset of workers may be stopped: a line says so, the results are the same, none is left."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.slow import stopped_workers

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells which processes are left")
def test_any_subset_of_workers_may_be_stopped() -> None:
    done = subprocess.run(
        [sys.executable, stopped_workers.__file__],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"wrong": [], "silent": [], "orphans": []}

"""A process that ends with an open record of its training leaves a readable run."""

import subprocess
import sys
from pathlib import Path

import pytest

import esper

SCRIPT = """
from pathlib import Path
from tests.growing.test_recording import train
loop = train(Path({path!r}), until=2, controller="fixed")
{end}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "state"), [("", "interrupted"), ("import os; os._exit(0)", "killed")]
)
def test_a_process_that_ends_leaves_a_readable_record(tmp_path: Path, end: str, state: str) -> None:
    path = tmp_path / "left"
    script = SCRIPT.format(path=str(path), end=end)
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
    run = esper.load_run(path)
    assert (run.state, run.rounds_done) == (state, 2)

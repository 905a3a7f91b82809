"""The tutorial works in a shell exactly as written, and prints what it shows."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tutorial_steps import missing_line, tutorial_steps

pytestmark = pytest.mark.slow


def interrupt(command: str, folder: Path, environment: dict[str, str]) -> None:
    """Press Ctrl-C after the second round."""
    with subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            if line.split()[:1] == ["2"]:
                process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
        assert "esper resume" in process.stderr.read()


def test_the_tutorial_works_as_written(tmp_path: Path) -> None:
    binaries = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("ESPER_RUNS", None)  # runs are in the folder "runs", as the tutorial says
    for number, step in enumerate(tutorial_steps()):
        if step.kind == "file":
            (tmp_path / step.name).write_text(step.text)
        elif step.is_interrupted:
            interrupt(step.text, tmp_path, environment)
        elif step.kind == "command":
            ran = subprocess.run(
                ["bash", "-c", step.text],
                check=True,
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert missing_line(step.printed, ran.stdout) is None, ran.stdout
        else:
            script = tmp_path / f"step_{number}.py"
            script.write_text(step.text)
            subprocess.run([sys.executable, script.name], check=True, cwd=tmp_path, env=environment)

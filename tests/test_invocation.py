"""A command that is printed can be pasted, wherever the script is and however it was called."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BARE = os.pathsep.join(["/usr/bin", "/bin"])
SCRIPT = f"#!{sys.executable}\nimport sys\nfrom esper.cli.main import main\nsys.exit(main())\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with a script as an environment's, and an interpreter of that environment."""
    bin_folder = tmp_path / "a place/.venv/bin"
    bin_folder.mkdir(parents=True)
    script = bin_folder / "esper"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    return tmp_path / "a place"


def printed_command(called: str, place: Path, path: str = BARE) -> str:
    """Return the command that is printed with the list of no runs, after it was pasted."""
    environment = {"PATH": path, "PYTHONPATH": str(ROOT / "src")}

    def run(words: str) -> str:
        done = subprocess.run(
            words, shell=True, cwd=place, env=environment, capture_output=True, text=True
        )
        assert (done.returncode, done.stderr) == (0, ""), words
        return done.stdout

    command = run(f"{called} runs").partition("start one with ")[2].strip()
    assert run(f"{command} --print-config").startswith("# ")
    return command


def test_a_script_that_a_shell_does_not_find_is_named_by_its_path(place: Path) -> None:
    assert printed_command(".venv/bin/esper", place) == ".venv/bin/esper train"
    absolute = shlex.quote(str(place / ".venv/bin/esper"))
    assert printed_command(absolute, place) == ".venv/bin/esper train"
    assert printed_command("./esper", place / ".venv/bin") == "./esper train"
    assert printed_command(absolute, place.parent) == "'a place/.venv/bin/esper' train"


def test_a_script_that_a_shell_finds_is_named_by_its_name(place: Path) -> None:
    path = f"{place}/.venv/bin{os.pathsep}{BARE}"
    assert printed_command("esper", place, path) == "esper train"
    assert printed_command(".venv/bin/esper", place, path) == "esper train"


def test_another_script_of_the_name_is_not_taken_for_it(place: Path) -> None:
    other = place / "other"
    other.mkdir()
    (other / "esper").write_text("#!/bin/sh\nexit 3\n")
    (other / "esper").chmod(0o755)
    path = f"{other}{os.pathsep}{BARE}"
    assert printed_command(".venv/bin/esper", place, path) == ".venv/bin/esper train"


def test_a_module_is_called_as_one(place: Path) -> None:
    python = shlex.quote(sys.executable)
    assert printed_command(f"{python} -m esper", place) == f"{python} -m esper train"
    path = f"{Path(sys.executable).parent}{os.pathsep}{BARE}"
    name = Path(sys.executable).name
    assert printed_command(f"{name} -m esper", place, path) == f"{name} -m esper train"

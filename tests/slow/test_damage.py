"""Thousands of flipped bits: none accepted with changed facts, none with a traceback."""

import shutil
from pathlib import Path

import pytest
from tests.flipped_bits import flip_bits
from tests.telemetry.test_damage import FILE, read_all
from tests.test_damaged_files import KINDS

from esper.cli.main import main
from esper.training.run import Run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_is_accepted_with_changed_facts(kind: str, tmp_path: Path) -> None:
    make, pattern = KINDS[kind]
    read = make(tmp_path)
    (path,) = tmp_path.glob(pattern)
    outcomes = flip_bits(path, read, n_flips=1500, seed=1)
    print(kind, dict(outcomes))
    assert set(outcomes) == {"refused"}


def test_flipped_bits_of_telemetry(
    done_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(done_run.path, tmp_path / "run"))
    outcomes = flip_bits(run / FILE, lambda: read_all(run), n_flips=1500, seed=1)
    with capsys.disabled():
        print("telemetry", dict(outcomes))
    assert set(outcomes) <= {"refused", "equal", "changed"}

    def command() -> int:
        codes = [main(words) for words in (["show", str(run)], ["report", str(run)])]
        assert set(codes) <= {0, 2}
        return len(capsys.readouterr().err.splitlines())

    assert set(flip_bits(run / FILE, command, n_flips=100, seed=2)) <= {"equal", "changed"}

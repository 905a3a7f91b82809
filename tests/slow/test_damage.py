"""Thousands of flipped bits and forged contents: no changed facts, no traceback."""

import shutil
from pathlib import Path

import pytest
from tests.campaign import N_FLIPPED_KINDS, N_FLIPS, N_FORGED, N_FORGED_KINDS
from tests.flipped_bits import flip_bits
from tests.telemetry.test_damage import FILE, read_all
from tests.test_damaged_files import KINDS
from tests.test_forged_files import FORGED, forge_and_read

from esper.cli.main import main
from esper.training.run import Run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_is_accepted_with_changed_facts(kind: str, tmp_path: Path) -> None:
    make, pattern = KINDS[kind]
    read = make(tmp_path)
    (path,) = tmp_path.glob(pattern)
    outcomes = flip_bits(path, read, n_flips=N_FLIPS, seed=1)
    print(kind, dict(outcomes))
    assert set(outcomes) == {"refused"}


def test_flipped_bits_of_telemetry(
    done_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(done_run.path, tmp_path / "run"))
    outcomes = flip_bits(run / FILE, lambda: read_all(run), n_flips=N_FLIPS, seed=1)
    with capsys.disabled():
        print("telemetry", dict(outcomes))
    assert set(outcomes) <= {"refused", "equal", "changed"}
    assert 0.2 < outcomes["changed"] / N_FLIPS < 0.3  # docs/trust.md says a quarter

    def command() -> int:
        codes = [main(words) for words in (["show", str(run)], ["report", str(run)])]
        assert set(codes) <= {0, 2}
        return len(capsys.readouterr().err.splitlines())

    assert set(flip_bits(run / FILE, command, n_flips=100, seed=2)) <= {"equal", "changed"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", FORGED)
def test_a_forged_file_is_read_or_refused_in_one_line(kind: str, tmp_path: Path) -> None:
    outcomes = forge_and_read(kind, tmp_path, n_cases=N_FORGED, seed=1)
    print(kind, dict(outcomes))


def test_all_kinds_are_counted() -> None:
    assert len(KINDS) + 1 == N_FLIPPED_KINDS  # and telemetry
    assert len(FORGED) == N_FORGED_KINDS

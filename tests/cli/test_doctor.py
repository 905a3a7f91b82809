"""``esper doctor`` reports what is broken, and treats optional parts as notes."""

import importlib
import json
import shutil
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

from esper.cli import doctor as checkup
from esper.cli.main import main

ROOT = Path(__file__).parents[2]


def test_a_good_installation_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "--runs-dir", str(tmp_path / "runs")]) == 0
    told = json.loads(capsys.readouterr().out)
    found = {check["about"]: check for check in told["checks"]}
    assert told["can_train"]
    assert found["torch"]["found"] == version("torch")
    assert found["task digits"]["verdict"] == "good"
    assert found["runs folder"]["verdict"] == "good"
    assert not (tmp_path / "runs").exists()
    kernels = {path.stem.lstrip("_") for path in (ROOT / "src").rglob("_*.c")}
    assert {about for about in found if about.startswith("kernel ")} == {
        f"kernel {name}" for name in kernels
    }


def test_failed_checks_are_named_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkup, "check_tasks", lambda: iter(()))
    (tmp_path / "file").write_text("")
    assert main(["doctor", "--runs-dir", str(tmp_path / "file" / "runs")]) == 1
    told = capsys.readouterr().out
    assert "Not ready to train: fix runs folder." in told
    assert "WRONG  runs folder" in told


def test_a_full_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
    check = checkup.check_disk(tmp_path)
    assert (check.verdict, check.found) == ("wrong", "1 MiB free; free at least 200 MiB")


def test_import_failures_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError(f"no\nmodule {name}")

    monkeypatch.setattr(importlib, "import_module", fail)
    packages = [check for check in checkup.check_packages() if check.about in checkup.PACKAGES]
    assert {check.verdict for check in packages} == {"wrong"}
    assert "(ModuleNotFoundError: no module torch)" in packages[0].found
    kernels = list(checkup.check_kernels())
    assert {check.verdict for check in kernels} == {"note"}
    assert kernels[0].found.startswith("not compiled; ")
    assert "a thirtieth of the speed" in kernels[0].found


def test_extras_are_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = [
        "torch>=2.6",
        'numpy>=1; extra == "here"',
        "no-such-package[x]>=1 ; extra == 'there'",
    ]
    monkeypatch.setattr(checkup, "requires", lambda _: lines)
    here, there = checkup.check_extras()
    assert (here.about, here.found) == ("extra here", f"numpy {version('numpy')}")
    assert there.verdict == "note"
    assert 'pip install "esper-lite[there]"' in there.found


def test_another_package_of_the_same_name_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "find_clash", lambda: "the unrelated package esper 3.9")
    first = next(checkup.check_packages())
    assert (first.verdict, first.found) == ("wrong", "the unrelated package esper 3.9")

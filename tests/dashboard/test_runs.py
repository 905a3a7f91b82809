"""The listing has the runs inside its folder and no others."""

import os
from pathlib import Path

import pytest

from esper.dashboard.runs import READ_FILES, RunReader
from tests.dashboard.made_runs import make_run


def names(root: Path) -> list[str]:
    return list(RunReader(root).folders())


def test_a_link_within_the_folder_is_listed(tmp_path: Path) -> None:
    make_run(tmp_path / "one", rounds=0)
    (tmp_path / "latest").symlink_to("one")
    assert sorted(names(tmp_path)) == ["latest", "one"]


def test_a_link_that_leads_out_is_not_listed(tmp_path: Path) -> None:
    make_run(tmp_path / "private" / "secret", rounds=0)
    runs = tmp_path / "runs"
    make_run(runs / "own", rounds=0)
    (runs / "absolute").symlink_to(tmp_path / "private" / "secret")
    (runs / "relative").symlink_to("../private/secret")
    (runs / "twice").symlink_to("absolute")
    (runs / "loop").symlink_to("loop")
    (runs / "nowhere").symlink_to("not-there")
    assert names(runs) == ["own"]
    assert "absolute" not in RunReader(runs).folders()


@pytest.mark.parametrize("file", READ_FILES)
def test_a_run_with_a_link_to_an_outside_file_is_not_listed(tmp_path: Path, file: str) -> None:
    outside = make_run(tmp_path / "private" / "secret", rounds=0).path / file
    outside.touch()
    run = make_run(tmp_path / "runs" / "one", rounds=0)
    (run.path / file).unlink(missing_ok=True)
    (run.path / file).symlink_to(outside)
    assert names(tmp_path / "runs") == []


def test_the_root_may_be_a_link(tmp_path: Path) -> None:
    make_run(tmp_path / "real" / "one", rounds=0)
    (tmp_path / "link").symlink_to("real")
    assert names(tmp_path / "link") == ["one"]


def test_the_root_may_be_a_run(tmp_path: Path) -> None:
    make_run(tmp_path / "one", rounds=0)
    make_run(tmp_path / "two", rounds=0)
    assert names(tmp_path / "one") == ["one"]


def test_a_name_that_is_not_utf8_can_be_found(tmp_path: Path) -> None:
    raw = os.fsdecode(b"caf\xe9")
    make_run(tmp_path / raw, rounds=0)
    (name,) = names(tmp_path)
    assert name.encode() == rb"caf\xe9"
    assert RunReader(tmp_path).folders()[name].path == tmp_path / raw


def test_an_unreadable_root_has_no_runs(tmp_path: Path) -> None:
    assert names(tmp_path / "not-there") == []
    (tmp_path / "file").touch()
    assert names(tmp_path / "file") == []

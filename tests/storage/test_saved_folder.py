"""A saved folder holds what was saved last, whatever interrupts a save."""

import os
import signal
from pathlib import Path

import pytest

from esper.errors import ControllerError, OtherVersionError
from esper.storage.files import read_file
from esper.storage.saved_folder import FORMAT, FolderKind
from tests.storage.killed_saves import die_at, run_forked

KIND = FolderKind("controller", ("a.bin", "b.json"), ControllerError)


def contents(number: int) -> dict[str, bytes]:
    return {"a.bin": bytes([number]) * 100, "b.json": b'{"number": %d}' % number}


def test_saving_again_replaces_all_files_and_leaves_no_others(tmp_path: Path) -> None:
    KIND.write(tmp_path, contents(4))
    (tmp_path / "notes.txt").write_text("mine")
    for number in range(4):
        KIND.write(tmp_path, contents(number))
        assert KIND.read(tmp_path) == contents(number)
        assert len(list(tmp_path.iterdir())) == 4
    assert (tmp_path / "notes.txt").read_text() == "mine"
    KIND.remove(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("n_saved", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_kill_at_any_system_call_leaves_the_old_or_the_new_files(
    n_saved: int, tmp_path: Path
) -> None:
    found: list[int | None] = []
    for moment in range(1000):
        path = tmp_path / str(moment)
        for number in range(n_saved):
            KIND.write(path, contents(number))

        def job(path: Path = path, moment: int = moment) -> None:
            die_at(moment)
            KIND.write(path, contents(n_saved))

        _, status = os.waitpid(run_forked(job), 0)
        is_over = os.WIFEXITED(status)
        assert is_over or os.WTERMSIG(status) == signal.SIGKILL
        try:
            read = KIND.read(path)
            found.append(read["a.bin"][0])
            assert read == contents(read["a.bin"][0])
        except ControllerError:
            found.append(None)
        KIND.write(path, contents(9))
        assert (KIND.read(path), len(list(path.iterdir()))) == (contents(9), 3)
        if is_over:
            break
    old = None if n_saved == 0 else n_saved - 1
    assert found == sorted(found, key=[old, n_saved].index)
    assert {*found} == {old, n_saved}


def test_a_reader_gets_the_old_or_the_new_files_while_they_are_saved(tmp_path: Path) -> None:
    KIND.write(tmp_path, contents(0))

    def job() -> None:
        for number in range(1, 200):
            KIND.write(tmp_path, contents(number))

    child = run_forked(job)
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        read = KIND.read(tmp_path)
        assert read == contents(read["a.bin"][0])


def test_a_manifest_of_something_else_is_never_replaced(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    other = FolderKind("checkpoint", ("a.bin",), ControllerError)
    other.write(tmp_path, {"a.bin": b"mine"})
    for text in (manifest.read_text(), '{"name": "a web page"}', "[]"):
        manifest.write_text(text)
        with pytest.raises(ControllerError, match=r"holds no .* but other files"):
            KIND.write(tmp_path, contents(1))
        assert manifest.read_text() == text
        assert not KIND.is_in(tmp_path)
    manifest.write_text("")  # damaged
    KIND.write(tmp_path, contents(1))
    assert KIND.read(tmp_path) == contents(1)


def test_a_folder_of_a_newer_version_is_neither_read_nor_replaced(tmp_path: Path) -> None:
    KIND.write(tmp_path, contents(1))
    manifest = tmp_path / "manifest.json"
    manifest.write_text(manifest.read_text().replace(str(FORMAT), str(FORMAT + 1), 1))
    for use in (KIND.read, lambda path: KIND.write(path, contents(2))):
        with pytest.raises(OtherVersionError, match=f"format {FORMAT + 1}, not {FORMAT}"):
            use(tmp_path)


def test_only_files_are_read_and_only_so_much(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    os.mkfifo(tmp_path / "pipe")
    assert read_file(tmp_path / "file", max_bytes=5) == b"12345"
    with pytest.raises(ValueError, match="file has 5 bytes, more than 4"):
        read_file(tmp_path / "file", max_bytes=4)
    for name in ("pipe", "."):
        with pytest.raises(OSError, match=r"not a file|Is a directory"):
            read_file(tmp_path / name)

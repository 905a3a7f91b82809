"""Files are written atomically with the given mode, and JSON is read strictly."""

import os
import time
from pathlib import Path

import pytest

from esper.storage.files import parse_json, read_file, replacing, write_atomic


@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_a_file_is_replaced_and_gets_its_mode(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    write_atomic(path, '{"ä": 1}', mode=mode)
    assert parse_json(path.read_bytes()) == {"ä": 1}
    assert path.stat().st_mode & 0o777 == mode
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "'a'"),
        ('{"a": NaN}', "NaN"),
        ("-Infinity", "Infinity"),
        ("[" * 100_000, "nested"),
        ("{", "line 1"),
    ],
)
def test_json_that_has_more_than_one_meaning_is_rejected(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_nan_is_read_where_it_is_allowed() -> None:
    assert parse_json("[NaN, Infinity]", allow_nan=True)[1] == float("inf")


def write_and_die(path: Path) -> None:
    """Write a file in a process that is killed before it renames its temporary file."""
    child = os.fork()
    if child == 0:
        os.replace = lambda *_: os._exit(0)  # type: ignore[assignment]
        write_atomic(path, "half")
    os.waitpid(child, 0)


def test_a_dead_processs_temporary_file_is_removed_by_the_next_write(tmp_path: Path) -> None:
    path, other = tmp_path / "config.toml", tmp_path / ".config.toml-notes.txt"
    other.write_text("mine")
    write_and_die(path)
    (left,) = {*tmp_path.iterdir()} - {other}
    assert left.read_text() == "half"
    write_atomic(tmp_path / "config", "of another name")
    assert left.exists()
    write_atomic(path, "whole")
    assert {file.name for file in tmp_path.iterdir()} == {"config", "config.toml", other.name}


def test_a_live_processs_temporary_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    with replacing(path) as temporary:
        temporary.write_text("slow")
        child = os.fork()
        if child == 0:
            try:
                write_atomic(path, "fast")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert path.read_text() == "fast"
        assert temporary.read_text() == "slow"
    assert path.read_text() == "slow"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "a.json"
    victim.write_text("kept")
    path.symlink_to(victim)
    write_atomic(path, "new")
    assert victim.read_text() == "kept"
    assert (path.read_text(), path.is_symlink()) == ("new", False)


def test_a_key_that_comes_twice_among_very_many_is_found_quickly() -> None:
    keys = ",".join(f'"{number}": 0' for number in range(300_000))
    start = time.process_time()
    with pytest.raises(ValueError, match="'299999' twice"):
        parse_json(f'{{{keys}, "299999": 1}}')
    assert time.process_time() - start < 5.0  # looking for each key takes minutes


@pytest.mark.parametrize("size", [10, 11])
def test_a_file_is_read_up_to_a_size(size: int, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(bytes(size))
    if size == 10:
        assert read_file(path, max_bytes=10) == bytes(10)
    else:
        with pytest.raises(ValueError, match="11 bytes, more than 10"):
            read_file(path, max_bytes=10)

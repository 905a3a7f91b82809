"""Tokens and tickets are random, private and checked."""

import stat
from pathlib import Path

import pytest

from esper.dashboard.access import TICKET_SECONDS, Access, state_folder, token_file
from esper.errors import StorageError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_secrets_are_long_and_differ() -> None:
    made = [Access() for _ in range(20)]
    assert len({one.token for one in made} | {one.make_ticket() for one in made}) == 40
    assert all(len(one.token) == 43 for one in made)  # 32 bytes, six bits per character


def test_the_token_is_accepted_repeatedly_and_a_ticket_once() -> None:
    access = Access()
    ticket = access.make_ticket()
    assert not access.accepts(f"{ticket}x")
    assert not access.accepts("")
    assert [access.accepts(ticket) for _ in range(3)] == [True, False, False]
    assert [access.accepts(access.token) for _ in range(3)] == [True] * 3


def test_a_ticket_expires() -> None:
    now = [0.0]
    access = Access(clock=lambda: now[0])
    ticket = access.make_ticket()
    now[0] = TICKET_SECONDS + 1
    assert not access.accepts(ticket)
    assert not access.accepts("")


def test_the_token_file_is_private_and_removed(state_home: Path) -> None:
    state_home.mkdir()
    with token_file("secret", 8765) as path:
        assert path == state_folder() / "dashboard-8765.token"
        assert path.read_text() == "secret\n"
        assert (mode(path), mode(path.parent)) == (0o600, 0o700)
        assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert not path.exists()


def test_a_stale_token_file_is_replaced_and_made_private(state_home: Path) -> None:
    folder = state_home / "esper"
    folder.mkdir(parents=True, mode=0o755)
    left = folder / "dashboard-1.token"
    left.write_text("stale")
    left.chmod(0o644)
    with token_file("secret", 1) as path:
        assert path == left
        assert (mode(path), mode(folder)) == (0o600, 0o700)
        path.write_text("from a later start")
    assert path.read_text() == "from a later start"


def test_a_symbolic_link_in_its_place_is_not_followed(state_home: Path, tmp_path: Path) -> None:
    (state_home / "esper").mkdir(parents=True)
    target = tmp_path / "target"
    target.write_text("mine")
    (state_home / "esper" / "dashboard-1.token").symlink_to(target)
    with token_file("secret", 1) as path:
        assert not path.is_symlink()
    assert target.read_text() == "mine"


def test_a_folder_that_is_a_symbolic_link_is_rejected(state_home: Path, tmp_path: Path) -> None:
    state_home.mkdir()
    (state_home / "esper").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="XDG_STATE_HOME"), token_file("secret", 1):
        pass


def test_a_missing_folder_is_reported_in_one_line(state_home: Path) -> None:
    state_home.write_text("a file")
    with pytest.raises(StorageError, match="XDG_STATE_HOME") as raised, token_file("secret", 1):
        pass
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_default_folder_is_in_the_home_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative/path"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert state_folder() == tmp_path / ".local" / "state" / "esper"

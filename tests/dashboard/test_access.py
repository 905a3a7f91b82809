"""Tokens and tickets are random, private and checked."""

import stat
from pathlib import Path

from esper.dashboard.access import TICKET_SECONDS, Access


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

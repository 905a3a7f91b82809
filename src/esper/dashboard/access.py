"""Who may look: a token that opens the door once, and a cookie that keeps it open.

Both are made anew at each start and live no longer than the process. The token is in the link that
is printed and in a file that only the user can read; the cookie is what a browser gets for it.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from esper.errors import StorageError
from esper.storage.files import write_atomic

TOKEN_BYTES = 32
"""Random bytes of a token, a ticket or a cookie."""

TICKET_SECONDS = 60.0
"""How long a browser may take to start and use the ticket that it was started with."""


class Access:
    """The secrets of one start of the dashboard, and whether something is one of them."""

    def __init__(self, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        # Cookies do not know ports: without the number two dashboards would log each other out.
        self._cookie_name = f"esper-{port}"
        self._session = secrets.token_urlsafe(TOKEN_BYTES)
        self._ticket: str | None = None
        self._ticket_end = 0.0
        self._clock = clock

    def make_ticket(self) -> str:
        """Return a word that opens the door once and soon, for a program's command line.

        Other users of the machine can read command lines, so the token must not be in one.
        """
        self._ticket = secrets.token_urlsafe(TOKEN_BYTES)
        self._ticket_end = self._clock() + TICKET_SECONDS
        return self._ticket

    def is_key(self, word: str) -> bool:
        """Return whether a word is the token, or the ticket, which is spent by that."""
        if _is_same(word, self.token):
            return True
        ticket, self._ticket = self._ticket, None
        if ticket is not None and _is_same(word, ticket):
            return self._clock() <= self._ticket_end
        self._ticket = ticket
        return False

    def has_session(self, cookies: str) -> bool:
        """Return whether the cookies of a request, as its header lists them, hold ours."""
        found = False
        for pair in cookies.split(";"):
            name, _, value = pair.strip().partition("=")
            found |= name == self._cookie_name and _is_same(value, self._session)
        return found

    @property
    def set_cookie(self) -> str:
        """The header that gives a browser its cookie."""
        return f"{self._cookie_name}={self._session}; HttpOnly; SameSite=Strict; Path=/"


def state_folder() -> Path:
    """Return where a user's programs keep what outlives no restart: by default ~/.local/state."""
    place = os.environ.get("XDG_STATE_HOME", "")
    base = Path(place) if os.path.isabs(place) else Path.home() / ".local" / "state"
    return base / "esper"


@contextmanager
def token_file(token: str, port: int) -> Generator[Path]:
    """Keep the token in a file that only the user can read, while the context lasts.

    Raises:
        StorageError: If there is no place for it that only the user can read.
    """
    try:
        path = _write_private(state_folder(), f"dashboard-{port}.token", f"{token}\n")
    except (OSError, RuntimeError) as error:  # without a home there is no path to it
        reason = getattr(error, "strerror", None) or error
        raise StorageError(
            f"the dashboard's token cannot be written to {_shown_state_folder()}: {reason}; "
            "set XDG_STATE_HOME to a folder of yours."
        ) from error
    try:
        yield path
    finally:
        with suppress(OSError):
            if path.read_text("utf-8").strip() == token:
                path.unlink()


def _write_private(folder: Path, name: str, text: str) -> Path:
    """Write a file of mode 0600 in a folder of mode 0700, whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise OSError("it is not a folder of this user")
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)
    write_atomic(folder / name, text, mode=0o600)
    return folder / name


def _shown_state_folder() -> str:
    try:
        return str(state_folder())
    except RuntimeError:
        return "~/.local/state/esper"


def _is_same(word: str, secret: str) -> bool:
    """Compare in a time that tells nothing of where two texts differ."""
    return hmac.compare_digest(word.encode("utf-8", "replace"), secret.encode())

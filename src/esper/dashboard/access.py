"""Access control: a login token, and the session that a browser gets for it.

A session has two secrets. Browsers send a cookie to every port of a host, so other servers on this
machine may see it; the key is known only to the page, which keeps it in the storage of its origin.
All secrets are generated at each start and are valid until the process ends. The token is in the
printed link and in a file that only the user can read.
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
"""Random bytes in a token, a ticket, a cookie or a key."""

TICKET_SECONDS = 60.0
"""How long a ticket is valid, which includes starting the browser."""


class Access:
    """The secrets of one dashboard process, and the checks against them."""

    def __init__(self, port: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        # Cookies ignore ports: without the number, two dashboards would log each other out.
        self._cookie_name = f"esper-{port}"
        self._session = secrets.token_urlsafe(TOKEN_BYTES)
        self.key = secrets.token_urlsafe(TOKEN_BYTES)
        self._ticket: str | None = None
        self._ticket_end = 0.0
        self._clock = clock

    def make_ticket(self) -> str:
        """Return a one-time login token that expires soon, for the command line of a browser.

        Other users of the machine can read command lines, so the token must not be in one.
        """
        self._ticket = secrets.token_urlsafe(TOKEN_BYTES)
        self._ticket_end = self._clock() + TICKET_SECONDS
        return self._ticket

    def accepts(self, token: str) -> bool:
        """Return whether this is the token or the ticket; a ticket is accepted once."""
        if _is_same(token, self.token):
            return True
        ticket, self._ticket = self._ticket, None
        if ticket is not None and _is_same(token, ticket):
            return self._clock() <= self._ticket_end
        self._ticket = ticket
        return False

    def accepts_bearer(self, authorization: str) -> bool:
        """Return whether an ``Authorization`` header contains the token."""
        scheme, _, token = authorization.partition(" ")
        return scheme.lower() == "bearer" and _is_same(token.strip(), self.token)

    def accepts_key(self, key: str) -> bool:
        """Return whether this is the key of the page."""
        return _is_same(key, self.key)

    def has_cookie(self, cookies: str) -> bool:
        """Return whether a request's ``Cookie`` header contains the session cookie."""
        found = False
        for pair in cookies.split(";"):
            name, _, value = pair.strip().partition("=")
            found |= name == self._cookie_name and _is_same(value, self._session)
        return found

    @property
    def set_cookie(self) -> str:
        """The ``Set-Cookie`` header of the session cookie."""
        return f"{self._cookie_name}={self._session}; HttpOnly; SameSite=Strict; Path=/"


def state_folder() -> Path:
    """Return Esper's folder for state files, by default in ``~/.local/state``."""
    place = os.environ.get("XDG_STATE_HOME", "")
    base = Path(place) if os.path.isabs(place) else Path.home() / ".local" / "state"
    return base / "esper"


@contextmanager
def token_file(token: str, port: int) -> Generator[Path]:
    """Keep the token in a file that only the user can read, within the context.

    Raises:
        StorageError: If there is no private folder for it.
    """
    try:
        path = _write_private(state_folder(), f"dashboard-{port}.token", f"{token}\n")
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home folder
        reason = getattr(error, "strerror", None) or error
        raise StorageError(
            f"cannot write the dashboard's token to {_shown_state_folder()}: {reason}; "
            "set XDG_STATE_HOME to a private folder."
        ) from error
    try:
        yield path
    finally:
        with suppress(OSError):
            if path.read_text("utf-8").strip() == token:
                path.unlink()


def _write_private(folder: Path, name: str, text: str) -> Path:
    """Write a file of mode 0600 atomically in a folder of mode 0700."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise OSError("not a folder of this user")
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)
    write_atomic(folder / name, text, mode=0o600)
    return folder / name


def _shown_state_folder() -> str:
    try:
        return str(state_folder())
    except RuntimeError:
        return "~/.local/state/esper"


def _is_same(given: str, secret: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())

"""Requests to stop a run, which are honored before the next step."""

from __future__ import annotations

from collections.abc import Callable


class StopRequest:
    """A request to stop that anything may make, including a signal handler."""

    def __init__(self, *, tell: Callable[[str], None] | None = None) -> None:
        """Create a request that has not been made yet.

        Args:
            tell: Shows the response to a signal; by default it is a line on stderr.
        """
        self.reason: str | None = None
        self.tell = tell

    def ask(self, reason: str) -> None:
        """Ask for a stop; the first reason is kept."""
        self.reason = self.reason or reason

    def check(self) -> None:
        """Raise :class:`Stopped` if a stop was asked for."""
        if self.reason is not None:
            raise Stopped(self.reason)


class Stopped(Exception):  # noqa: N818 - control flow, not an error
    """Raised where a requested stop takes effect."""

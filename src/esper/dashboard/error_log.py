"""Errors of the dashboard on standard error: at most one line of each kind per minute."""

from __future__ import annotations

import asyncio
import errno
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from esper.errors import message_of

SECONDS = 60.0
"""Time after which a line of the same kind is written again."""

MOST_KINDS = 100
"""Kinds that are remembered; messages of errors may vary without end."""

_NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class ErrorLog:
    """Writes errors to standard error, few enough to read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, float] = {}

    def write(self, kind: str, line: str) -> None:
        """Write a line, unless one of this kind was written less than a minute ago."""
        now = self._clock()
        if now - self._last.get(kind, -SECONDS) < SECONDS:
            return
        self._last.pop(kind, None)
        self._last[kind] = now
        if len(self._last) > MOST_KINDS:
            del self._last[next(iter(self._last))]
        print(f"esper: {line}", file=sys.stderr, flush=True)

    def write_error(self, error: BaseException) -> None:
        """Write an error that nothing else has handled, and where it was raised."""
        if isinstance(error, OSError) and error.errno in _NO_RESOURCES:
            self.write(
                f"errno {error.errno}",
                f"the dashboard: {error.strerror}; close other programs or raise the limit of open "
                "files (ulimit -n).",
            )
            return
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        name = type(error).__name__
        message = message_of(error)
        self.write(f"{name}{place}", f"internal error in the dashboard: {name}: {message}{place}")

    def handle(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Write what an event loop reports; usable as its exception handler."""
        error = context.get("exception")
        if error is not None:
            self.write_error(error)
        else:
            self.write(context["message"], f"internal error in the dashboard: {context['message']}")

"""Progress of long work: a bar with the time left in terminals and notebooks, lines in logs."""

from __future__ import annotations

import contextvars
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from html import escape
from typing import TYPE_CHECKING, Any, Literal, Self, TextIO
from uuid import uuid4

from esper.errors import ConfigError, escape_controls
from esper.formatting import clock_text, duration

if TYPE_CHECKING:
    from types import TracebackType

ShowProgress = bool | Literal["auto"]
"""Whether to show progress; ``"auto"`` for terminals and notebooks."""

DELAY = 1.0
"""Seconds after which a bar appears, so that short work shows none."""
INTERVAL = 0.5
"""Seconds between two drawings of a bar."""
LOG_INTERVAL = 10.0
"""Seconds between two lines, where no bar can be drawn."""


class Pace:
    """Estimates the time left by the pace of the work so far.

    What was cached takes no time, so only progress within one piece of work counts.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._piece, self._at, self.share = "", clock(), 0.0
        self._seconds = self._moved = 0.0

    def add(self, piece: str, share: float) -> None:
        """Note the share of all work that is done, and the piece that is being done."""
        now, share = self._clock(), max(share, self.share)
        if piece == self._piece:
            self._seconds += now - self._at
            self._moved += share - self.share
        self._piece, self._at, self.share = piece, now, share

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds left; None if unknown yet."""
        if self._moved <= 0.0:
            return None
        left = self._seconds / self._moved * (1.0 - self.share)
        return max(0.0, left - (self._clock() - self._at))


class ProgressBar:
    """Shows a piece of work, the share that is done, the time taken and the time left.

    Use it as a context. In a terminal the bar is on stderr and disappears at the end; in a notebook
    a line with the time that it took remains.
    """

    def __init__(
        self,
        wanted: ShowProgress = "auto",
        *,
        title: str,
        delay: float | None = None,
        stream: TextIO | None = None,
    ) -> None:
        """Prepare a bar.

        Args:
            wanted: Whether to show it.
            title: The work as a whole.
            delay: Seconds after which a bar appears; by default :data:`DELAY`.
            stream: The terminal; by default stderr.

        Raises:
            ConfigError: If ``wanted`` is something else.
        """
        if wanted not in (True, False, "auto"):
            raise ConfigError(f"progress is {wanted!r}; it must be True, False or 'auto'.")
        self._title, self._text, self._pace = title, title, Pace()
        self._share: float | None = None
        self._start = time.monotonic()
        self._screen = _find_screen(stream or sys.stderr, wanted)
        self._delay = DELAY if delay is None else delay
        if isinstance(self._screen, _Log):
            self._delay = self._screen.interval
        self._is_over, self._is_open = threading.Event(), False
        self._lock = threading.Lock()
        # A notebook knows by the context which cell the output belongs to.
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._draw_until_over,), daemon=True
        )

    @property
    def is_shown(self) -> bool:
        """Whether there is a terminal, a notebook or a log to show it in."""
        return self._screen is not None

    def show(self, work: str, share: float, details: str = "") -> None:
        """Show a piece of work and the share of all work that is done.

        Args:
            work: The piece of work; the time left is estimated by the pace of pieces.
            share: The share of all work that is done, 0 to 1.
            details: What else to say.
        """
        with self._lock:
            self._pace.add(work, share)
            self._share, self._text = self._pace.share, escape_controls(f"{work}{details}")

    def restart(self) -> None:
        """Begin with other work, whose share starts at 0 again."""
        with self._lock:
            self._pace = Pace()

    def __enter__(self) -> Self:
        """Start to show it."""
        self._start = time.monotonic()
        if self._screen is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Remove the bar, or leave a line with the time it took. Leaving again does nothing."""
        if self._screen is None or self._thread.ident is None or self._is_over.is_set():
            return
        self._is_over.set()
        self._thread.join()
        if self._is_open:
            seconds = duration(time.monotonic() - self._start)
            end = "finished in" if kind is None else "stopped after"
            self._screen.close(f"{self._title}: {end} {seconds}")

    def _draw_until_over(self) -> None:
        wait = self._delay
        while not self._is_over.wait(wait):
            wait = self._draw()

    def _draw(self) -> float:
        """Draw the bar once and return when to draw it again, in seconds from now."""
        screen = self._screen
        assert screen is not None, "only a bar that is shown is drawn"
        with self._lock:
            share, left, text = self._share, self._pace.seconds_left, self._text
        times = clock_text(time.monotonic() - self._start)
        times += "" if left is None else f", {clock_text(left)} left"
        self._is_open = True
        screen.draw(text, share, times)
        return screen.interval


def _find_screen(
    stream: TextIO | None, wanted: ShowProgress
) -> _Terminal | _Notebook | _Log | None:
    if not wanted:
        return None
    ipython = sys.modules.get("IPython")
    shell: Any = None if ipython is None else ipython.get_ipython()
    if getattr(shell, "kernel", None) is not None:
        return _Notebook()
    if stream is None or stream.closed:  # a process without stderr
        return None
    if stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):
        return _Terminal(stream)
    return _Log(stream) if wanted is True else None


class _Terminal:
    """A bar that disappears at the end; other output appears above it."""

    interval = INTERVAL

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        whole = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False, table_column=whole),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[times]}", markup=False, table_column=Column(no_wrap=True)),
            console=Console(file=stream),
            transient=True,
            expand=True,
            auto_refresh=False,
            redirect_stdout=sys.stdout.isatty(),  # a pipe gets what is printed meanwhile
        )
        self._task = self._bar.add_task("", total=None, times="")

    def draw(self, text: str, share: float | None, times: str) -> None:
        with suppress(OSError, ValueError):  # a closed terminal, or one without these letters
            self._bar.update(
                self._task,
                description=text,
                total=None if share is None else 1.0,
                completed=share,
                times=f"{_percent(share)}  {times}",
            )
            self._bar.start()  # does nothing after the first time
            self._bar.refresh()

    def close(self, end: str) -> None:
        with suppress(OSError, ValueError):
            self._bar.stop()


class _Notebook:
    """A bar below the cell, without JavaScript; a line remains at the end."""

    interval = INTERVAL

    def __init__(self) -> None:
        self._id = uuid4().hex
        self._has_output = False

    def draw(self, text: str, share: float | None, times: str) -> None:
        bar = (
            '<div style="display:flex;gap:1em;align-items:center;font-size:90%">'
            '<div style="width:10em;height:.7em;border-radius:.35em;overflow:hidden;flex:none;'
            'background:rgba(128,128,128,.3)">'
            f'<div style="width:{share or 0.0:.0%};height:100%;background:#009e73"></div></div>'
            f"<span>{_percent(share)}</span><span>{escape(text)}</span>"
            f'<span style="opacity:.7">{escape(times)}</span></div>'
        )
        self._display(bar, f"{_percent(share)}  {text}  {times}")

    def close(self, end: str) -> None:
        self._display(f'<div style="font-size:90%;opacity:.7">{escape(end)}</div>', end)

    def _display(self, html: str, text: str) -> None:
        from IPython.display import display  # pyright: ignore

        # The same output is replaced: a second one would be added below it.
        how = {"update": True} if self._has_output else {}
        self._has_output = True
        bundle = {"text/html": html, "text/plain": text}
        display(bundle, raw=True, display_id=self._id, **how)


class _Log:
    """A line now and then, for output that goes to a file."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self.interval = stream, LOG_INTERVAL

    def draw(self, text: str, share: float | None, times: str) -> None:
        self.close(f"{_percent(share)}  {text}  {times}")

    def close(self, end: str) -> None:
        with suppress(OSError, ValueError):
            print(end, file=self._stream, flush=True)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"

"""Being asked to stop: whoever runs a training can, at any time, and it stops at the next step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from esper.tamiyo import Controller


class StopRequest:
    """A flag that anyone may raise, a signal handler too."""

    def __init__(self, *, tell: Callable[[str], None] | None = None) -> None:
        """Make a request that nobody has made yet.

        Args:
            tell: Says to whoever sends a signal what it does; None for a line on stderr.
        """
        self.reason: str | None = None
        self.tell = tell

    def ask(self, reason: str) -> None:
        """Ask for a stop; the first reason stays."""
        self.reason = self.reason or reason

    def check(self) -> None:
        """Raise :class:`Stopped` if a stop was asked for."""
        if self.reason is not None:
            raise Stopped(self.reason)


class Stopped(Exception):  # noqa: N818 - a way out of loops, not an error
    """A stop was asked for, and here it can be done."""


class StoppableController:
    """A controller that can be stopped between two steps, and whose actions are kept."""

    def __init__(
        self,
        controller: Controller,
        stop: StopRequest,
        on_step: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Wrap a controller.

        Args:
            controller: The controller itself.
            stop: Looked at before every step.
            on_step: Told before every step how many were taken.
        """
        self._controller, self._stop, self._on_step = controller, stop, on_step
        self.name = controller.name
        self.actions: list[Any] = []
        """What was done at each step since the start, ``[N, 8]`` each."""

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Start the controller itself."""
        self.actions = []
        self._controller.start(n_hosts, seed=seed)

    def act(self, observations: Any, masks: Any, starts: Any) -> Any:
        """Let the controller itself act, unless a stop was asked for."""
        self._stop.check()
        self._on_step(len(self.actions))
        self.actions.append(self._controller.act(observations, masks, starts))
        return self.actions[-1]

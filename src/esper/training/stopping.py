"""Requests to stop a run, which are honored before the next step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from esper.tamiyo import Controller


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


class StoppableController:
    """A controller wrapper that can be stopped between steps and records its actions."""

    def __init__(
        self,
        controller: Controller,
        check: Callable[[], None],
        on_step: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Wrap a controller.

        Args:
            controller: The controller.
            check: Called before every step; may raise an exception to stop.
            on_step: Called before every step with the number of steps taken.
        """
        self._controller, self._check, self._on_step = controller, check, on_step
        self.name = controller.name
        self.actions: list[Any] = []
        """The actions of each step since the start, ``[N, 8]`` each."""

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Start the wrapped controller."""
        self.actions = []
        self._controller.start(n_hosts, seed=seed)

    def act(self, observations: Any, masks: Any, starts: Any) -> Any:
        """Let the wrapped controller act, unless a stop was requested."""
        self._check()
        self._on_step(len(self.actions))
        self.actions.append(self._controller.act(observations, masks, starts))
        return self.actions[-1]

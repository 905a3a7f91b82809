"""Being asked to stop: whoever runs a training can, at any time, and it stops at the next step."""

from __future__ import annotations

from typing import Any

from esper.tamiyo import Controller


class StopRequest:
    """A flag that anyone may raise, a signal handler too."""

    def __init__(self) -> None:
        self.reason: str | None = None

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

    def __init__(self, controller: Controller, stop: StopRequest) -> None:
        self._controller, self._stop = controller, stop
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
        self.actions.append(self._controller.act(observations, masks, starts))
        return self.actions[-1]

"""A module that stands for Ray, whose actors compute in this process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import ModuleType, SimpleNamespace
from typing import Any


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, message: str, cause: Exception | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class ActorDiedError(RayError):
    pass


class ObjectStoreFullError(RayError):
    pass


class Reference:
    """What a call returned or raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._future: Future[Any] = Future()
        try:
            self._future.set_result(call())
        except Exception as error:
            self._future.set_exception(error)

    def future(self) -> Future[Any]:
        return self._future


class FakeRay(ModuleType):
    """Ray as far as Esper uses it; the attributes say what goes wrong."""

    __version__ = "2.60.0"
    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

    def __init__(self) -> None:
        super().__init__("ray")
        self.options: dict[str, Any] = {}
        self.is_connected, self.is_full, self.n_actors, self.n_killed = False, False, 0, 0
        self.init_error: BaseException | None = None
        self.answers: dict[str, list[Any]] = {}
        """By method: what its next calls return or raise instead of being computed."""

    def is_initialized(self) -> bool:
        return self.is_connected

    def init(self, **options: Any) -> None:
        self.options = options
        if self.init_error is not None:
            raise self.init_error
        self.is_connected = True

    def shutdown(self) -> None:
        self.is_connected = False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 4.0}

    def remote(self, **_: Any) -> Callable[[type], Any]:
        def wrap(kind: type) -> Any:
            made = SimpleNamespace(remote=lambda *args: self._make_actor(kind(*args)))
            made.options = lambda **_: made
            return made

        return wrap

    def put(self, value: Any) -> Reference:
        if self.is_full:
            raise ObjectStoreFullError("no room")
        return Reference(lambda: value)

    def kill(self, actor: Any, **_: Any) -> None:
        self.n_killed += 1

    def _make_actor(self, actor: Any) -> Any:
        self.n_actors += 1
        methods = {"software": actor.software, "compute": actor.compute}
        return SimpleNamespace(
            **{name: self._method(name, method) for name, method in methods.items()}
        )

    def _method(self, name: str, method: Callable[..., Any]) -> Any:
        def call(*args: Any) -> Reference:
            planned = self.answers.get(name)
            if not planned:
                values = [a.future().result() if isinstance(a, Reference) else a for a in args]
                return Reference(lambda: method(*values))

            def answer() -> Any:
                if isinstance(value := planned.pop(0), Exception):
                    raise value
                return value

            return Reference(answer)

        return SimpleNamespace(remote=call)

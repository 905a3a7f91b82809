"""Workers on a Ray cluster: actors that compute jobs, on any machine that has Esper.

Ray listens on all interfaces, so it is used with token authentication only. The token is in the
file where Ray looks for it, which is made here if it is missing, and nobody else may read it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import platform
import secrets
import signal
import socket
from collections.abc import Generator
from concurrent.futures import Future
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from esper.errors import WorkerError, message_of, summarize_error
from esper.training.worker_pool import WorkerPool, compute, prepare_worker
from esper.version import __version__

INSTALL = "pip install 'esper-lite[ray]'"
OLDEST = 2, 52
"""The first version of Ray with token authentication."""
TOKEN_FILE = "~/.ray/auth_token"
"""Where Ray looks for the token, unless an environment variable names another place."""
PROBE_SECONDS = 10.0
"""How long the machine at an address may take to answer."""
HELLO_SECONDS = 120.0
"""How long a worker may take to start before the cluster counts as full or broken."""
_RAY_SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_NUM_REDIS_GET_RETRIES": "5",
    "RAY_gcs_server_request_timeout_seconds": "30",
}
"""Environment variables of Ray: let nobody in, send no statistics, give up soon."""


class RayPool(WorkerPool):
    """Computes jobs with actors on a Ray cluster."""

    def __init__(
        self, address: str, n_workers: int, *, threads: int = 1, warm_up: str = ""
    ) -> None:
        """Connect to a cluster.

        Args:
            address: ``host:port``, ``auto`` for the cluster that this machine belongs to, or
                ``local`` for a new one on this machine.
            n_workers: Number of workers.
            threads: Threads that PyTorch may use in each.
            warm_up: A module that workers import before their first job, to be ready sooner.

        Raises:
            WorkerError: If Ray is not installed, the cluster cannot be reached, or its workers
                cannot run this Esper.
        """
        super().__init__(n_workers)
        self._ray = _connect(address, n_workers)
        self.deaths = (self._ray.exceptions.RayError,)
        n_cores = float(self._ray.cluster_resources().get("CPU", 1.0))
        share = min(1.0, int(100 * n_cores / n_workers) / 100)
        kind = self._ray.remote(num_cpus=share, max_restarts=0, max_task_retries=0)(_Actor)
        kind, given = kind.options(scheduling_strategy="SPREAD"), (threads, warm_up, os.getcwd())
        self._make = lambda: kind.remote(*given)
        try:
            self._workers[0] = first = self.make_worker()
            _require_same_software(self._ray, first.started)
        except BaseException:
            self._ray.shutdown()
            raise

    def make_worker(self) -> RayWorker:
        """Start an actor."""
        return RayWorker(self._ray, self._make())

    def close(self) -> None:
        """End all workers and leave the cluster."""
        super().close()
        self._ray.shutdown()


class RayWorker:
    """An actor, seen from the process that gives it jobs."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self._answer = Future[bytes]()
        self.started: Future[dict[str, str]] = actor.software.remote().future()

    def submit(self, job: bytes) -> Future[bytes]:
        """Let the actor compute a job."""
        try:
            stored = self._ray.put(job)
        except self._ray.exceptions.RayError as error:
            raise WorkerError(
                f"{len(job):,} bytes do not fit into Ray's object store "
                f"({type(error).__name__}); give it more room (ray start --object-store-memory) or "
                "use a smaller envs_per_shard."
            ) from error
        self._answer = self._actor.compute.remote(stored).future()
        return self._answer

    def share(self) -> float:
        """Return 0, because actors do not report their progress."""
        return 0.0

    def beats(self) -> float:
        """Return another number each time, because Ray itself notices actors that are gone."""
        return monotonic()

    def end(self) -> str:
        """End the actor, whatever it is doing; return how its last job ended.

        Raises:
            WorkerError: If the actor could not even begin the job.
        """
        with contextlib.suppress(Exception):  # it may be gone, and the cluster with it
            self._ray.kill(self._actor, no_restart=True)
        error = self._answer.exception() if self._answer.done() else None
        if isinstance(error, self._ray.exceptions.RayTaskError):
            raise WorkerError(f"a worker failed: {_cause_of(error)}") from error
        return type(error).__name__


class _Actor:
    """Computes jobs on a machine of the cluster."""

    def __init__(self, threads: int, warm_up: str, folder: str) -> None:
        with contextlib.suppress(OSError):  # another machine may not have it
            os.chdir(folder)  # where the module of a task that the user named may be
        prepare_worker(threads, warm_up)

    def software(self) -> dict[str, str]:
        """Return the versions that results depend on."""
        return _software()

    def compute(self, job: bytes) -> bytes:
        """Return the result of a job."""
        return compute(job, lambda share: None)


def _software() -> dict[str, str]:
    return {
        "Esper": __version__,
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "PyTorch": torch.__version__.partition("+")[0],
    }


def _require_same_software(ray: Any, started: Future[dict[str, str]]) -> None:
    """Reject a cluster whose software differs, because results would."""
    try:
        theirs = started.result(HELLO_SECONDS)
    except TimeoutError:
        raise WorkerError(
            f"no worker of the Ray cluster was ready within {HELLO_SECONDS:.0f} s; it may have no "
            "free CPU: see ray status."
        ) from None
    except ray.exceptions.RayError as error:
        raise WorkerError(
            f"a worker of the Ray cluster cannot start: {_cause_of(error)}; install Esper "
            f"{__version__} on all of its machines."
        ) from None
    for name, ours in _software().items():
        if theirs[name] != ours:
            raise WorkerError(
                f"{name} is {ours} here but {theirs[name]} on the Ray cluster; results could "
                "differ: install the same version everywhere."
            )


def _cause_of(error: Any) -> str:
    """Return what went wrong on a worker, from the end of its traceback if that is all there is."""
    cause = getattr(error, "cause", None)
    return message_of(error)[-300:] if cause is None else summarize_error(cause)


def _connect(address: str, n_workers: int) -> Any:
    """Return the module of Ray, connected to a cluster."""
    _require_address(address)
    ray = _import_ray()
    _make_token()
    if ray.is_initialized():
        raise WorkerError("this process is connected to Ray already; call ray.shutdown() first.")
    options: dict[str, Any] = {"address": address}
    if address == "local":
        n_cores = max(os.cpu_count() or 1, n_workers)
        options |= {"num_cpus": n_cores, "include_dashboard": False}
    try:
        # Elsewhere, because Ray lets workers import whatever is in the current folder.
        with _kept_signal_handler(), _silenced(), contextlib.chdir("/"):
            ray.init(**options, log_to_driver=False, logging_level="error", configure_logging=False)
    except (Exception, SystemExit) as error:
        ray.shutdown()
        raise WorkerError(
            f"the Ray cluster at {address!r} cannot be used: {message_of(error)[:300]}; start one "
            "with RAY_AUTH_MODE=token ray start --head, let this machine join it with the same "
            f"token ({_token_place()}), or use --ray-address local."
        ) from None
    return ray


def _require_address(address: str) -> None:
    """Reject an address where nothing listens; Ray itself would try for many minutes."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise WorkerError(
            f"the Ray address is {address!r}; it must be host:port (such as 10.0.0.5:6379), auto "
            "or local."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS).close()
    except OSError as error:
        raise WorkerError(
            f"no Ray cluster listens at {address!r} ({error.strerror or error}); start one with "
            "RAY_AUTH_MODE=token ray start --head, which prints its address."
        ) from None


def _import_ray() -> Any:
    """Import Ray, which reads its settings then."""
    for name, value in _RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    if (mode := os.environ["RAY_AUTH_MODE"]) != "token":
        raise WorkerError(
            f"RAY_AUTH_MODE is {mode!r}; Ray listens on all interfaces, so it must be 'token': "
            "unset it."
        )
    try:
        ray: Any = importlib.import_module("ray")
        importlib.import_module("ray.exceptions")
    except ImportError:
        raise WorkerError(f"Ray is not installed; install it: {INSTALL}.") from None
    if tuple(map(int, ray.__version__.split(".")[:2])) < OLDEST:
        raise WorkerError(
            f"Ray is {ray.__version__}, which cannot authenticate; install "
            f"{'.'.join(map(str, OLDEST))} or newer: {INSTALL}."
        )
    return ray


@contextlib.contextmanager
def _kept_signal_handler() -> Generator[None]:
    """Keep this process's answer to SIGTERM, which Ray replaces."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # in another thread, Ray replaces nothing
            signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def _silenced() -> Generator[None]:
    """Keep off the terminal what Ray's compiled part says while it connects, again and again."""
    try:
        kept = os.dup(2)
    except OSError:  # there is no such stream
        yield
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _make_token() -> None:
    """Make a token unless one exists, and let only this user read it."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return
    path = Path(_token_place()).expanduser().absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))
        path.chmod(0o600)  # Ray itself lets everybody read it
        if os.environ.get("RAY_AUTH_TOKEN_PATH"):
            os.environ["RAY_AUTH_TOKEN_PATH"] = str(path)  # Ray reads it in another folder
    except OSError as error:
        raise WorkerError(f"the Ray token {path} cannot be written: {error.strerror}.") from error


def _token_place() -> str:
    """Return where the token is."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "$RAY_AUTH_TOKEN"
    return os.environ.get("RAY_AUTH_TOKEN_PATH") or TOKEN_FILE

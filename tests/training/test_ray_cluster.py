"""Jobs on a Ray cluster, with a module that stands for Ray: connecting, deaths, bad input.

``tests/slow/test_ray.py`` does the same with Ray itself.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.errors import ConfigError, WorkerError
from esper.training import ray_cluster
from esper.training.ray_cluster import RayPool
from esper.training.worker_pool import Job
from esper.version import __version__
from tests.training.fake_ray import (
    ActorDiedError,
    FakeRay,
    RayTaskError,
)
from tests.training.test_worker_pool import double, fail, jobs_of


@pytest.fixture(autouse=True)
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The token's file. Ray's settings in the environment are forgotten afterwards."""
    for name in (*ray_cluster._RAY_SETTINGS, "RAY_AUTH_TOKEN", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    path = tmp_path / "home" / "token"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    return path


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    made = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", made)
    monkeypatch.setitem(sys.modules, "ray.exceptions", made.exceptions)  # type: ignore[arg-type]
    return made


@pytest.fixture
def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_jobs_are_computed_by_actors(ray: FakeRay) -> None:
    pool = RayPool("local", 2)
    found = pool.run(jobs_of(5))
    assert [twice for twice, _, _ in found] == [0, 2, 4, 6, 8]
    for number, (_, tensor, _) in enumerate(found):
        assert tensor.tolist() == [number + 1] * 3
    assert ray.options["num_cpus"] >= 2
    assert pool.status().alive == 2
    assert ray.n_actors == 2
    pool.close()
    assert not ray.is_connected
    assert ray.n_killed == 2


def test_what_a_job_raises_is_raised_here(ray: FakeRay) -> None:
    pool = RayPool("local", 1)
    with pytest.raises(ConfigError, match="colour is 3"):
        pool.run([Job("a job", fail, ("esper",))])
    with pytest.raises(RuntimeError, match="of seven") as caught:
        pool.run([Job("a job", fail, ("other",))])
    assert "ZeroDivisionError" in "".join(caught.value.__notes__)
    assert len(pool.run(jobs_of(2))) == 2


def test_a_dead_actor_is_replaced_and_its_job_repeated(ray: FakeRay) -> None:
    pool = RayPool("local", 1)
    ray.answers["compute"] = [ActorDiedError("gone"), ActorDiedError("gone")]
    assert [twice for twice, _, _ in pool.run(jobs_of(2))] == [0, 2]
    assert pool.status().restarted == 2


def test_a_job_that_ends_three_actors_is_given_up(ray: FakeRay) -> None:
    pool = RayPool("local", 1)
    ray.answers["compute"] = [ActorDiedError("gone")] * 3
    with pytest.raises(WorkerError, match=r"shard 7.* 3 .*ActorDiedError"):
        pool.run([Job("shard 7", double, (1, torch.ones(3)))])


def test_what_a_worker_cannot_even_begin_is_told_in_one_line(ray: FakeRay) -> None:
    pool = RayPool("local", 1)
    cause = ModuleNotFoundError("No module named 'mine'")
    ray.answers["compute"] = [RayTaskError("a long traceback\n" * 50, cause)]
    with pytest.raises(WorkerError, match=r"ModuleNotFoundError.*'mine'") as caught:
        pool.run(jobs_of(1))
    assert "\n" not in str(caught.value)


def test_a_full_object_store_is_named(ray: FakeRay) -> None:
    pool = RayPool("local", 1)
    ray.is_full = True
    with pytest.raises(WorkerError, match=r"[\d,]+ bytes .*ObjectStoreFullError.*envs_per_shard"):
        pool.run(jobs_of(1))


def test_other_software_on_the_cluster_is_refused(ray: FakeRay) -> None:
    ours = ray_cluster._software()
    for name in ours:
        ray.answers["software"] = [{**ours, name: "0.0.9"}]
        with pytest.raises(WorkerError, match=rf"{name} is {ours[name]} here but 0\.0\.9"):
            RayPool("local", 1)
        assert not ray.is_connected


@pytest.mark.parametrize(
    ("error", "match"),
    [
        (TimeoutError("late"), "120 s.*ray status"),
        (ActorDiedError("No module named 'esper'"), f"'esper'.*install Esper {__version__}"),
    ],
)
def test_workers_that_cannot_start_are_told_in_one_line(
    ray: FakeRay, error: Exception, match: str
) -> None:
    ray.answers["software"] = [error]
    with pytest.raises(WorkerError, match=match):
        RayPool("local", 1)
    assert not ray.is_connected


def test_ray_that_is_missing_or_old_is_refused(
    ray: FakeRay, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "__version__", "2.9.3")
    with pytest.raises(WorkerError, match=r"Ray is 2\.9\.3.* 2\.52.*pip install"):
        RayPool("local", 1)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(WorkerError, match=r"pip install 'esper-lite\[ray\]'"):
        RayPool("local", 1)
    assert not token.exists()


def test_a_process_that_uses_ray_already_keeps_it(ray: FakeRay) -> None:
    ray.is_connected = True
    with pytest.raises(WorkerError, match=r"ray\.shutdown"):
        RayPool("local", 1)
    assert ray.is_connected


@pytest.mark.parametrize("address", ["nonsense", "host:", ":6379", "host:65536", "ray://host:1"])
def test_an_address_must_be_a_host_and_a_port(address: str) -> None:
    with pytest.raises(WorkerError, match=f"{address!r}.*host:port.*auto.*local"):
        RayPool(address, 1)


def test_an_address_where_nobody_listens_is_refused_at_once(
    free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"127.0.0.1:{free_port}"
    with pytest.raises(WorkerError, match=f"'{address}'.*refused.*ray start"):
        RayPool(address, 1)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(WorkerError, match=f"'{address}'"):
        RayPool("auto", 1)
    with pytest.raises(WorkerError, match=r"'no-such-host\.invalid:6379'"):
        RayPool("no-such-host.invalid:6379", 1)


@pytest.mark.parametrize("error", [ConnectionError("no\ncluster"), SystemExit("version")])
def test_a_cluster_that_refuses_is_told_in_one_line(
    ray: FakeRay, error: BaseException, token: Path
) -> None:
    ray.init_error = error
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(WorkerError, match=f"'{address}'.*(no cluster|version)") as caught:
            RayPool(address, 1)
    assert str(token) in str(caught.value)


def test_the_answer_to_sigterm_stays_ours(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = signal.getsignal(signal.SIGTERM)

    def init(**_: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))

    monkeypatch.setattr(ray, "init", init)
    RayPool("local", 1).close()
    assert signal.getsignal(signal.SIGTERM) is ours


def test_only_this_user_can_read_the_token(ray: FakeRay, token: Path) -> None:
    RayPool("local", 1).close()
    assert os.environ["RAY_AUTH_MODE"] == "token"
    made = token.read_text()
    assert len(bytes.fromhex(made)) == 32
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    token.chmod(0o644)
    RayPool("local", 1).close()
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert token.read_text() == made


def test_the_token_may_be_in_a_relative_place(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "token")
    RayPool("local", 1).close()
    assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(tmp_path / "token")
    assert (tmp_path / "token").exists()
    assert Path.cwd() == tmp_path


def test_a_token_in_the_environment_needs_no_file(
    ray: FakeRay, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "f" * 64)
    RayPool("local", 1).close()
    assert not token.exists()
    ray.init_error = ConnectionError("refused")
    with pytest.raises(WorkerError, match=r"\$RAY_AUTH_TOKEN"):
        RayPool("local", 1)


def test_ray_without_a_token_is_refused(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "file" / "token"))
    with pytest.raises(WorkerError, match=r"token.*cannot be written"):
        RayPool("local", 1)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(WorkerError, match="RAY_AUTH_MODE is 'disabled'"):
        RayPool("local", 1)
    assert not ray.options

"""Runs on a Ray cluster: the same results as in one process, whatever dies; bad input."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.training.test_shards import at_step, sharded
from tests.training.test_worker_pool import die, die_once, double, jobs_of
from tests.training.tiny import liveliness, run_digests

from esper.config.run import RunConfig
from esper.errors import TaskError, WorkerError
from esper.tasks import make_task, registry
from esper.tasks.registry import register_task
from esper.telemetry import open_run
from esper.telemetry.records import RoundRecord
from esper.training import ray_cluster
from esper.training.ray_cluster import RayPool
from esper.training.runs import resume, train
from esper.training.worker_pool import Job, OnShare

# Not imported yet: Ray reads its settings when it is.
HAS_RAY = importlib.util.find_spec("ray") is not None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_RAY, reason="needs pip install 'esper-lite[ray]'"),
    pytest.mark.filterwarnings("ignore::Warning"),  # Ray's own
]
STORE_BYTES = 100_000_000


def config_of_runs() -> RunConfig:
    """Return the settings of a run of four shards."""
    return sharded(envs=8)


@pytest.fixture(scope="module")
def token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The token's file, which Esper makes. A process reads it once, so all tests share it."""
    path = tmp_path_factory.mktemp("ray") / "token"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # jobs of tests are in tests
        for name, value in ray_cluster._RAY_SETTINGS.items():
            patch.setenv(name, value)
        ray_cluster._make_token()
        yield path


def make_cluster(*n_cpus: int) -> Any:
    """Start a cluster on this machine, a node for each number of CPUs."""
    from ray.cluster_utils import Cluster

    # As if the disk were full, so that nothing is moved there from a full object store.
    system = {"_system_config": {"local_fs_capacity_threshold": 0.0}}
    made = Cluster()
    for count in n_cpus:
        made.add_node(
            num_cpus=count,
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            **(system if made.head_node is None else {}),
        )
    return made


@pytest.fixture(scope="module")
def cluster(token: Path) -> Iterator[Any]:
    """A cluster of one node."""
    made = make_cluster(8)
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The digests of a run in this process."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    with liveliness():
        train(config_of_runs(), run_dir=folder, workers=0)
    return run_digests(folder)


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            found += [int(folder.name)] if int(parent) == pid else []
    return sorted(found)


def actors_of(cluster: Any) -> list[int]:
    """Return the process IDs of a cluster's actors."""
    raylets = [node.all_processes["raylet"][0].process.pid for node in cluster.list_all_nodes()]
    found: list[int] = []
    for pid in [pid for raylet in raylets for pid in children_of(raylet)]:
        with suppress(OSError):
            found += [pid] if b"ray::_Actor" in Path(f"/proc/{pid}/cmdline").read_bytes() else []
    return found


@pytest.mark.parametrize("n_workers", [4, 2, 1])
def test_results_do_not_depend_on_the_number_of_ray_workers(
    n_workers: int, reference: dict[str, str], cluster: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with liveliness():
        train(config_of_runs(), run_dir=folder, workers=n_workers, ray_address=cluster.address)
    assert run_digests(folder) == reference
    with open_run(folder) as telemetry:
        # On a busy machine one that hangs may be missing when a round ends.
        assert max(row.workers or 0 for row in telemetry.rows(RoundRecord)) == n_workers


@pytest.mark.parametrize("seed", [0, 1])
def test_ray_workers_killed_at_random_moments_change_nothing(
    seed: int, reference: dict[str, str], cluster: Any, tmp_path: Path
) -> None:
    chance, is_done, killed = random.Random(seed), threading.Event(), list[int]()

    def kill_some() -> None:
        while len(killed) < 3 and not is_done.wait(chance.uniform(0.05, 0.5)):
            if actors := actors_of(cluster):
                killed.append(chance.choice(actors))
                with suppress(ProcessLookupError):
                    os.kill(killed[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill_some)
    start = at_step(1, killer.start)
    folder = tmp_path / "run"
    try:
        with liveliness():
            train(
                config_of_runs(),
                run_dir=folder,
                workers=2,
                ray_address=cluster.address,
                watchers=[start],
            )
    finally:
        is_done.set()
        if killer.is_alive():
            killer.join()
    assert killed
    assert run_digests(folder) == reference


def test_a_removed_node_changes_nothing(
    reference: dict[str, str], token: Path, tmp_path: Path
) -> None:
    cluster = make_cluster(1, 1, 1)
    removed: list[int] = []

    def remove() -> None:
        node = next(node for node in cluster.worker_nodes)
        removed.extend(children_of(node.all_processes["raylet"][0].process.pid))
        cluster.remove_node(node, allow_graceful=False)

    folder = tmp_path / "run"
    try:
        with liveliness():
            train(
                config_of_runs(),
                run_dir=folder,
                workers=2,
                ray_address=cluster.address,
                watchers=[at_step(3, remove)],
            )
    finally:
        cluster.shutdown()
    assert removed
    assert run_digests(folder) == reference


SCRIPT = """
import sys
from tests.slow.test_ray import config_of_runs
from tests.training.tiny import liveliness
from esper.training.runs import resume, train
folder, what, workers, address = sys.argv[1:]
options = {"workers": int(workers), "ray_address": address or None}
with liveliness():
    if what == "train":
        train(config_of_runs(), run_dir=folder, **options)
    else:
        resume(folder, **options)
"""


def descendants_of(pid: int) -> list[int]:
    children = children_of(pid)
    return children + [each for child in children for each in descendants_of(child)]


def kill_at_step(step: int, folder: Path, *words: str) -> None:
    """Start or resume a run in another process, and kill it after a checkpoint."""
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(folder), *words])
    while not list(folder.glob(f"checkpoints/*{step:04d}*")):
        assert process.poll() is None
        time.sleep(0.02)
    others = descendants_of(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    end = time.monotonic() + 240  # Ray's agents look only now and then whether they are needed
    while left := [pid for pid in others if is_alive(pid)]:
        assert time.monotonic() < end, f"{left} outlive the process that they work for"
        time.sleep(0.1)


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_killed_run_is_resumed_with_other_workers_and_another_backend(
    reference: dict[str, str], cluster: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    kill_at_step(3, folder, "train", "2", "local")
    kill_at_step(6, folder, "resume", "3", "")
    with liveliness():
        resume(folder, workers=4, ray_address=cluster.address)
    assert run_digests(folder) == reference


def test_sigterm_saves_a_run_on_ray(
    reference: dict[str, str], cluster: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    stop = at_step(3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with liveliness():
        with pytest.raises(KeyboardInterrupt):
            train(
                config_of_runs(),
                run_dir=folder,
                workers=2,
                ray_address=cluster.address,
                watchers=[stop],
            )
        resume(folder, workers=1)
    assert run_digests(folder) == reference


def connect(address: str, **environment: str) -> str:
    """Let another process connect to a cluster, without Esper; return what it says."""
    script = (
        "import ray, sys\n"
        "try:\n"
        "    ray.init(address=sys.argv[1], log_to_driver=False)\n"
        "    print('connected')\n"
        "except Exception as error:\n"
        "    print('refused', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, address],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    return done.stdout + done.stderr


def test_a_cluster_lets_nobody_in_without_the_token(cluster: Any, token: Path) -> None:
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert "connected" in connect(cluster.address)
    for said in (
        connect(cluster.address, RAY_AUTH_MODE="disabled"),
        connect(cluster.address, RAY_AUTH_TOKEN="f" * 64),
    ):
        assert "connected" not in said
        assert "InvalidAuthToken" in said


def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "esper", "train", "--quiet", "--task", "spirals", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_the_command_line_reports_a_wrong_token_in_one_line(cluster: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = "--run-dir", str(folder), "--workers", "1", "--ray-address"
    for done, named in (
        (command(*words, cluster.address, RAY_AUTH_TOKEN="f" * 64), cluster.address),
        (command(*words, "local", RAY_AUTH_MODE="disabled"), "RAY_AUTH_MODE is 'disabled'"),
    ):
        assert done.returncode == 2
        assert done.stderr.startswith("esper: error: ")
        assert named in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert not folder.exists()


def test_ray_workers_import_nothing_of_the_current_folder_but_the_task(
    cluster: Any, tmp_path: Path
) -> None:
    for name in ("esper", "torch", "numpy", "json"):
        (tmp_path / f"{name}.py").write_text(f"open('ran-{name}', 'w').close()\n")
    (tmp_path / "my_task.py").write_text(
        "from esper.tasks import make_task\n\ndef make():\n    return make_task('spirals')\n"
    )
    words = ["train", "--quiet", "--task", "my_task:make", "--ray-address", cluster.address]
    words += ["--rounds", "1", "--envs", "2", "--envs-per-shard", "1", "--n-steps", "2"]
    words += ["--budget.n-epochs", "2", "--ppo.n-minibatches", "1", "--first-policy", "cautious"]
    words += ["--evaluation.n-eval-episodes", "2", "--evaluation.n-final-episodes", "2"]
    done = subprocess.run(
        [Path(sys.executable).with_name("esper"), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.glob("ran-*"))


@pytest.fixture
def pool(cluster: Any) -> Iterator[RayPool]:
    made = RayPool(cluster.address, 2)
    yield made
    made.close()


def test_a_dead_ray_worker_is_replaced_soon(
    pool: RayPool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool.run(jobs_of(4))
    start = time.monotonic()
    found = pool.run([Job("a job", die_once, (tmp_path / "died",)), *jobs_of(2)])
    seconds = time.monotonic() - start
    assert found[0] == "done"
    assert pool.status().restarted == 1
    with capsys.disabled():
        print(f"\na dead Ray worker was replaced within {seconds:.1f} s")
    with pytest.raises(WorkerError, match=r"shard 7 ended 3 workers"):
        pool.run([Job("shard 7", die, (int(signal.SIGSEGV),))])
    assert [twice for twice, _, _ in pool.run(jobs_of(2))] == [0, 2]


def make_much(_: OnShare, n_bytes: int) -> bytes:
    return bytes(n_bytes)


def test_a_full_object_store_is_named(pool: RayPool) -> None:
    much = Job("a job", double, (1, bytes(2 * STORE_BYTES)))
    with pytest.raises(
        WorkerError, match=r"200,000,\d+ bytes .*OutOfDisk.*envs_per_shard"
    ) as caught:
        pool.run([much])
    assert "\n" not in str(caught.value)
    with pytest.raises(WorkerError, match="OutOfDisk") as caught:
        pool.run([Job("shard 7", make_much, (2 * STORE_BYTES,))])
    assert "\n" not in str(caught.value)
    assert [twice for twice, _, _ in pool.run(jobs_of(2))] == [0, 2]


def test_other_software_and_other_tasks_on_a_cluster_are_refused(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attempt(**changes: Any) -> Callable[[], Any]:
        return lambda: train(
            sharded(**changes),
            run_dir=tmp_path / "run",
            workers=1,
            ray_address=cluster.address,
        )

    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    register_task("mine", lambda: make_task("spirals"), summary="a task of this process")
    with pytest.raises(TaskError, match=r"cannot make task 'mine'.*module:function"):
        attempt(task="mine", task_options={})()
    assert not (tmp_path / "run").exists()
    with monkeypatch.context() as patch:
        patch.setattr(ray_cluster, "__version__", "9.9")
        with pytest.raises(WorkerError, match=r"Esper is 9\.9 here but"):
            attempt()()
    assert not (tmp_path / "run").exists()
    with pytest.raises(WorkerError, match=r"cannot start.*no_such_module"):
        RayPool(cluster.address, 1, warm_up="no_such_module")

"""Jobs on worker processes: order, deaths, hanging workers, errors, what they import."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.errors import ConfigError, WorkerError
from esper.training import worker_pool
from esper.training.worker_pool import Job, OnShare, Pool, ProcessPool, WorkerWarning
from tests.shared_pool import shared_pool

WARM_UP = "tests.training.test_worker_pool"


def double(on_share: OnShare, number: int, tensor: torch.Tensor) -> tuple[int, torch.Tensor, int]:
    """Return twice the number, the tensor plus one, and who computed it."""
    on_share(0.5)
    return 2 * number, tensor + 1, os.getpid()


def die_once(_: OnShare, file: Path) -> str:
    """Kill the first worker that computes it."""
    if not file.exists():
        file.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def die(_: OnShare, number: int) -> None:
    os.kill(os.getpid(), number)


def exit_with(_: OnShare, code: int) -> None:
    os._exit(code)


def stop_once(_: OnShare, file: Path) -> str:
    """Stop the first worker that computes it."""
    if not file.exists():
        file.touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    return "done"


def sleep_with_progress(on_share: OnShare, seconds: float) -> str:
    for tenth in range(10):
        time.sleep(seconds / 10)
        on_share(tenth / 10)
    return "done"


def fail(_: OnShare, kind: str) -> None:
    if kind == "esper":
        raise ConfigError("colour is 3; it must be blue.")
    raise ZeroDivisionError("of seven")


def jobs_of(n: int) -> list[Job]:
    return [Job(f"job {number}", double, (number, torch.full((3,), number))) for number in range(n)]


@pytest.fixture(scope="module")
def shared() -> Iterator[ProcessPool]:
    """A pool that all tests share, as processes take seconds to start."""
    made = ProcessPool(2, warm_up=WARM_UP)
    yield made
    made.close()


@pytest.fixture
def pool(shared: ProcessPool, monkeypatch: pytest.MonkeyPatch) -> ProcessPool:
    monkeypatch.setattr(shared, "_longest", {})
    return shared


@pytest.mark.parametrize("kind", ["inline", "processes"])
def test_results_come_in_the_order_of_jobs(kind: str, pool: ProcessPool) -> None:
    chosen = Pool() if kind == "inline" else pool
    shares: list[float] = []
    found = chosen.run(jobs_of(5), on_share=shares.append)
    assert [twice for twice, _, _ in found] == [0, 2, 4, 6, 8]
    for number, (_, tensor, _) in enumerate(found):
        assert torch.equal(tensor, torch.full((3,), number + 1))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_progress_counts_by_the_size_of_jobs() -> None:
    shares: list[float] = []
    small, large = (Job("a job", sleep_with_progress, (0.0,), size) for size in (1, 3))
    Pool().run([small, large], on_share=shares.append)
    assert 0.25 in shares
    assert shares[-2] == pytest.approx(0.25 + 0.9 * 0.75)


def test_progress_of_a_job_is_shown_while_it_runs(pool: ProcessPool) -> None:
    shares: list[float] = []
    pool.run([Job("a job", sleep_with_progress, (0.8,))], on_share=shares.append)
    assert len([share for share in shares if 0.0 < share < 1.0]) > 1


def test_equally_long_jobs_go_to_the_workers_that_had_them_before(pool: ProcessPool) -> None:
    pool.run(jobs_of(2))
    sleep = [Job("a job", sleep_with_progress, (0.5,))] * 2
    first, second = ([pid for _, _, pid in pool.run([*jobs_of(2), *sleep])[:2]] for _ in range(2))
    assert first == second
    assert len({*first, os.getpid()}) == 3


@pytest.mark.slow
def test_a_dead_worker_is_replaced_and_its_job_repeated(pool: ProcessPool, tmp_path: Path) -> None:
    before = pool.status()
    found = pool.run([Job("a job", die_once, (tmp_path / "died",)), *jobs_of(2)])
    assert found[0] == "done"
    after = pool.status()
    assert after.restarted == before.restarted + 1
    assert after.alive == 2


@pytest.mark.slow
def test_a_worker_that_dies_between_jobs_is_replaced(pool: ProcessPool) -> None:
    pids = {pid for _, _, pid in pool.run(jobs_of(4))}
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.2)
    found = pool.run(jobs_of(4))
    assert [twice for twice, _, _ in found] == [0, 2, 4, 6]
    assert not pids & {pid for _, _, pid in found}


@pytest.mark.parametrize(
    ("function", "argument", "how"),
    [
        (die, int(signal.SIGSEGV), "SIGSEGV"),
        (exit_with, 7, "exit code 7"),
    ],
)
@pytest.mark.slow
def test_a_job_that_ends_three_workers_is_given_up(
    function: Any, argument: int, how: str, pool: ProcessPool
) -> None:
    before = pool.status().restarted
    with pytest.raises(WorkerError, match=rf"shard 7.* 3 .*{how}"):
        pool.run([Job("shard 7", function, (argument,)), *jobs_of(1)])
    assert pool.status().restarted == before + 3
    assert [twice for twice, _, _ in pool.run(jobs_of(2))] == [0, 2]


def test_a_worker_that_hangs_is_killed_and_its_job_repeated(
    pool: ProcessPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.run(jobs_of(2))
    before = pool.status().restarted
    monkeypatch.setattr(worker_pool, "HANG_SECONDS", 0.5)
    monkeypatch.setitem(pool._longest, stop_once, 0.01)
    with pytest.warns(WorkerWarning, match="shard 7 is repeated after making no progress"):
        assert pool.run([Job("shard 7", stop_once, (tmp_path / "stopped",))]) == ["done"]
    assert pool.status().restarted == before + 1


def stop_after(_: OnShare, seconds: float, file: Path) -> str:
    """Work for a while without a word; the first worker then stops."""
    time.sleep(seconds)
    return stop_once(_, file)


@pytest.mark.slow
def test_workers_that_are_all_stopped_in_their_first_job_are_replaced(
    pool: ProcessPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.run(jobs_of(2))
    before = pool.status().restarted
    monkeypatch.setattr(worker_pool, "HANG_SECONDS", 10.0)  # longer than a worker takes to start
    jobs = [Job(f"shard {k}", stop_after, (11.0, tmp_path / f"{k}")) for k in range(2)]
    with pytest.warns(WorkerWarning) as caught:
        assert pool.run(jobs) == ["done"] * 2
    starts = {str(each.message).partition(" after making no progress")[0] for each in caught}
    assert starts == {"shard 0 is repeated", "shard 1 is repeated"}
    assert pool.status().restarted >= before + 2


def test_a_job_that_makes_progress_does_not_hang(
    pool: ProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.run(jobs_of(2))  # the workers have started
    monkeypatch.setattr(worker_pool, "HANG_SECONDS", 0.5)
    monkeypatch.setitem(pool._longest, sleep_with_progress, 0.01)
    assert pool.run([Job("a job", sleep_with_progress, (1.5,))]) == ["done"]


@pytest.mark.parametrize("kind", ["inline", pytest.param("processes", marks=pytest.mark.slow)])
def test_what_a_job_raises_is_raised_here(kind: str, pool: ProcessPool) -> None:
    chosen = Pool() if kind == "inline" else pool
    with pytest.raises(ConfigError, match="colour is 3"):
        chosen.run([Job("a job", fail, ("esper",)), *jobs_of(2)])
    with pytest.raises((RuntimeError, ZeroDivisionError), match="of seven") as caught:
        chosen.run([Job("a job", fail, ("other",))])
    if kind == "processes":
        assert "ZeroDivisionError" in "".join(caught.value.__notes__)
    assert len(chosen.run(jobs_of(2))) == 2


@pytest.mark.parametrize("kind", ["inline", "processes"])
def test_a_check_ends_jobs_that_take_long(kind: str, pool: ProcessPool) -> None:
    class EnoughError(Exception):
        pass

    chosen, start = Pool() if kind == "inline" else pool, time.monotonic()

    def check() -> None:
        if time.monotonic() - start > 0.5:
            raise EnoughError

    with pytest.raises(EnoughError):
        chosen.run(
            [Job("a job", sleep_with_progress, (600.0 if kind != "inline" else 2.0,))], check=check
        )
    assert len(chosen.run(jobs_of(2))) == 2


def test_an_interrupt_from_the_terminal_does_not_reach_workers() -> None:
    with shared_pool("") as pool:
        pool.lend(1).start()
        (pid,) = pool.pids()
        for _ in range(20):  # also while it is starting
            os.kill(pid, signal.SIGINT)
            time.sleep(0.1)
        assert pool.run(jobs_of(1))[0][2] == pid


def test_a_worker_is_bound_to_the_first_process_before_it_imports_pytorch() -> None:
    script = "import sys, esper.training.worker_pool; print({'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.slow
def test_workers_end_with_the_pool() -> None:
    made = ProcessPool(1, warm_up=WARM_UP)
    pid = made.run(jobs_of(1))[0][2]
    made.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


SCRIPT = """
import os
from esper.training.worker_pool import Job, ProcessPool
from tests.training.test_worker_pool import sleep_with_progress
print("started")
pool = ProcessPool(1, warm_up="esper.training.trials")
print(*pool.run([Job("a job", sleep_with_progress, (0.0,))]))
pool.close()
print(os.environ.get("PYTHONSAFEPATH"))
"""


SHADOWED = ("json", "pickle", "multiprocessing", "threading", "socket", "torch", "esper", "numpy")


def test_a_script_that_starts_workers_needs_no_guard_and_they_import_nothing_of_its_folder(
    tmp_path: Path,
) -> None:
    for name in SHADOWED:
        (tmp_path / f"{name}.py").write_text(f"open('ran-{name}', 'w').close()\n")
    script = tmp_path / "elsewhere" / "script.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    environment.pop("PYTHONSAFEPATH", None)
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    assert done.stdout.split() == ["started", "done", "None"]
    assert done.stderr == ""
    assert not list(tmp_path.glob("ran-*"))

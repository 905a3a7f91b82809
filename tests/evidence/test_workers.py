"""Evaluations in worker processes have the results of this process alone, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from esper.errors import ConfigError, TaskError
from esper.evidence import evaluation
from esper.evidence.compare import compare
from esper.evidence.evaluation import WARM_UP, EvaluationProgress, evaluate
from esper.results.evidence import Evidence
from esper.tamiyo import NoGrowth
from esper.tasks import make_task, registry
from esper.tasks.registry import register_task
from esper.training import workers
from esper.training.run import Run
from esper.training.worker_pool import Pool
from esper.training.workers import Workload
from tests.shared_pool import SharedPool, shared_pool

HOSTS: dict[str, Any] = {"n_hosts": 5, "tuning_runs": 4}
SOME = ["no-growth", "random", "scratch-same-epochs", "fixed-size", "shuffled", "wrong-task"]
"""Arms of each kind."""
SPIRALS: dict[str, Any] = {
    "task": "spirals",
    "task_options": {"n_epochs": 6, "batches_per_epoch": 1},
}


@pytest.fixture(scope="module")
def shared() -> Iterator[SharedPool]:
    with shared_pool(WARM_UP) as pool:
        yield pool


@pytest.fixture
def pool(shared: SharedPool, monkeypatch: pytest.MonkeyPatch) -> SharedPool:
    """The pool that evaluations use if they are to have workers, on batches of 3 hosts."""

    def choose(work: Workload, *, workers: int | None, ray_address: str | None) -> Pool:
        return shared if workers else Pool()

    monkeypatch.setattr(evaluation, "choose_pool", choose)
    monkeypatch.setattr("esper.training.host_trainer.BATCH_HOSTS", 3)
    return shared.lend(2)


def assert_same(found: Evidence, expected: Evidence) -> None:
    assert [arm.name for arm in found.arms] == [arm.name for arm in expected.arms]
    for arm, other in zip(found.arms, expected.arms, strict=True):
        assert arm.setting == other.setting
        for name in (
            "score",
            "returns",
            "flops",
            "parameters",
            "grown_parameters",
            "n_epochs",
            "test_reads",
        ):
            values = getattr(arm, name), getattr(other, name)
            np.testing.assert_array_equal(*values, err_msg=f"{name} of {arm.name}")


@pytest.mark.slow
def test_arms_of_each_kind_are_the_same_with_workers(done_run: Run, pool: SharedPool) -> None:
    (alone,) = evaluate(done_run, **HOSTS, **SPIRALS, arms=SOME, workers=0)
    assert pool.n_jobs == 0
    shares: list[EvaluationProgress] = []
    options: dict[str, Any] = {**HOSTS, **SPIRALS, "arms": SOME, "on_progress": shares.append}
    (found,) = evaluate(done_run, **options, workers=2)
    assert_same(found, alone)
    n_batches = 2
    assert pool.n_jobs > n_batches * len(SOME)
    shares_done = [one.share for one in shares if one.work == "no growth"]
    assert shares_done == pytest.approx(sorted(shares_done))
    assert (shares_done[0], shares_done[-1]) == (0.0, pytest.approx(1.0))


@pytest.mark.slow
def test_comparisons_are_the_same_with_workers(done_run: Run, pool: SharedPool) -> None:
    own = NoGrowth(finish_after=2, name="mine")
    alone, found = (
        compare([done_run, "heuristic", own], n_hosts=7, workers=n, **SPIRALS) for n in (0, 2)
    )
    assert_same(found, alone)
    assert found.arm("mine").n_epochs.max() == 2
    assert pool.n_jobs == 3 * 2  # the controller that is an object stays in this process


def test_large_evaluations_use_all_cores_by_default(
    monkeypatch: pytest.MonkeyPatch, done_run: Run
) -> None:
    made: list[Pool] = []

    def note(work: Workload, **options: Any) -> Pool:
        made.append(workers.choose_pool(work, **options))
        return Pool()

    def skip(progress: EvaluationProgress) -> None:
        raise InterruptedError  # its workers are chosen

    monkeypatch.setattr(evaluation, "choose_pool", note)
    monkeypatch.setattr(workers, "count_cores", lambda: 3)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    for n_hosts, tuning_runs in ((4, 4), (300, 4096), (20_000, 4096)):
        with pytest.raises(InterruptedError):
            evaluate(done_run, on_progress=skip, n_hosts=n_hosts, tuning_runs=tuning_runs)
    with pytest.raises(InterruptedError):
        evaluate(done_run, on_progress=skip, n_hosts=20_000, arms=["no-growth"], workers=0)
    assert [pool.is_local for pool in made] == [True, False, False, True]
    assert [pool.n_workers for pool in made[1:3]] == [3, 3]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": -1}, "workers is -1"),
        ({"workers": True}, "workers is True"),
        ({"workers": 3, "n_hosts": 200}, r"workers is 3, .* 2 groups .* at most 2"),
        ({"workers": 0, "ray_address": "auto"}, "ray_address"),
        ({"workers": 1, "task": make_task("spirals"), "task_options": {}}, "1, but task 'spirals'"),
        (
            {"ray_address": "auto", "task": make_task("spirals"), "task_options": {}},
            "'auto', but task 'spirals'",
        ),
    ],
)
def test_workers_that_cannot_be_are_refused(given: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"n_hosts": 4, **SPIRALS, **given}
    with pytest.raises(ConfigError, match=message):
        compare(["no-growth", "random"], **options)


def test_a_task_that_is_an_object_needs_no_workers() -> None:
    task = make_task("spirals", n_epochs=2, batches_per_epoch=1)
    assert compare(["no-growth", "random"], n_hosts=2, task=task).n_hosts == 2


def test_a_task_of_this_process_alone_is_named(
    pool: SharedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))  # pyright: ignore[reportPrivateUsage]
    register_task("mine", lambda: make_task("spirals"), summary="a task of this process")
    with pytest.raises(TaskError, match=r"worker process cannot make task 'mine'.*module:function"):
        compare(["no-growth", "random"], n_hosts=4, task="mine", workers=1)


@pytest.mark.slow
def test_workers_end_if_an_evaluation_is_interrupted(pool: SharedPool) -> None:
    def interrupt(progress: EvaluationProgress) -> None:
        if progress.share > 0.0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(["no-growth", "random"], n_hosts=7, workers=2, on_progress=interrupt, **SPIRALS)
    assert pool.n_closed == 1

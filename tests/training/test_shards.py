"""Runs in shards: the results depend on the shards but not on who computes them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from esper.config.run import RunConfig
from esper.environment import GrowthVectorEnv
from esper.errors import ConfigError, RolloutError, TaskError, TrainingError, WorkerError
from esper.tasks import make_task, registry
from esper.tasks.registry import register_task
from esper.telemetry import open_run
from esper.telemetry.records import EpisodeRecord, RoundRecord, StepRecord
from esper.training import runs, workers
from esper.training.runs import resume, train
from esper.training.setup import make_agent, make_run_task
from esper.training.shards import GrowthShard, Position, ShardedRollout, plan_shards
from esper.training.worker_pool import Pool, ProcessPool
from esper.training.workers import WARM_UP, make_pool
from tests.shared_pool import SharedPool, shared_pool
from tests.training.tiny import Seen, liveliness, run_digests, tiny_config

SHARDED = {
    "envs": 6,
    "envs_per_shard": 2,
    "rounds": 2,
    "n_steps": 4,
    "budget__n_epochs": 6,
    "evaluation__eval_freq": 2,
    "evaluation__n_final_episodes": 4,
    "checkpoints__save_freq": 3,
    "task_options": {"batches_per_epoch": 1},
}


def sharded(**changes: Any) -> RunConfig:
    return tiny_config(**SHARDED | changes)


@pytest.fixture(scope="module")
def shared() -> Iterator[SharedPool]:
    with shared_pool(WARM_UP) as pool:
        yield pool


@pytest.fixture
def pool(shared: SharedPool, monkeypatch: pytest.MonkeyPatch) -> SharedPool:
    """The pool that runs use if they are to have workers."""

    def choose(config: RunConfig, task: Any, *, workers: int, **_: Any) -> Pool:
        return shared.lend(workers) if workers else Pool()

    monkeypatch.setattr(runs, "make_pool", choose)
    return shared


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The digests of a run in this process."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    with liveliness():
        train(sharded(), run_dir=folder, workers=0)
    return run_digests(folder)


@pytest.mark.parametrize(
    "n_workers", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3))]
)
def test_results_do_not_depend_on_the_number_of_workers(
    n_workers: int, reference: dict[str, str], pool: SharedPool, tmp_path: Path
) -> None:
    with liveliness():
        train(sharded(), run_dir=tmp_path / "run", workers=n_workers)
    assert run_digests(tmp_path / "run") == reference
    with open_run(tmp_path / "run") as telemetry:
        rows = telemetry.rows(RoundRecord)
    assert {row.workers for row in rows} == {n_workers}


def at_step(number: int, act: Callable[[], None]) -> Seen:
    """Return a watcher that acts when a step is recorded."""

    def look(record: Any) -> None:
        if isinstance(record, StepRecord) and record.step == number and record.env == 0:
            act()

    return Seen(look)


@pytest.mark.parametrize(
    "kills", [[(5, -1)], pytest.param([(2, 0), (5, -1)], marks=pytest.mark.slow)]
)
def test_killed_workers_change_nothing(
    kills: list[tuple[int, int]], reference: dict[str, str], pool: SharedPool, tmp_path: Path
) -> None:
    before = pool.status().restarted
    moments = [
        at_step(step, lambda worker=worker: os.kill(pool.pids()[worker], signal.SIGKILL))
        for step, worker in kills
    ]
    with liveliness():
        train(sharded(), run_dir=tmp_path / "run", workers=2, watchers=moments)
    assert run_digests(tmp_path / "run") == reference
    assert pool.status().restarted == before + len(kills)


def test_an_interrupted_run_is_resumed_with_other_workers(
    reference: dict[str, str], pool: SharedPool, tmp_path: Path
) -> None:
    folder = tmp_path / "run"

    def stop() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with liveliness():
        with pytest.raises(KeyboardInterrupt):
            train(sharded(), run_dir=folder, workers=2, watchers=[at_step(2, stop)])
        with pytest.raises(KeyboardInterrupt):
            resume(folder, workers=0, watchers=[at_step(6, stop)])
        resume(folder, workers=1)
    assert run_digests(folder) == reference


def test_one_shard_is_the_run_as_it_was(tmp_path: Path) -> None:
    few = {**SHARDED, "rounds": 1}
    seen, whole = Seen(), Seen()
    train(tiny_config(**few | {"envs_per_shard": None}), run_dir=tmp_path / "a", watchers=[seen])
    train(tiny_config(**few | {"envs_per_shard": 6}), run_dir=tmp_path / "b", watchers=[whole])
    for kind in (StepRecord, EpisodeRecord):
        found, expected = ([r for r in s.records if isinstance(r, kind)] for s in (whole, seen))
        assert found == expected


def test_shards_share_out_hosts_and_their_draws() -> None:
    config = sharded(envs=7, envs_per_shard=3)
    task = make_run_task(config)
    specs = plan_shards(config)
    assert [(spec.first, spec.n_envs) for spec in specs] == [
        (0, 2),
        (2, 3),
        (5, 2),
    ]
    whole = GrowthShard(plan_shards(tiny_config(envs=7))[0], task)
    drawn = [GrowthShard(spec, task).envs.growth.records.draw_seed for spec in specs]
    np.testing.assert_array_equal(np.concatenate(drawn), whole.envs.growth.records.draw_seed)


def test_actions_of_shards_are_drawn_independently() -> None:
    config = sharded()
    generators = [
        make_agent(config, slot_config(), shard=number).generator.get_state() for number in range(3)
    ]
    assert not torch.equal(generators[0], generators[1])
    assert not torch.equal(generators[1], generators[2])


def slot_config() -> Any:
    return GrowthVectorEnv(make_task("spirals"), 1).slot_config


def test_a_collection_is_a_function_of_shard_weights_and_state() -> None:
    config = sharded(envs=4)
    task, weights = make_run_task(config), make_agent(config, slot_config())
    specs = plan_shards(config)

    def rollout() -> ShardedRollout:
        made = ShardedRollout(Pool(), specs, task)
        made.set_weights(weights.weights())
        return made

    whole = rollout()
    first = whole.collect(2, Position(1, 0), is_last=False)
    state = whole.save()
    second = whole.collect(3, Position(1, 2), is_last=True)
    again = rollout()
    again.load(state, Position(1, 2))
    for expected, found in zip(second, again.collect(3, Position(1, 2), is_last=True), strict=True):
        # As text, because what was never measured is NaN.
        assert str(found.records) == str(expected.records)
        for name, tensor in expected.steps.items():
            torch.testing.assert_close(found.steps[name], tensor, rtol=0, atol=0, equal_nan=True)
    buffer = weights.make_buffer(4, 6)
    buffer.extend([chunk.steps for chunk in first])
    buffer.extend([chunk.steps for chunk in second])
    assert buffer.room == 1
    shard = first[1].steps["rewards"]
    torch.testing.assert_close(buffer.rewards[2:, :2], shard.t(), rtol=0, atol=0)
    with pytest.raises(RolloutError, match=r"3 steps of 4 .* room for 1"):
        buffer.extend([chunk.steps for chunk in second])
    with pytest.raises(RolloutError, match="2 steps of 2"):
        weights.make_buffer(4, 6).extend([first[0].steps])


def test_more_workers_than_shards_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"workers is 4, .* 3 shards .* at most 3"):
        train(sharded(), run_dir=tmp_path / "run", workers=4)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="workers is -1"):
        train(sharded(), run_dir=tmp_path / "run", workers=-1)


def test_a_pool_that_cannot_be_made_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="'nonsense'"):
        train(sharded(), run_dir=tmp_path / "run", ray_address="nonsense")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="workers is 0 and ray_address"):
        train(sharded(), run_dir=tmp_path / "run", workers=0, ray_address="auto")
    assert not (tmp_path / "run").exists()


class FailingPool(SharedPool):
    """Gives up in the end, as if its workers died again and again."""

    n_left = 0

    def run(self, jobs: Any, **options: Any) -> list[Any]:
        self.n_left -= 1
        if self.n_left <= 0:
            raise WorkerError("shard 2 of 3 ended 3 workers in a row.")
        return [job.function(lambda _: None, *job.arguments) for job in jobs]

    def start(self) -> None:
        pass


def failing_pool(n_calls: int) -> FailingPool:
    pool = FailingPool(2)
    pool.n_left = n_calls
    return pool


def test_a_run_whose_workers_gave_up_is_saved_and_says_how_to_resume(
    reference: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    with liveliness():
        with monkeypatch.context() as patch:
            patch.setattr(runs, "make_pool", lambda *_, **__: failing_pool(9))
            with pytest.raises(TrainingError, match=rf"shard 2 of 3.* saved.* resume .*{folder}"):
                train(sharded(), run_dir=folder)
        resume(folder, workers=0)
    assert run_digests(folder) == reference


def test_a_run_whose_workers_gave_up_before_it_began_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "make_pool", lambda *_, **__: failing_pool(1))
    with pytest.raises(WorkerError, match=r"in a row\.$"):
        train(sharded(), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_large_runs_use_all_cores_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "count_cores", lambda: 8)
    small, large = sharded(), sharded(rounds=10_000)
    task = make_run_task(small)
    assert make_pool(small, task).is_local
    pool = make_pool(large, task)
    assert isinstance(pool, ProcessPool)
    assert pool.n_workers == 3
    monkeypatch.setattr(workers, "count_cores", lambda: 2)
    assert make_pool(large, task).n_workers == 2
    assert make_pool(sharded(rounds=10_000, envs_per_shard=6), task).is_local
    assert make_pool(sharded(rounds=10_000, threads=2), task).is_local


def test_a_task_of_this_process_alone_is_named(
    tmp_path: Path, pool: SharedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))  # pyright: ignore[reportPrivateUsage]
    register_task("mine", lambda: make_task("spirals"), summary="a task of this process")
    with pytest.raises(TaskError, match=r"worker process cannot make task 'mine'.*module:function"):
        train(sharded(task="mine", task_options={}), run_dir=tmp_path / "run", workers=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("n_steps", "step_seconds", "expected"),
    [(24, 0.02, 24), (24, 0.045, 24), (24, 0.08, 12), (25, 0.08, 13), (3, 5.0, 1), (24, None, 1)],
)
def test_steps_are_collected_in_chunks_of_similar_size(
    n_steps: int, step_seconds: float | None, expected: int
) -> None:
    task = make_task("spirals")
    rollout = ShardedRollout(ProcessPool(1), [], task)
    rollout._step_seconds = step_seconds
    assert rollout.chunk_steps(n_steps) == expected
    assert ShardedRollout(Pool(), [], task).chunk_steps(n_steps) == 1

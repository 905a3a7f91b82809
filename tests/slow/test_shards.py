"""Growth of a model that FSDP2 shards among two processes, compared with one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.growing import rank_runs, shard_runs
from tests.growing.test_ranks import assert_close

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    scenarios = (
        shard_runs.live_sharded,
        shard_runs.shard_after_germinating,
        shard_runs.grow_sharded,
        shard_runs.reject_sharded_models,
    )
    return rank_runs.run_ranks(2, scenarios, tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="module")
def whole_lives() -> dict[str, Any]:
    return shard_runs.live_sharded()


def assert_as_one(first: dict[str, Any], second: dict[str, Any], one: dict[str, Any]) -> None:
    assert_close(second["tensors"], first["tensors"], atol=0.0)
    assert_close(first["tensors"], one["tensors"], atol=1e-5)
    for found in (first, second):
        torch.testing.assert_close(found["exported"], found["outputs"], atol=1e-9, rtol=0.0)
        assert found["unsharded"] == []


@pytest.mark.parametrize("end", ["kept", "pruned"])
@pytest.mark.parametrize("case", shard_runs.CASES, ids=lambda case: f"{case[0]} {case[1]}")
def test_a_sharded_life_ends_as_an_unsharded_one(
    case: Any, end: str, ranks: list[dict[str, Any]], whole_lives: dict[str, Any]
) -> None:
    name = f"{case[0]} {case[1]} {end}"
    first, second = (found["live_sharded"][name] for found in ranks)
    assert_as_one(first, second, whole_lives[name])
    for found in (first, second):
        assert found["is plain"]
        torch.testing.assert_close(found["loaded"], found["outputs"], atol=0.0, rtol=0.0)


def test_a_model_can_be_sharded_after_a_seed_germinated(ranks: list[dict[str, Any]]) -> None:
    first, second = (found["shard_after_germinating"] for found in ranks)
    one = shard_runs.shard_after_germinating()
    assert_as_one(first, second, one)
    assert first["problems"] == second["problems"] == one["problems"]
    assert "nan" in first["problems"][0]


def test_a_grower_of_a_sharded_model_does_and_resumes_what_one_process_does(
    ranks: list[dict[str, Any]],
) -> None:
    first, second = (found["grow_sharded"] for found in ranks)
    one = shard_runs.grow_sharded()
    assert_as_one(first, second, one)
    assert first["ops"] == second["ops"] == one["ops"]
    assert "fossilize" in one["ops"]
    assert_close(first["resumed"], first["tensors"], atol=0.0)


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("no slots", "add_slots before"),
        ("add_slots", "add_slots before"),
        ("mesh", "2 axes"),
        ("slot", "'blocks.0.block'"),
        ("units", "before fully_shard"),
        ("FSDP1", "FullyShardedDataParallel"),
        ("ema", "ema"),
        ("optimizer", "ZeroRedundancyOptimizer"),
    ],
)
def test_what_cannot_grow_is_rejected_at_construction(
    case: str, named: str, ranks: list[dict[str, Any]]
) -> None:
    for found in ranks:
        error = found["reject_sharded_models"][case]
        assert named in error
        assert "\n" not in error

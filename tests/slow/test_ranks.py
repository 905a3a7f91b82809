"""Data parallelism in more forms, and with 3 processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.growing import rank_runs
from tests.growing.test_ranks import assert_close

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[2, 3], ids=lambda n: f"{n} ranks")
def ranks(request: Any, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    scenarios = (*rank_runs.ALIKE, rank_runs.grow_with_norms, rank_runs.resume)
    return rank_runs.run_ranks(request.param, scenarios, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("scenario", rank_runs.ALIKE, ids=lambda s: s.__name__)
def test_ranks_end_equal_to_the_bit_and_as_one_process(
    scenario: Any, ranks: list[dict[str, Any]]
) -> None:
    first, *others = (found[scenario.__name__] for found in ranks)
    one = scenario()
    assert_close(first["tensors"], one["tensors"], atol=1e-6)
    for other in others:
        assert_close(other["tensors"], first["tensors"], atol=0.0)
        for name in set(one) - {"tensors"}:
            assert first[name] == other[name] == one[name]


def test_batch_norms_of_hosts_and_seeds_end_equal(ranks: list[dict[str, Any]]) -> None:
    first, *others = (found["grow_with_norms"]["tensors"] for found in ranks)
    assert any("running_mean" in name for name in first)
    for other in others:
        assert_close(other, first, atol=0.0)


def test_all_ranks_resume_alike(ranks: list[dict[str, Any]]) -> None:
    # The order in which DistributedDataParallel adds three gradients depends on its history.
    atol = 0.0 if len(ranks) == 2 else 1e-12
    for found in (found["resume"] for found in ranks):
        assert len(found) == 5
        for name, tensors in found.items():
            assert_close(tensors, found["tensors"], atol=atol)
            assert_close(tensors, ranks[0]["resume"][name], atol=0.0)


def test_ranks_with_another_number_of_batches_fail_when_they_time_out(tmp_path: Path) -> None:
    _, second = rank_runs.run_ranks(2, [rank_runs.disagree_on_batches], tmp_path, timeout=15.0)
    error = second["disagree_on_batches"]["error"]
    assert error.startswith("RanksDisagreeError: rank 1 is in end_epoch")


def test_torchrun_gives_what_one_process_gives(tmp_path: Path) -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(root), *sys.path])
    subprocess.run(
        [sys.executable, *command, "-m", "tests.growing.rank_runs", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        cwd=root,
        check=True,
        capture_output=True,
    )
    first, second = (torch.load(tmp_path / f"rank-{number}.pt") for number in range(2))
    assert_close(second["tensors"], first["tensors"], atol=0.0)
    assert_close(first["tensors"], rank_runs.grow_after_wrapping()["tensors"], atol=1e-6)

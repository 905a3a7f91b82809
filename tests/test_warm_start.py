"""The benchmark of more budget for a trained model: equal FLOPs, tuning, and its results file."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from esper.tasks.data import Samples, TaskData

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.fixture
def runs(load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return the module that trains, with few data and little training."""
    module = load("warm_start_runs")
    drawn = torch.Generator().manual_seed(0)
    centres = torch.randn(26, 16, generator=drawn)

    def samples(n: int) -> Samples:
        classes = torch.randint(26, (n,), generator=drawn)
        return Samples(centres[classes] + 0.3 * torch.randn(n, 16, generator=drawn), classes)

    data = load("growth_problems").ImageData(TaskData.of(map(samples, (512, 64, 64))))
    small = dataclasses.replace(
        module.PROBLEMS["letters"], load=lambda: data, unit=40.0, batch_size=64
    )
    monkeypatch.setitem(module.ALL_PROBLEMS, "letters", small)
    monkeypatch.setattr(module, "BASES", tmp_path / "bases")
    return module


def job(runs: Any, **fields: Any) -> Any:
    usual = {"problem": "letters", "seed": 0, "rate": 5e-3, "is_small": True}
    return runs.Job(**{**usual, **fields})


@pytest.mark.parametrize("arm", ["continue", "widen", "deepen", "both"])
def test_every_arm_spends_the_same_and_begins_with_the_trained_model(runs: Any, arm: str) -> None:
    first, again = (
        runs.run_job(job(runs, arm=arm, base="decayed", base_rate=5e-3, budgets=(0.25, 0.5)))
        for _ in range(2)
    )
    assert [{**each, "seconds": 0} for each in first] == [{**each, "seconds": 0} for each in again]
    unit = job(runs, arm=arm, budgets=()).about.unit
    for row, budget in zip(first, (0.25, 0.5), strict=True):
        assert 0.7 * budget * unit < row["gigaflops"] <= budget * unit
    (scratch,) = runs.run_job(job(runs, arm="scratch", size="wide", budgets=(0.5,)))
    assert first[1]["loss"] < scratch["loss"]


def test_grown_models_have_the_size_of_those_from_scratch(runs: Any) -> None:
    for arm, size in (("widen", "wide"), ("deepen", "deep"), ("both", "both")):
        (grown,) = runs.run_job(
            job(runs, arm=arm, base="constant", base_rate=5e-3, budgets=(0.25,))
        )
        (scratch,) = runs.run_job(job(runs, arm="scratch", size=size, budgets=(0.25,)))
        assert grown["parameters"] == scratch["parameters"]


def test_rates_are_chosen_on_another_seed_and_finished_runs_are_not_repeated(
    load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = load("warm_start")
    done: list[Any] = []

    def run(job: Any) -> list[dict[str, Any]]:
        done.append(job)
        loss = abs(job.rate - 1e-3) + 0.01 * job.seed + 0.1 * (job.size == "both")
        row = {"loss": loss, "accuracy": 50.0 - loss, "parameters": 7}
        row |= {"seconds": 1.0, "gigaflops": 1.0, "prose": loss, "trained": 3}
        budgets = (1.0, 1.0) if job.arm == "base" else job.budgets
        return [{**row, "budget": budget} for budget in budgets]

    monkeypatch.setattr(module, "run_job", run)
    path = tmp_path / "runs.jsonl"

    def campaign(*, is_report: bool) -> Any:
        return module.Campaign(path, is_small=False, only="letters", is_report=is_report)

    campaign(is_report=False).run_all()
    assert len(set(done)) == len(done)
    reported = [each for each in done if each.seed != module.TUNING_SEED]
    assert {each.seed for each in reported} == set(range(5))
    assert {each.rate for each in reported if each.base} == {5e-3 * 0.3}
    assert {each.size for each in reported if each.arm == "scratch"} == {"wide"}
    n_done = len(done)
    path.write_text(path.read_text()[:-9])  # cut off by a kill
    for _ in range(2):
        campaign(is_report=False).run_all()
    text = module.report(campaign(is_report=True))
    assert len(done) == n_done + 1
    assert text.count("| +200% |") == 2
    assert text.count("better. 5 seeds. ") == 2
    with pytest.raises(LookupError):
        campaign(is_report=True).forgetting(0)

"""The evidence on the prior's tasks, from blocks of tasks to the report."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tamiyo.fresh_controllers import fresh_controller

from esper.environment import GrowthVectorEnv, run_episodes
from esper.lifecycle.factored_actions import Op
from esper.tamiyo import NoGrowth, save_controller
from esper.tasks import make_task

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[2] / "benchmarks" / "evidence" / "prior"
MODULES = ("blocks", "report", "run")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the modules of the evidence, which share their names with others."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = {name: importlib.import_module(name) for name in MODULES}
    for name, module in found.items():
        monkeypatch.setitem(sys.modules, name, module)  # removed at the end
    few = {
        family: dict(list(treatments.items())[:2])
        for family, treatments in found["blocks"].families().items()
    }
    for module in found.values():
        monkeypatch.setattr(module, "families", lambda: few)
    return found


def make_envs(n_envs: int, price: float = 0.0) -> GrowthVectorEnv:
    return GrowthVectorEnv(
        make_task("prior", price=price),
        n_envs,
        purpose="evaluation",
        final_split="test",
        autoreset=False,
    )


def test_the_whole_evidence_on_six_tasks(
    modules: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for seed in range(2):
        saved = replace(fresh_controller(seed=seed), name=f"seed-{seed}")
        save_controller(saved, tmp_path / f"seed-{seed}")
    words = ["run.py", "--controllers", *(str(tmp_path / f"seed-{seed}") for seed in range(2))]
    words += ["--tasks", "6", "--tuning-tasks", "4", "--prices", "0", "0.3", "--processes", "1"]
    words += ["--work", str(tmp_path / "work"), "--results", str(tmp_path / "results")]
    monkeypatch.setattr(sys, "argv", words)
    modules["run"].main()
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "work/blocks").iterdir()}
    text = (tmp_path / "results/results.md").read_text()
    assert "It adapts:" in text
    assert "## Headroom" in text
    assert (tmp_path / "results/differences.png").stat().st_size > 0
    assert "left" in capsys.readouterr().out

    results = json.loads((tmp_path / "results/results.json").read_text())
    arms = results["prices"]["0.3"]
    assert set(arms) == set(modules["report"].LABELS)
    assert np.shape(arms["learned"]["score"]) == np.shape(arms["wrong task"]["score"]) == (2, 6)
    plain = run_episodes(make_envs(6), NoGrowth(), seed=modules["blocks"].FIRST["evaluation"])
    np.testing.assert_allclose(arms["no-growth"]["score"], plain.scores[None], atol=1e-4)
    np.testing.assert_allclose(arms["no-growth"]["flops"], 1.0, atol=1e-4)

    modules["run"].main()
    assert files == {path: path.stat().st_mtime_ns for path in files}
    assert "left" not in capsys.readouterr().out


def test_results_at_a_share_of_the_budget_are_those_of_stopping_there(
    modules: dict[str, Any],
) -> None:
    blocks, envs, seed = modules["blocks"], make_envs(3, price=0.1), 100_000
    result = blocks._run(make_envs(3), NoGrowth(), seed)
    for stop, share in list(enumerate(blocks.STOPS))[:4:3]:
        for host, budget in enumerate(result["budget"]):
            after = int(np.ceil(round(share * budget, 6)))
            alone = run_episodes(envs, NoGrowth(finish_after=after), seed=seed)
            assert alone.n_epochs[host] == after
            assert result["score"][host][stop] == pytest.approx(alone.scores[host], abs=1e-5)
            assert result["flops"][host][stop] == pytest.approx(alone.flops[host], abs=1e-5)


def test_treatments_that_finish_are_run_where_that_is_legal(modules: dict[str, Any]) -> None:
    for family in modules["blocks"].families():
        for price in (0.0, 0.3):
            envs = make_envs(2, modules["blocks"].run_price(family, price))
            envs.reset(seed=0)
            may_finish = bool(envs.masks["op"][:, Op.FINISH].all())
            # Schedules never finish: they are read at shares of the budget.
            assert may_finish == (price > 0.0 and family in ("heuristic", "random"))


def test_a_host_gets_the_actions_of_another_host_like_it(modules: dict[str, Any]) -> None:
    envs = make_envs(12)
    envs.reset(seed=0)
    others = modules["blocks"].pair_tasks(envs)
    assert sorted(others.tolist()) == list(range(12))
    assert (others != np.arange(12)).all()


@pytest.mark.parametrize(
    ("words", "named"),
    [(["--tasks", "1"], "tasks"), (["--prices", "-1"], "-1"), (["--runs", "nowhere"], "nowhere")],
)
def test_wrong_options_are_one_line(
    modules: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    named: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", *words])
    with pytest.raises(SystemExit) as stopped:
        modules["run"].main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert named in error
    assert error.count("\n") == 1

"""The report on the prior's tasks: choices, comparisons and headroom against brute force."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "evidence" / "prior"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module, which shares its name with other reports."""
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("prior_report", FOLDER / "report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(importlib.sys.modules, "prior_report", module)
    spec.loader.exec_module(module)
    return module


def columns(seed: int, *, n_tasks: int = 8, n_stops: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    names = ("score", "validation", "flops")
    kinds = np.array(["rings", "tree"] * (n_tasks // 2))
    return {name: rng.random((n_tasks, n_stops)) for name in names} | {"kind": kinds}


@pytest.mark.parametrize("price", [0.0, 0.3, 10.0])
def test_the_best_treatment_has_the_best_mean_return(report: Any, price: float) -> None:
    found = {name: columns(seed) for seed, name in enumerate("abc")}
    means = {
        (name, stop): np.mean(
            [
                s - price * f
                for s, f in zip(one["score"][:, stop], one["flops"][:, stop], strict=True)
            ]
        )
        for name, one in found.items()
        for stop in (range(3) if price else [2])  # at price 0 no host may stop early
    }
    choice = report.best_choice(found, price)
    assert (choice.name, choice.stop) == max(means, key=means.__getitem__)


def arm(report: Any, mean: float, n_runs: int, seed: int, n_tasks: int = 200) -> Any:
    rng = np.random.default_rng(seed)
    score = mean + 0.01 * rng.standard_normal((n_runs, n_tasks))
    return report.ArmResults(score, np.ones((n_runs, n_tasks)))


def test_comparisons_are_paired_by_task_and_corrected_together(report: Any) -> None:
    results = {
        price: {
            "learned": arm(report, 0.6, 5, 0),
            "fixed": arm(report, 0.5, 1, 1),
            "shuffled": arm(report, 0.6, 5, 2),
            "no-growth": arm(report, 0.7, 1, 3),
        }
        for price in (0.0, 0.1)
    }
    found = report.compare(results)
    assert [(one.arm, one.price) for one in found] == [
        (name, price) for name in ("fixed", "no-growth", "shuffled") for price in (0.0, 0.1, "all")
    ]
    for one in found:
        arms = results[0.0]
        own, other = arms["learned"].score, arms[one.arm].score
        wanted = np.mean(
            [[own[r, n] - other[r % len(other), n] for n in range(200)] for r in range(5)]
        )
        assert one.difference.mean == pytest.approx(wanted)
        n_larger = sum(each.p >= one.p for each in found)
        assert one.corrected_p <= min(1.0, len(found) * one.p) + 1e-12
        assert one.corrected_p >= min(1.0, n_larger * one.p) - 1e-12
    verdicts = {one.arm: one.verdict for one in found}
    assert verdicts == {"fixed": "above", "no-growth": "below", "shuffled": "not shown"}


def test_a_claim_needs_every_arm_at_every_price(report: Any) -> None:
    strong = {name: arm(report, 0.5, 1, n) for n, name in enumerate(("fixed", "heuristic"), 1)}
    strong |= {"learned": arm(report, 0.6, 5, 0), "progressive": arm(report, 0.5, 1, 9)}
    weak = strong | {"heuristic": arm(report, 0.6, 1, 7)}
    sentences = report.make_claims(
        report.compare({0.0: strong, 0.1: strong}), {0.0: strong, 0.1: strong}
    )
    assert sentences[0].startswith("It adapts: shown")
    assert sentences[1].startswith("It uses what it sees: not shown")
    results = {0.0: strong, 0.1: weak}
    sentence = report.make_claims(report.compare(results), results)[0]
    assert "not shown" in sentence
    assert "heuristic at price 0.1" in sentence
    assert "at price 0:" not in sentence


def test_a_setting_for_a_group_is_chosen_on_its_other_tasks(report: Any) -> None:
    # Setting 0 is best for group a and setting 1 for group b, in every task but the last of each.
    groups = np.array(["a", "a", "b", "b", "b", "b"])
    judge = np.where(groups == "a", [[1.0], [0.0]], [[0.0], [1.0]])[..., None]
    np.testing.assert_array_equal(report.choose_by_group(judge, groups), np.ones(6))
    # With noise alone the choice gains nothing, on average over many tasks.
    noise = np.random.default_rng(0).standard_normal((5, 4000, 2))
    chosen = report.choose_by_group(noise, np.array(["a", "b"] * 2000))
    assert abs(chosen.mean()) < 0.06


def test_headroom_is_zero_where_all_schedules_are_equal(report: Any) -> None:
    one = columns(0)
    one |= {
        name: np.repeat(one[name][:, -1:], 3, axis=1) for name in ("score", "validation", "flops")
    }
    rows = report.measure_headroom({"a": one, "b": one}, report.Choice("b", 1), price=0.1)
    assert [(row.kind, row.n_tasks) for row in rows] == [("all", 8), ("rings", 4), ("tree", 4)]
    for row in rows:
        for gain in (row.own, row.lucky, row.by_kind):
            assert gain.mean == pytest.approx(0.0)


def test_headroom_of_schedules_that_suit_half_of_the_tasks(report: Any) -> None:
    # Tasks alternate; schedule a gives 1 point where b gives 0, and the other way round.
    good = np.tile([[1.0], [0.0]], (20, 1))
    kinds = np.array(["rings", "tree"] * 20)
    both = {
        name: {"score": score, "validation": score, "flops": np.zeros((40, 1)), "kind": kinds}
        for name, score in (("a", good), ("b", 1.0 - good))
    }
    rows = {
        row.kind: row for row in report.measure_headroom(both, report.Choice("a", 0), price=0.0)
    }
    assert [rows[kind].own.mean for kind in ("all", "rings", "tree")] == [0.5, 0.0, 1.0]
    assert [rows[kind].by_kind.mean for kind in ("all", "rings", "tree")] == [0.5, 0.0, 1.0]

"""The evidence on real data: same training for all arms, results worked by hand, resuming.

Nothing real is read; data are made up.
"""

from __future__ import annotations

import importlib
import math
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from esper.errors import SlotError

FOLDER = Path(__file__).parents[1] / "benchmarks" / "evidence" / "real"
MODULES = ("arms", "download", "problems", "rda", "report", "run", "sets")


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give the modules of the benchmark by name, and forget them afterwards."""
    monkeypatch.syspath_prepend(str(FOLDER))
    for name in MODULES:
        monkeypatch.delitem(importlib.import_module("sys").modules, name, raising=False)
    yield importlib.import_module
    for name in MODULES:
        importlib.import_module("sys").modules.pop(name, None)


def made_up(real: Any, n: int = 200) -> Any:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(n, 4, generator=generator)
    return real("sets").RealSet(inputs, (inputs[:, 0] * inputs[:, 1] > 0).long(), n_classes=2)


def short(real: Any, **changes: Any) -> Any:
    return replace(real("problems").PROBLEMS["vowel"], epochs=3, **changes)


def test_growth_that_waits_is_plain_training(real: Any) -> None:
    arms, data = real("arms"), made_up(real)
    plain = arms.train_width(short(real), data, seed=5, multiple=1)
    grown = arms.grow_model(short(real), data, seed=5, controller="no-growth")
    assert (grown.validation, grown.test, grown.epoch) == (
        plain.validation,
        plain.test,
        plain.epoch,
    )
    assert grown.parameters == plain.parameters
    # Esper validates once more than plain training, before it starts.
    assert plain.flops <= grown.flops < 1.2 * plain.flops


def test_the_given_size_of_a_race_is_plain_training(real: Any) -> None:
    arms, data = real("arms"), made_up(real)
    problem = short(real)
    plain = arms.train_width(problem, data, seed=5, multiple=1)
    race = arms.grow_model(problem, data, seed=5, controller="race")
    size = next(size for size in race.details["sizes"] if size[0] == 1)
    assert size[1] <= problem.epochs
    assert race.parameters >= plain.parameters
    assert plain.details["half_seconds"] < plain.seconds


def test_flops_of_an_mlp_are_those_of_its_matrices(real: Any) -> None:
    data = made_up(real)
    outcome = real("arms").train_width(short(real), data, seed=0, multiple=2)
    forward = 2 * (4 * 16 + 16 * 16 + 16 * 2)
    backward = 2 * forward - 2 * 4 * 16  # the inputs need no gradient
    assert outcome.flops == pytest.approx(3 * 120 * (forward + backward) + 4 * 40 * forward)


def test_splits_are_disjoint_and_standardized_by_training_samples_alone(real: Any) -> None:
    sets = real("sets")
    inputs = torch.arange(100.0)[:, None].repeat(1, 2)
    inputs[7, 1] = float("nan")
    data = sets.RealSet(inputs, torch.zeros(100, dtype=torch.long), n_classes=2)
    splits = sets.split(data, 1, max_training=1_000)
    parts = [splits.train[0], splits.validation[0], splits.test[0]]
    assert [len(each) for each in parts] == [60, 20, 20]
    assert len(torch.cat(parts)[:, 0].unique()) == 100
    assert float(parts[0][:, 0].mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(parts[0][:, 0].std(correction=0)) == pytest.approx(1.0)
    assert not torch.cat(parts).isnan().any()
    few = sets.split(data, 1, max_training=30)
    assert [len(each[0]) for each in (few.train, few.validation, few.test)] == [30, 10, 60]


def test_factors_become_columns_and_missing_targets_are_left_out(real: Any) -> None:
    vector = real("rda").Vector
    colour, is_big, kind = (
        vector(np.array([1.0, 3.0, np.nan])),
        vector(np.ones(3)),
        vector(np.array([2.0, np.nan, 1.0])),
    )
    colour.attributes = {"levels": vector(["red", "green", "blue"])}
    kind.attributes = {"levels": vector(["a", "b"])}
    frame = {"colour": colour, "big": is_big, "kind": kind}
    found = real("sets").frame_set(frame, "kind")
    assert found.inputs.tolist() == [[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]]
    assert found.targets.tolist() == [1, 0]
    assert found.n_classes == 2


def written_by_r() -> bytes:
    """Return a file that holds ``t <- data.frame(x = c(1.5, NA), f = factor(c("b", NA)))``."""

    def integers(*values: int) -> bytes:
        return struct.pack(f">{len(values)}i", *values)

    def text(value: str) -> bytes:
        return integers(0x40009, len(value)) + value.encode()

    def symbol(value: str) -> bytes:
        return integers(1) + text(value)

    def strings(*values: str) -> bytes:
        return integers(16, len(values)) + b"".join(map(text, values))

    pair, end = integers(0x402), integers(254)
    numbers = integers(14, 2) + struct.pack(">2d", 1.5, float("nan"))
    levels = pair + symbol("levels") + strings("b")
    factor = (
        integers(0x200 | 13, 2, 1, -(2**31)) + levels + pair + symbol("class") + strings("factor")
    )
    # A symbol that was read before is a reference: "class" is the third one.
    names = pair + symbol("names") + strings("x", "f")
    frame = integers(0x200 | 19, 2) + numbers + factor + end + names
    frame += pair + integers(0xFF | 3 << 8) + strings("data.frame") + end
    return b"RDX2\nX\n" + integers(2, 0, 0) + pair + symbol("t") + frame + end


def test_data_frames_of_r_are_read(real: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.rda"
    path.write_bytes(importlib.import_module("gzip").compress(written_by_r()))
    frame = real("rda").read_frame(path)
    np.testing.assert_array_equal(frame["x"].values, [1.5, np.nan])
    np.testing.assert_array_equal(frame["f"].values, [1.0, np.nan])
    assert frame["x"].levels is None
    assert frame["f"].levels == ["b"]
    assert frame["f"].attributes["class"].values == ["factor"]


def test_every_model_gets_larger_with_its_width(real: Any) -> None:
    sets = real("sets")
    for problem in real("problems").PROBLEMS.values():
        data = sets.RealSet(torch.zeros(2, 12), torch.zeros(2), n_classes=3)
        sizes = [
            sum(each.numel() for each in problem.make(data, multiple).parameters())
            for multiple in real("arms").WIDTHS
        ]
        assert sizes == sorted(set(sizes)), problem.name


def row(problem: str, seed: int, arm: str, validation: float, test: float, **more: Any) -> Any:
    details = {"half": 0.6, "half_seconds": 0.5} if arm == "x1" else {}
    facts = {"problem": problem, "setup": "s", "seed": seed, "arm": arm, "details": details}
    counts = {"parameters": 10, "seconds": 1.0}
    return {**facts, **counts, "validation": validation, "test": test, **more}


def accuracies(problem: str, seed: int, *, grown: float = 0.85) -> list[Any]:
    return [
        row(problem, seed, "x1", 0.70, 0.70, seconds=1.0, parameters=10),
        row(problem, seed, "x2", 0.80, 0.82, seconds=2.0, parameters=20),
        row(problem, seed, "x4", 0.90, 0.80, seconds=4.0, parameters=40),  # validation chooses
        row(problem, seed, "x8", 0.85, 0.95, seconds=8.0, parameters=80),
        row(problem, seed, "race", 0.85, grown, seconds=3.0, parameters=20),
    ]


def compared(real: Any, rows: list[Any], **changes: Any) -> Any:
    return real("report").compare(rows, short(real, **changes), ["race"])


def test_gains_and_costs_worked_by_hand(real: Any) -> None:
    found = compared(real, accuracies("vowel", 0) + accuracies("vowel", 1))
    np.testing.assert_allclose(found.gain("race"), [15.0, 15.0])
    np.testing.assert_allclose(found.gain("race", "x4"), [5.0, 5.0])
    np.testing.assert_allclose(found.gain("search"), [10.0, 10.0])
    np.testing.assert_allclose(found.gain("two sizes"), [10.0, 10.0])
    np.testing.assert_allclose(found.gain("half the epochs"), [-10.0, -10.0])
    assert (found.times("search"), found.times("two sizes")) == (15.0, 5.0)
    assert found.times("half the epochs") == 0.5
    assert found.size("race") == pytest.approx(2.0)
    assert found.sufficient == "x8"


def test_seeds_whose_arms_were_not_timed_count_for_scores_alone(real: Any) -> None:
    rows = accuracies("vowel", 0) + [{**each, "seconds": None} for each in accuracies("vowel", 1)]
    for each in rows[5:]:
        each["details"] = {**each["details"], "half_seconds": None}
    found = compared(real, rows)
    assert found.n_seeds == 2
    assert (found.times("race"), found.times("search"), found.times("two sizes")) == (
        3.0,
        15.0,
        5.0,
    )
    assert found.times("half the epochs") == 0.5
    assert math.isnan(compared(real, rows[5:]).times("race"))


def test_two_sizes_are_the_smaller_one_within_a_point(real: Any) -> None:
    rows = [row("vowel", 0, arm, 0.5, 0.5) for arm in ("x2", "x8", "race")]
    rows += [row("vowel", 0, "x1", 0.70, 0.60), row("vowel", 0, "x4", 0.709, 0.80)]
    assert compared(real, rows).gain("two sizes")[0] == 0.0
    rows[-1]["validation"] = 0.711
    assert compared(real, rows).gain("two sizes")[0] == pytest.approx(20.0)
    rows[-2:] = [row("vowel", 0, "x1", 1.0, 1.0), row("vowel", 0, "x4", 0.98, 0.9)]
    assert compared(real, rows, metric="mse").gain("two sizes")[0] == pytest.approx(10.0)


def test_gains_in_loss_are_percent_of_the_given_models(real: Any) -> None:
    rows = [row("vowel", 0, f"x{k}", 2.0 - k / 10, 2.0 - k / 10) for k in (1, 2, 4, 8)]
    rows.append(row("vowel", 0, "race", 1.71, 1.71))
    found = compared(real, rows, metric="mse")
    np.testing.assert_allclose(found.gain("race"), [10.0])
    assert found.arms["search"].test[0] == pytest.approx(1.2)


def test_seeds_with_a_missing_or_failed_arm_do_not_count(real: Any) -> None:
    rows = accuracies("vowel", 0) + accuracies("vowel", 1)[:-1] + accuracies("vowel", 2)[1:]
    rows.append({**row("vowel", 1, "race", 0.0, 0.0), "error": "SlotError: none"})
    assert compared(real, rows).n_seeds == 1
    assert compared(real, rows[-1:]) is None


def test_what_is_reached_and_missed_is_said(real: Any) -> None:
    report = real("report")

    def aims(grown: float) -> list[str]:
        found = [
            report.compare(
                [row for seed in (0, 1) for row in accuracies(f"p{k}", seed, grown=grown)],
                short(real, name=f"p{k}", data=f"d{k}"),
                ["race"],
            )
            for k in range(12)
        ]
        return report.make_aims(found, "race").splitlines()[2:]

    score, worse, share, seconds, *_ = good = aims(0.85)
    assert "+5.00 [+5.00, +5.00] | yes" in score
    assert "none | none | yes" in worse
    assert "150% | yes" in share
    assert "20% | yes" in seconds
    assert "2.0x | 0.25x" not in "".join(good)
    bad = aims(0.70)
    assert "-10.00 [-10.00, -10.00] | **no**" in bad[0]
    assert "p0 (-10.0)" in bad[1]
    assert "0% | **no**" in bad[2]


def test_models_of_one_data_set_are_drawn_together(real: Any) -> None:
    tables = [np.full((2, 1), value) for value in (0.0, 1.0)]
    drawn = real("report").resample(tables, ["dna", "dna"])
    assert np.ptp(drawn) == 0.0
    apart = real("report").resample(tables, ["dna", "fashion"])
    assert set(np.unique(apart)) == {0.0, 0.5, 1.0}


def test_what_is_done_is_not_trained_again_and_failures_are(
    real: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms, run = real("arms"), real("run")
    outcome = arms.Outcome(
        validation=0.5, test=0.5, epoch=1, flops=1.0, parameters=2, seconds=0.1, details={}
    )
    calls: list[str] = []

    def train(*, fails: bool = False) -> Any:
        calls.append("train")
        if fails:
            raise SlotError("no block can have a slot")
        return outcome

    key = ("vowel", "s", 0, "x1")
    failed = run.Runs(tmp_path).ensure(key, lambda: train(fails=True))
    assert failed["error"] == "SlotError: no block can have a slot"
    first = run.Runs(tmp_path).ensure(key, train)
    again = run.Runs(tmp_path).ensure(key, train)
    assert first == again
    assert len(calls) == 2
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 2
    runs = run.Runs(tmp_path)
    assert [each["test"] for each in runs.rows({"vowel": "s"})] == [0.5]
    assert runs.rows({"vowel": "other"}) == []
    assert "SlotError" in capsys.readouterr().out


def test_the_report_is_written_with_its_figure(real: Any, tmp_path: Path) -> None:
    rows = accuracies("vowel", 0) + accuracies("vowel", 1)
    problems = [short(real), short(real, name="other")]
    text = real("report").make_report(rows, problems, ["race"], tmp_path)
    assert (tmp_path / "results.md").read_text() == text
    assert (tmp_path / "gains.png").stat().st_size > 1_000
    assert "| vowel | MLP, 2 hidden layers of 8 | accuracy | 70.0 | 82.0 | 80.0 | 95.0 |" in text
    assert "Without results: other" in text
    fresh = [problems[0], short(real, name="new", is_fresh=True)]
    text = real("report").make_report([*rows, *accuracies("new", 0)], fresh, ["race"], tmp_path)
    assert "curves of 1 of them; 1 were added afterwards" in text
    assert text.count("| **`esper.grow`** |") == 2

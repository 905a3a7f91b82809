"""The comparison view reads the summary and evaluations, and reports damaged files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esper.evidence.claims import verdict_sentences, weigh
from esper.evidence.files import EvidenceFile
from esper.reports.views import comparison_view, evaluations
from esper.telemetry.records import EvaluationRecord
from esper.training.comparison import ArmResults, Comparison, compare_arms, difference_in_words
from tests.evidence.examples import make_arm, make_evidence, make_hosts
from tests.reports.views.samples import stored, trial
from tests.reports.views.simulation import simulate


def make_summary(n: int = 20) -> Comparison:
    rng = np.random.default_rng(0)
    arms = {
        name: ArmResults(
            returns=level + 0.05 * rng.random(n),
            scores=level + 0.05 * rng.random(n),
            flops=rng.random(n),
            n_epochs=rng.random(n),
            host_parameters=np.full(n, 100.0),
            seed_parameters=rng.integers(0, 2, n) * 10.0,
        )
        for name, level in (("learned", 0.7), ("wait", 0.5), ("fixed", 0.7))
    }
    return compare_arms(arms)


def test_the_summary_is_shown_in_numbers_and_words(tmp_path: Path) -> None:
    summary = make_summary()
    (tmp_path / "summary.json").write_text(json.dumps(summary.to_json()), "utf-8")
    found = comparison_view(tmp_path)
    assert found is not None
    values: dict[str, Any] = summary.to_json()
    assert (found["n_hosts"], found["split"]) == (20, "test")
    assert found["arms"] == list(values["arms"])
    for one, difference in zip(found["differences"], summary.differences, strict=True):
        assert one["ep_rew_words"] == difference_in_words(difference.ep_rew)
        assert one["score_words"] == difference_in_words(difference.score)
        assert one["is_sure"] == difference.ep_rew.excludes_zero
    assert [one["score"] for one in found["differences"]] == [
        one["score"] for one in values["differences"]
    ]
    assert found["differences"][0]["score_words"].startswith("better")
    assert found["sentences"] == list(summary.sentences)
    assert (found["evaluations"], found["problems"]) == ([], [])
    json.dumps(found, allow_nan=False)


def test_evaluations_are_found_in_the_folder_and_below(tmp_path: Path) -> None:
    evidence = make_evidence(
        make_arm("learned", make_hosts(2, 30, gain=0.1), kind="learned"),
        make_arm("wait", make_hosts(1, 30, seed=1)),
    )
    text = EvidenceFile(entries=(evidence,)).to_text()
    for place in (tmp_path, tmp_path / "evaluation", tmp_path / "checkpoints" / "deep"):
        place.mkdir(parents=True, exist_ok=True)
        (place / "evaluation.json").write_text(text, "utf-8")
    found = comparison_view(tmp_path)
    assert found is not None
    assert (found["n_hosts"], found["arms"], found["problems"]) == (None, [], [])
    files = [one["file"] for one in found["evaluations"]]
    assert files == ["evaluation.json", "evaluation/evaluation.json"]
    for one in found["evaluations"]:
        assert one["sentences"] == list(verdict_sentences(evidence))
        (difference,) = one["differences"]
        (finding,) = weigh(evidence)
        assert difference["score"]["mean"] == finding.score.mean
        assert (difference["against"], difference["is_sure"]) == ("wait", True)
        assert (one["task"], one["price"]) == (evidence.task, evidence.price)
        assert (one["runs"], one["n_hosts"]) == (list(evidence.runs), evidence.n_hosts)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"n_hosts": 3}', '{"entries": [{}]}', "7"])
@pytest.mark.parametrize("name", ["summary.json", "evaluation.json"])
def test_a_damaged_file_is_named_and_the_rest_shown(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(make_summary(2).to_json()), "utf-8")
    (tmp_path / name).write_text(text, "utf-8")
    found = comparison_view(tmp_path)
    assert found is not None
    (problem,) = found["problems"]
    assert problem.startswith(f"{name} is damaged")
    assert "\n" not in problem
    assert bool(found["arms"]) == (name != "summary.json")


def test_a_folder_without_results_has_no_comparison(tmp_path: Path) -> None:
    assert comparison_view(tmp_path) is None
    assert comparison_view(tmp_path / "nowhere") is None


def test_evaluations_are_returned_as_recorded(tmp_path: Path) -> None:
    broken = trial(9, "learned", score_mean=float("nan"), flops_mean=float("inf"))
    records = [*simulate(6), broken]
    recorded = [one for one in records if isinstance(one, EvaluationRecord)]
    with stored(tmp_path, records) as telemetry:
        found = evaluations(telemetry)
    json.dumps(found, allow_nan=False)
    assert (found[-1]["score_mean"], found[-1]["flops_mean"]) == (None, None)
    for one, record in zip(found[:-1], recorded[:-1], strict=True):
        assert one == {name: getattr(record, name) for name in one}

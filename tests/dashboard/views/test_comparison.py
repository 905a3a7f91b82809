"""The comparison view reads the summary and evaluations, and reports damaged files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from esper.dashboard.views import comparison_view
from esper.results.arms import LABELS
from esper.results.evidence import Evidence
from esper.results.files import evidence_text
from esper.results.findings import weigh
from esper.results.sentences import verdict_sentences
from esper.statistics import nested_interval
from tests.evidence.examples import make_arm, make_evidence, make_hosts


def make_summary(n: int = 20) -> Evidence:
    rng = np.random.default_rng(0)
    arms = (
        make_arm(name, level + 0.05 * rng.random((1, n)), label=LABELS[name], grown_share=0.5)
        for name, level in (("learned", 0.7), ("no-growth", 0.5), ("fixed", 0.7))
    )
    return make_evidence(*arms, notes=("A note.",))


def write(path: Path, evidence: Evidence) -> None:
    path.write_text(evidence_text([evidence]), "utf-8")


def test_the_summary_is_shown_in_numbers_and_words(tmp_path: Path) -> None:
    summary = make_summary()
    write(tmp_path / "summary.json", summary)
    found = comparison_view(tmp_path)
    assert found is not None
    assert (found["n_hosts"], found["split"]) == (20, "test")
    for view, arm in zip(found["arms"], summary.arms, strict=True):
        assert (view["name"], view["flops"]) == (arm.name, pytest.approx(arm.flops.mean()))
        assert view["ep_rew"] == asdict(nested_interval(arm.returns))
        assert view["score"] == asdict(nested_interval(arm.score))
        assert (view["host_parameters"], view["seed_parameters"]) == (950.0, 50.0)
    for view, one in zip(found["differences"], weigh(summary), strict=True):
        assert (view["against"], view["label"]) == (one.against, LABELS[one.against])
        assert view["ep_rew"] == asdict(one.returns)
        assert view["is_sure"] == one.is_sure_difference
    said = [*found["sentences"], *(one["sentence"] for one in found["differences"])]
    assert [*said, *found["notes"]] == list(summary.sentences)
    assert (found["evaluations"], found["problems"]) == ([], [])
    json.dumps(found, allow_nan=False)


def test_evaluations_are_found_in_the_folder_and_below(tmp_path: Path) -> None:
    evidence = make_evidence(
        make_arm("learned", make_hosts(3, 30, gain=0.1), kind="learned"),
        make_arm("no-growth", make_hosts(1, 30, seed=1)),
    )
    text = evidence_text([evidence])
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
        assert (difference["against"], difference["is_sure"]) == ("no-growth", True)
        assert (one["task"], one["price"]) == (evidence.task, evidence.price)
        assert (one["runs"], one["n_hosts"]) == (list(evidence.runs), evidence.n_hosts)
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"n_hosts": 3}', '{"entries": [{}]}', "7"])
@pytest.mark.parametrize("name", ["summary.json", "evaluation.json"])
def test_a_damaged_file_is_named_and_the_rest_shown(tmp_path: Path, name: str, text: str) -> None:
    write(tmp_path / "summary.json", make_summary(2))
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

"""A model card repeats what its files say and claims nothing that they do not support."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from esper.evidence.claims import weigh
from esper.evidence.files import EvidenceFile
from esper.evidence.model_card import NOT_EVALUATED, write_card
from esper.evidence.results import Evidence
from esper.tamiyo import save_controller
from esper.tamiyo.controllers.saved import facts_of
from esper.training.lookup import controller_of
from esper.training.run import Run
from tests.evidence.examples import make_arm, make_evidence, make_hosts
from tests.tamiyo.fresh_controllers import fresh_controller

TRANSFER = "Transfer to other tasks, without retraining"
TOOL = Path(__file__).parents[2] / "tools/write_model_card.py"


def evidence(task: str = "spirals", *, gain: float = 0.05) -> Evidence:
    """Return results that beat one arm and tie with another."""
    plain = make_hosts(3, 256)
    return make_evidence(
        make_arm("learned", plain + gain, kind="learned", grown_share=0.5, tuning_runs=900),
        make_arm("fixed", plain.mean(0, keepdims=True), kind="tuned", tuning_runs=70),
        make_arm("twin", (plain + gain).mean(0, keepdims=True), kind="tuned", tuning_runs=70),
        task=task,
        runs=("fresh", "other", "third"),
    )


def section(card: str, title: str) -> str:
    """Return the text under a heading."""
    return card.split(f"## {title}\n")[1].partition("\n## ")[0]


def test_claims_are_those_of_the_evaluation_under_the_right_heading() -> None:
    measured = evidence()
    findings = weigh(measured)
    assert {one.is_claim for one in findings} == {True, False}
    card = write_card(facts_of(fresh_controller()), [EvidenceFile(entries=(measured,))])
    shown, not_shown = (section(card, f"What it was {what}shown to do") for what in ("", "not "))
    for one in findings:
        sentence = one.sentence[1:]
        assert (sentence in shown) == one.is_claim
        assert (sentence in not_shown) != one.is_claim
    assert "256 hosts" in shown
    assert "fresh, other and third" in shown
    assert "run fresh" in shown
    assert "No other task" in section(card, TRANSFER)


def test_evaluations_with_different_options_are_listed_separately() -> None:
    measured = [replace(evidence(), task_options={"host": host}) for host in ("mlp", "cnn")]
    files = [EvidenceFile(entries=(one,)) for one in (*measured, replace(measured[0], price=0.5))]
    card = write_card(facts_of(fresh_controller()), files)
    for title in ("What it was shown to do", "What it was not shown to do"):
        lines = re.findall("^On .*$", section(card, title), re.MULTILINE)
        assert lines == [
            f"On `spirals`, host mlp, at price {measured[0].price:g}:",
            f"On `spirals`, host cnn, at price {measured[0].price:g}:",
            "On `spirals`, host mlp, at price 0.5:",
        ]
    assert section(card, "What it was shown to do").count("256 hosts of spirals") == 2


def test_another_task_is_listed_under_transfer() -> None:
    file = EvidenceFile(entries=(evidence("digits"),))
    card = write_card(facts_of(fresh_controller()), [file])
    transfer = section(card, TRANSFER)
    assert "`digits`" in transfer
    for one in weigh(file.entries[0]):
        assert one.sentence[1:] in transfer
    assert NOT_EVALUATED in section(card, "What it was shown to do")


def test_without_an_evaluation_nothing_is_claimed() -> None:
    card = write_card(facts_of(fresh_controller()), [])
    for title in ("What it was shown to do", "What it was not shown to do"):
        assert NOT_EVALUATED in section(card, title)
    assert "better" not in card


def test_the_numbers_of_training_are_those_of_the_run(done_run: Run) -> None:
    facts, config = facts_of(controller_of(done_run)), done_run.config
    training = section(write_card(facts, []), "How it was trained")
    assert f"{config.rounds} rounds of {config.envs} hosts and {config.n_steps} steps" in training
    assert f"{config.rounds * config.envs * config.n_steps:,} host epochs" in training
    assert facts["origin"]["command"] in training


def test_every_number_of_a_claim_is_in_the_files() -> None:
    rng = np.random.default_rng(3)
    measured = evidence(gain=float(rng.uniform(0.02, 0.1)))
    finding = next(one for one in weigh(measured) if one.is_claim)
    card = write_card(facts_of(fresh_controller()), [EvidenceFile(entries=(measured,))])
    line = next(line for line in card.splitlines() if finding.sentence[1:] in line)
    shown = [float(text) for text in re.findall(r"[+-]?\d+\.\d+", line.partition("yes, ")[2])[:3]]
    score = finding.score
    for number, found in zip(shown, (score.mean, score.low, score.high), strict=True):
        assert number / 100 == pytest.approx(found, abs=0.0005 + 1e-9)


def test_the_tool_writes_the_card_next_to_the_weights(tmp_path: Path) -> None:
    save_controller(fresh_controller(), tmp_path / "kept", card="old")
    file = EvidenceFile(entries=(evidence(),))
    (tmp_path / "evaluation.json").write_text(file.to_text())
    spec = importlib.util.spec_from_file_location("write_model_card", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    tool.main([str(tmp_path / "kept"), str(tmp_path / "evaluation.json")])
    written = (tmp_path / "kept/CARD.md").read_text()
    assert written == write_card(facts_of(fresh_controller()), [file])

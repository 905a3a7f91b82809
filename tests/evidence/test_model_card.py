"""A model card repeats what its files say and claims nothing that they do not support."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from esper.errors import EvidenceError
from esper.evidence.model_card import (
    MAX_ROWS,
    NOT_EVALUATED,
    ClaimRow,
    Verdict,
    choose_rows,
    claims_of,
    write_card,
)
from esper.results.evidence import Evidence
from esper.results.files import evidence_text
from esper.results.findings import weigh
from esper.tamiyo import save_controller
from esper.tamiyo.controllers.saved import facts_of
from esper.training.lookup import controller_of
from esper.training.run import Run
from tests.evidence.examples import make_arm, make_evidence, make_hosts
from tests.tamiyo.fresh_controllers import fresh_controller

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


def row(number: int, *, claim: str = "a higher return", verdict: Verdict = "yes") -> ClaimRow:
    """Return a made-up claim."""
    return ClaimRow(
        claim=claim,
        against=f"arm {number}",
        result=1.0 + number,
        interval=(0.5, 3.0 + number),
        verdict=verdict,
    )


def table_of(card: str) -> list[list[str]]:
    """Return the cells of the rows of the card's table."""
    lines = [line for line in card.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_claims_are_those_of_the_evaluation_with_its_verdicts() -> None:
    measured = evidence()
    findings = weigh(measured)
    assert {one.verdict == "better" for one in findings} == {True, False}
    rows = claims_of(measured)
    card = write_card(facts_of(fresh_controller()), rows)
    cells = table_of(card)
    assert [line[1] for line in cells] == [one.label for one in findings]
    assert [line[3] == "yes" for line in cells] == [one.verdict == "better" for one in findings]
    for line, one in zip(cells, findings, strict=True):
        assert "256 held-out hosts of `spirals`" in line[0]
        shown = [float(text) for text in re.findall(r"[+-]?\d+\.\d+", line[2])]
        for number, found in zip(
            shown, (one.returns.mean, one.returns.low, one.returns.high), strict=True
        ):
            assert number / 100 == pytest.approx(found, abs=0.0005 + 1e-9)
        assert (one.label in section(card, "What was not shown")) != (one.verdict == "better")


def test_every_evaluation_is_told_apart_by_task_options_and_price() -> None:
    measured = [replace(evidence(), task_options={"host": host}) for host in ("mlp", "cnn")]
    entries = (*measured, replace(measured[0], price=0.5), evidence("digits"))
    rows = [row for one in entries for row in claims_of(one)]
    assert len({one.claim for one in rows}) == len(entries)
    assert "host cnn" in rows[2].claim
    assert "at price 0.5" in rows[4].claim
    assert "`digits`" in rows[6].claim


def test_worse_is_said_apart_from_what_was_not_shown() -> None:
    rows = [row(0), row(1, verdict="worse"), row(2, verdict="no")]
    card = write_card(facts_of(fresh_controller()), rows)
    assert [line[3] for line in table_of(card)] == ["yes", "worse", "no"]
    (line,) = re.findall("^- A higher return.*$", section(card, "What was not shown"), re.MULTILINE)
    assert re.search(r"worse than arm 1; not shown against arm 2\.", line)


def test_a_card_stays_short_and_every_claim_gets_its_share_of_the_table() -> None:
    rows = [row(n, claim="the first") for n in range(30)] + [row(n, claim="last") for n in (1, 2)]
    shown = choose_rows(rows)
    assert [one.claim for one in shown] == ["the first"] * (MAX_ROWS - 2) + ["last"] * 2
    opposite = [replace(one, verdict="worse", result=-one.result) for one in rows]
    assert [one.against for one in choose_rows(opposite)] == [one.against for one in shown]
    assert choose_rows(rows[:3]) == rows[:3]
    card = write_card(facts_of(fresh_controller()), rows, figure="results.png")
    assert len(card.splitlines()) <= 45
    assert f"{MAX_ROWS} of 32 comparisons" in card
    assert "](results.png)" in card


def test_without_an_evaluation_nothing_is_claimed() -> None:
    card = write_card(facts_of(fresh_controller()))
    assert section(card, "What it was shown to do").strip() == NOT_EVALUATED
    assert "better" not in card
    assert "](" not in card
    assert table_of(card) == []


def test_a_card_says_how_to_use_the_controller() -> None:
    facts = facts_of(fresh_controller())
    own, shipped = (
        section(write_card(facts, is_shipped=is_shipped), "How to use it")
        for is_shipped in (False, True)
    )
    assert "controller=" in own
    assert "default" in shipped


def test_the_numbers_of_training_are_those_of_the_run(done_run: Run) -> None:
    facts, config = facts_of(controller_of(done_run)), done_run.config
    card = write_card(facts)
    assert f"{config.rounds * config.envs * config.n_steps:,} epochs of networks" in card
    assert f"{config.rounds} rounds" in card
    assert facts["origin"]["command"] in card


def test_a_card_tells_of_lessons(done_run: Run) -> None:
    facts = facts_of(controller_of(done_run))
    taught = {**facts, "origin": {**facts["origin"], "lesson_hosts": 1200, "lesson_schedules": 5}}
    assert "each grown by" not in write_card(facts)
    assert "from 1,200 networks, each grown by 5 schedules. It learned by PPO" in write_card(taught)


def test_the_comparison_at_the_end_of_a_run_is_claims(done_run: Run) -> None:
    summary = done_run.summary
    assert summary is not None
    rows, findings = claims_of(summary), weigh(summary)
    assert [one.against for one in rows] == [one.label for one in findings]
    assert "a higher return" in rows[0].claim
    plain = make_hosts(1, 64)
    gains = {"fixed": -0.02, "no-growth": 0.02, "random": 0.0}
    arms = [
        make_arm(name, make_hosts(1, 64, gain=gain, seed=3), label=name)
        for name, gain in gains.items()
    ]
    rows = claims_of(make_evidence(make_arm("learned", plain, kind="learned"), *arms))
    assert [one.verdict for one in rows] == ["yes", "worse", "no"]
    assert [one.result for one in rows] == pytest.approx([2.0, -2.0, 0.0], abs=0.01)


def tool() -> Any:
    """Return the script that writes the card of a folder."""
    spec = importlib.util.spec_from_file_location("write_model_card", TOOL)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


CLAIM = {
    "claim": "fewer FLOPs",
    "against": "plain training",
    "result": 12,
    "interval": [3, 20.5],
    "verdict": "yes",
    "unit": "%",
}


def test_claims_are_read_from_both_kinds_of_files(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps([CLAIM]))
    (own,) = tool().read_claims(path)
    assert (own.measured, own.verdict) == ("+12.0 [3.0, 20.5] %", "yes")
    path.write_text(evidence_text([evidence()]))
    assert tool().read_claims(path) == claims_of(evidence())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verdict": "maybe"}, "'maybe'"),
        ({"interval": [1]}, "x.json .*interval"),
        ({"result": "much"}, "x.json .*much"),
        ({"colour": "red"}, "x.json .*colour"),
        ({"result": float("inf")}, "x.json"),
    ],
)
def test_a_claim_that_cannot_be_read_is_rejected(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps([CLAIM | change]))
    with pytest.raises(EvidenceError, match=message) as caught:
        tool().read_claims(path)
    assert "\n" not in str(caught.value)
    path.write_text("{")
    with pytest.raises(EvidenceError, match=r"x\.json"):
        tool().read_claims(path)


def test_the_tool_writes_the_card_and_its_figure_next_to_the_weights(tmp_path: Path) -> None:
    save_controller(fresh_controller(), tmp_path / "kept", card="old")
    (tmp_path / "evaluation.json").write_text(evidence_text([evidence()]))
    tool().main([str(tmp_path / "kept"), str(tmp_path / "evaluation.json")])
    rows = claims_of(evidence())
    written = (tmp_path / "kept/CARD.md").read_text()
    assert written == write_card(facts_of(fresh_controller()), rows, figure="results.png")
    picture = (tmp_path / "kept/results.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < 100_000

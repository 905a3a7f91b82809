"""Reports cover one or several runs in any state, and put the verdict first."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from esper.evidence.claims import verdict_sentences
from esper.formatting import share
from esper.reports.run_report.blocks import (
    Block,
    Code,
    Document,
    Facts,
    Items,
    Mount,
    Rows,
    Section,
    Text,
)
from esper.reports.run_report.document import FoundEvidence, make_document
from esper.reports.run_report.markdown import to_markdown
from esper.reports.run_report.tables import flat_settings, runs_table
from esper.reports.run_report.values import RunValues
from esper.statistics import mean_interval
from tests.evidence.examples import make_arm, make_evidence, make_hosts
from tests.reports.run_report.samples import add_summary, make_run, report_of, trial, values_of
from tests.reports.views.samples import age


def blocks_of(document: Document) -> list[Block]:
    """Return all blocks, including those in place of drawings."""

    def inside(blocks: tuple[Block, ...]) -> list[Block]:
        found: list[Block] = []
        for block in blocks:
            found += [block, *(inside(block.instead) if isinstance(block, Mount) else [])]
        return found

    def below(section: Section) -> list[Block]:
        return [*inside(section.blocks), *(b for one in section.sections for b in below(one))]

    return [*inside(document.blocks), *(b for one in document.sections for b in below(one))]


def sentences_of(document: Document) -> list[str]:
    texts = [block.text for block in blocks_of(document) if isinstance(block, Text)]
    items = [
        line for block in blocks_of(document) if isinstance(block, Items) for line in block.lines
    ]
    return [*texts, *items]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_run(tmp_path_factory.mktemp("runs") / "run")
    add_summary(made)
    return made


def evidence_of(*runs: str, gain: float = 0.05) -> FoundEvidence:
    arms = (
        make_arm("learned", make_hosts(len(runs), 40, gain=gain), kind="learned", grown_share=0.9),
        make_arm("heuristic", make_hosts(1, 40, seed=1), kind="tuned"),
    )
    return FoundEvidence(source="evaluation.json", evidence=make_evidence(*arms, runs=runs))


def test_the_verdict_comes_first_and_evaluations_before_the_comparison(folder: Path) -> None:
    values = report_of(values_of(folder))
    alone = make_document(values).sections[0]
    assert alone.title == "Verdict"
    first = alone.blocks[0]
    assert isinstance(first, Text)
    assert first.is_verdict
    assert (
        first.text == (report_of(values_of(folder))["runs"][0]["comparison"] or {})["sentences"][0]
    )
    # Differences are in the plot and the table, not once more in words.
    assert not any("against" in line for one in alone.blocks for line in getattr(one, "lines", ()))
    found = evidence_of("run")
    verdict = make_document(values, [found]).sections[0]
    assert [one.title for one in verdict.sections] == [
        "Evaluation on digits-family at price 0.2",
        "Comparison at the end of the run",
    ]
    assert Mount(drawing="differences", run=0) in [
        replace(one, instead=()) if isinstance(one, Mount) else one for one in alone.blocks
    ]
    blocks = verdict.sections[0].blocks
    assert Mount(drawing="arms", evaluation=0) in blocks
    assert blocks[0] == Text(text=verdict_sentences(found.evidence)[0], is_verdict=True)
    assert blocks[1] == Items(lines=verdict_sentences(found.evidence)[1:])


def test_an_evaluation_of_other_runs_names_them(folder: Path) -> None:
    values = report_of(values_of(folder))
    of_others = sentences_of(make_document(values, [evidence_of("a", "b")]))
    assert "Evaluated: a and b; not run." in of_others
    assert not any(
        "Evaluated" in one for one in sentences_of(make_document(values, [evidence_of("run")]))
    )


def test_anchors_are_unique(folder: Path) -> None:
    values = report_of(values_of(folder), values_of(folder, name="again"))
    document = make_document(values, [evidence_of("run", "again")])

    def anchors(sections: tuple[Section, ...]) -> list[str]:
        return [name for one in sections for name in (one.anchor, *anchors(one.sections))]

    found = anchors(document.sections)
    assert len(found) == len(set(found)) > 15
    assert all(re.fullmatch("[a-z0-9-]+", name) for name in found)


@pytest.mark.parametrize("n_rounds", [0, 1, 2, 5])
def test_a_run_that_has_just_started_has_a_report(tmp_path: Path, n_rounds: int) -> None:
    run = values_of(make_run(tmp_path / "run", n_rounds=n_rounds), state="running")
    text = to_markdown(make_document(report_of(run)))
    assert "| state | running |" in text
    assert f"{n_rounds} of 9 rounds" in text
    assert "Not compared with other controllers yet" in text
    words = text.partition("All settings:")[0]
    assert "None" not in words
    assert "nan" not in words.replace("the loss is nan", "")


def test_old_runs_and_runs_without_steps_have_a_report(tmp_path: Path) -> None:
    old = make_run(tmp_path / "old")
    age(old, 2)
    assert "### Typical episode since round" in to_markdown(
        make_document(report_of(values_of(old)))
    )
    bare = make_run(tmp_path / "bare", record_steps=False)
    text = to_markdown(make_document(report_of(values_of(bare))))
    assert text.count("The steps were not recorded") == 2


def test_the_report_compares_chosen_and_carried_out_actions(folder: Path) -> None:
    run = values_of(folder)
    found = run["learned"]["carried_out"]
    lost = sum(one["refused"] + one["illegal"] for one in found["ops"]) / found["n_steps"]
    assert lost > 0.0
    text = to_markdown(make_document(report_of(run)))
    assert f"{share(lost)} of the actions were not carried out" in text
    assert "| op | chosen | carried out | refused by a gate | illegal |" in text


def test_settings_and_commands_are_shown(folder: Path) -> None:
    run = values_of(folder)
    codes = [one.text for one in blocks_of(make_document(report_of(run))) if isinstance(one, Code)]
    assert codes == [run["overview"]["config_toml"], run["command"], run["report_command"]]
    assert flat_settings(run)["budget.n_epochs"] == 6


def test_runs_that_differ_in_seed_have_a_mean_with_an_interval(tmp_path: Path) -> None:
    runs = [values_of(make_run(tmp_path / str(n), seed=n)) for n in range(4)]
    gains = [0.1, 0.2, 0.3, 0.25]
    for run, gain in zip(runs, gains, strict=True):
        add_summary(tmp_path / run["name"], gain=gain)
    runs = [values_of(tmp_path / str(n)) for n in range(4)]
    table = runs_table(runs)
    place = table.headers.index("return minus hosts left alone")
    assert [row[0] for row in table.rows] == ["0", "1", "2", "3", "mean of 4 runs"]
    assert [row[place] for row in table.rows[:4]] == [f"{gain:.3f}" for gain in gains]
    mean = mean_interval(np.array(gains))
    assert table.rows[4][place] == mean.text(signed=False)
    verdict = next(
        text for text in sentences_of(make_document(report_of(*runs))) if "Mean difference" in text
    )
    assert verdict == (
        f"Mean difference in return of 4 training runs: {mean.text()} to hosts left alone and "
        f"{mean.text()} to the fixed schedule."
    )
    assert len(runs_table(runs[:2]).rows) == 2


def test_runs_with_different_settings_have_no_mean(tmp_path: Path) -> None:
    runs = [values_of(make_run(tmp_path / str(n), seed=n)) for n in range(3)]
    config = runs[1]["overview"]["config_toml"]
    assert config is not None
    runs[1]["overview"]["config_toml"] = config.replace("rounds = 9", "rounds = 12")
    document = make_document(report_of(*runs))
    assert len(runs_table(runs).rows) == 3
    sentences = sentences_of(document)
    assert any("no mean" in one for one in sentences)
    assert "No run has been compared yet." in sentences
    rows = [block.table for block in blocks_of(document) if isinstance(block, Rows)]
    unlike = next(table for table in rows if table.headers[0] == "setting")
    assert unlike.rows == (("rounds", "9", "12", "9"),)
    runs[2]["overview"]["config_toml"] = config.replace("seed = 0", "seed = 7")
    assert len(runs_table([runs[0], runs[2], runs[2]]).rows) == 4


def test_unreadable_files_are_reported(folder: Path) -> None:
    values = report_of(values_of(folder)) | {"problems": ["evaluation.json is no JSON."]}
    assert "evaluation.json is no JSON." in sentences_of(make_document(values))
    (folder / "summary.json").write_text("{")
    sentences = sentences_of(make_document(report_of(values_of(folder))))
    assert any("summary.json" in one for one in sentences)


def facts_of(run: RunValues, anchor: str = "") -> dict[str, str]:
    """Return the facts at the start of a report, or of one of its sections."""
    document = make_document(report_of(run))
    blocks = {one.anchor: one.blocks for one in document.sections}.get(anchor, document.blocks)
    return dict(next(block for block in blocks if isinstance(block, Facts)).pairs)


def test_an_episode_shows_its_parameters(folder: Path) -> None:
    run = values_of(folder)
    result = run["episodes"][0]["detail"]["result"]
    assert result is not None
    result |= {"n_grown": 2, "seed_parameters": 1200, "host_parameters": 3400}
    (text,) = [one for one in sentences_of(make_document(report_of(run))) if "3,400" in one]
    assert text.endswith("3,400 parameters + 1,200 grown in 2 seeds.")


def test_an_episode_says_what_the_problem_was_and_what_growth_gained(tmp_path: Path) -> None:
    run = values_of(make_run(tmp_path / "paired", is_paired=True))
    detail = run["episodes"][-1]["detail"]
    assert detail["result"] is not None
    detail["result"]["gain"] = 0.034
    text = to_markdown(make_document(report_of(run)))
    assert f"{detail['problem']}; {detail['settings']}" in text
    assert "+3.4 points over the same host left alone" in text


def test_the_overview_shows_state_progress_and_prices(folder: Path) -> None:
    run = values_of(folder)
    run["headline"]["seconds"] = 125.0
    run["overview"]["sessions"][-1]["message"] = "the disk is full"
    overview = facts_of(run)
    assert overview["progress"] == "8 of 9 rounds, 96 host-epochs, 2 min 5 s of training"
    settings = flat_settings(run)
    assert f"{settings['budget.flop_price']:g} for the FLOPs" in overview["price"]
    assert overview["price"].endswith(f"rent {settings['budget.parameter_rent']:g}")
    assert overview["state"] == "done"
    assert facts_of(run | {"state": "failed"})["state"] == "failed (the disk is full)"


def test_learning_is_summarized_by_the_evaluations(folder: Path) -> None:
    run = values_of(folder)
    run["evaluations"] = [
        trial(0, 0.6, arm="fixed"),
        trial(2, 0.51, is_best=True),
        trial(4, 0.71, is_best=True),
        trial(6, 0.65),
        trial(6, 0.9, arm="wait", purpose="final"),
    ]
    run["headline"] |= {
        "accuracy_gain": 0.0249,
        "best_score": 0.8,
        "flops": 0.512,
        "seed_parameters": 1234.0,
    }
    facts = facts_of(run, "learning")
    assert facts["first held-out return"] == "0.510 after round 2"
    assert facts["best held-out return"] == "0.710 after round 4"
    assert facts["last held-out return"] == "0.650 after round 6"
    assert facts["fixed schedule"] == "0.600, first passed after round 4"
    gain = "+2.5 points over the same hosts left alone (0.800)"
    assert facts["gain in score"].startswith(f"{gain}; slightly optimistic")
    assert (facts["FLOPs"], facts["parameters grown"]) == ("0.51 of the reference run", "1,234")
    run["headline"]["is_final"] = True
    assert facts_of(run, "learning")["gain in score"] == gain
    run["headline"]["accuracy_gain"] = None
    run["evaluations"][0] = trial(0, 0.72, arm="fixed")
    facts = facts_of(run, "learning")
    assert facts["fixed schedule"] == "0.720, not passed yet"
    assert "gain in score" not in facts
    run["evaluations"] = []
    assert facts_of(run, "learning") == {"held-out return": "not evaluated yet"}


def test_health_counts_failures_and_measures_speed(folder: Path) -> None:
    run = values_of(folder)
    health = run["health"]
    health["refused_updates"] = [{"round": 7, "reason": "nan"}, {"round": 3, "reason": "nan"}]
    health["early_stops"] = {"total": 4, "rounds": [1, 2, 3, 4]}
    health["governor"]["total"] = 1
    health["governor"]["last"] = [
        {"round": 5, "env": 0, "episode": 0, "epoch": 1, "reason": "the loss is nan"}
    ]
    health["illegal"], health["refused_by_gates"] = 1, 20
    run["headline"] |= {"illegal_share": 0.001, "refused_share": 0.02}
    health["throughput"]["values"] = [1000.0, None, 3000.0, 2000.0]
    health["memory"]["values"] = [5e8, 6.12e8]
    assert facts_of(run, "health") == {
        "updates": "8",
        "rejected updates": "2 (rounds 3 and 7)",
        "updates stopped early": "4",
        "hosts rolled back": "1, last in round 5: the loss is nan",
        "illegal actions": "1 (less than 1% of steps)",
        "actions refused by gates": "20 (2% of steps)",
        "median speed": "2,000 host-epochs/s",
        "peak memory": "612 MB",
        "sessions": "1",
    }


def test_health_learning_and_settings_have_a_conclusion(folder: Path) -> None:
    run = values_of(folder)
    sentences = sentences_of(make_document(report_of(run)))
    conclusion = run["health"]["conclusion"]
    assert conclusion["findings"]
    expected = [conclusion["summary"], *(one["text"] for one in conclusion["findings"])]
    assert set(expected) <= set(sentences)
    assert run["learned"]["summary"] in sentences
    preset = facts_of(run, "configuration")["nearest preset"]
    assert preset.startswith("spirals, except ")
    assert "budget.n_epochs 6" in preset

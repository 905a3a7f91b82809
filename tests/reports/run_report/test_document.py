"""Reports say the same in every form, in any state of a run, about one or several."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from esper.evidence.claims import verdict_sentences
from esper.reports.run_report.blocks import Block, Code, Document, Items, Mount, Rows, Section, Text
from esper.reports.run_report.document import make_document
from esper.reports.run_report.evaluation_part import FoundEvidence
from esper.reports.run_report.markdown import to_markdown
from esper.reports.run_report.several import flat_settings, runs_table
from esper.statistics import mean_interval
from tests.evidence.examples import make_arm, make_evidence, make_hosts
from tests.reports.run_report.samples import add_summary, make_run, report_of, values_of
from tests.reports.views.samples import age


def blocks_of(document: Document) -> list[Block]:
    """Return all blocks, those instead of drawings as well."""

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


def test_the_verdict_is_the_first_section_and_what_was_evaluated_comes_first(folder: Path) -> None:
    values = report_of(values_of(folder))
    alone = make_document(values).sections[0]
    assert alone.title == "Verdict"
    first = alone.blocks[0]
    assert isinstance(first, Text)
    assert first.is_verdict
    assert first.text.startswith("Growth helped: in the 30 of 30 hosts that it grew")
    found = evidence_of("run")
    verdict = make_document(values, [found]).sections[0]
    assert [one.title for one in verdict.sections] == [
        "Evaluation on digits-family at price 0.2",
        "The comparison at the end of the run",
    ]
    told = verdict.sections[0].blocks
    assert told[0] == Text(text=verdict_sentences(found.evidence)[0], is_verdict=True)
    assert told[1] == Items(lines=verdict_sentences(found.evidence)[1:])


def test_an_evaluation_of_other_runs_says_so(folder: Path) -> None:
    values = report_of(values_of(folder))
    of_others = sentences_of(make_document(values, [evidence_of("a", "b")]))
    assert "It is about the controllers of a and b; run is not among them." in of_others
    assert not any(
        "not among" in one for one in sentences_of(make_document(values, [evidence_of("run")]))
    )


def test_every_anchor_is_there_once(folder: Path) -> None:
    values = report_of(values_of(folder), values_of(folder, name="again"))
    document = make_document(values, [evidence_of("run", "again")])

    def anchors(sections: tuple[Section, ...]) -> list[str]:
        return [name for one in sections for name in (one.anchor, *anchors(one.sections))]

    found = anchors(document.sections)
    assert len(found) == len(set(found)) > 15
    assert all(re.fullmatch("[a-z0-9-]+", name) for name in found)


@pytest.mark.parametrize("n_rounds", [0, 1, 2, 5])
def test_a_run_that_has_hardly_begun_has_a_report(tmp_path: Path, n_rounds: int) -> None:
    run = values_of(make_run(tmp_path / "run", n_rounds=n_rounds), state="running")
    text = to_markdown(make_document(report_of(run)))
    assert "The run is still going on" in text
    assert f"{n_rounds} round{'s' if n_rounds != 1 else ''} of 9" in text
    assert "It is not compared with other controllers yet" in text
    words = text.partition("All settings:")[0]
    assert "None" not in words.replace("None of them is kept", "")
    assert "nan" not in words.replace("the loss is nan", "")


def test_runs_of_earlier_versions_and_without_steps_have_a_report(tmp_path: Path) -> None:
    old = make_run(tmp_path / "old")
    age(old, 2)
    assert "## A typical and the best episode" in to_markdown(
        make_document(report_of(values_of(old)))
    )
    bare = make_run(tmp_path / "bare", record_steps=False)
    text = to_markdown(make_document(report_of(values_of(bare))))
    assert text.count("Its steps were not recorded") == 2


def test_the_settings_and_commands_are_told(folder: Path) -> None:
    run = values_of(folder)
    codes = [one.text for one in blocks_of(make_document(report_of(run))) if isinstance(one, Code)]
    assert codes == [run["overview"]["config_toml"], run["command"], run["report_command"]]
    assert flat_settings(run)["budget.n_epochs"] == 6


def test_several_runs_of_one_method_have_a_mean_with_its_interval(tmp_path: Path) -> None:
    runs = [values_of(make_run(tmp_path / str(n), seed=n)) for n in range(4)]
    gains = [0.1, 0.2, 0.3, 0.25]
    for run, gain in zip(runs, gains, strict=True):
        add_summary(tmp_path / run["name"], gain=gain)
    runs = [values_of(tmp_path / str(n)) for n in range(4)]
    table = runs_table(runs)
    place = table.headers.index("return minus left alone")
    assert [row[0] for row in table.rows] == ["0", "1", "2", "3", "mean of 4 runs"]
    assert [row[place] for row in table.rows[:4]] == [f"{gain:.3f}" for gain in gains]
    mean = mean_interval(np.array(gains))
    assert table.rows[4][place] == mean.text(signed=False)
    verdict = next(text for text in sentences_of(make_document(report_of(*runs))) if "Over" in text)
    assert verdict == (
        f"Over 4 training runs, the learned controller's return was {mean.text()} against hosts "
        f"left alone and {mean.text()} against the fixed schedule, in the mean of the comparisons "
        "at their ends."
    )
    assert len(runs_table(runs[:2]).rows) == 2


def test_unlike_runs_have_no_mean_and_their_settings_are_told(tmp_path: Path) -> None:
    runs = [values_of(make_run(tmp_path / str(n), seed=n)) for n in range(3)]
    config = runs[1]["overview"]["config_toml"]
    assert config is not None
    runs[1]["overview"]["config_toml"] = config.replace("rounds = 9", "rounds = 12")
    document = make_document(report_of(*runs))
    assert len(runs_table(runs).rows) == 3
    told = sentences_of(document)
    assert any("unlike settings" in one for one in told)
    assert "No run has come to the comparison at its end yet." in told
    rows = [block.table for block in blocks_of(document) if isinstance(block, Rows)]
    unlike = next(table for table in rows if table.headers[0] == "setting")
    assert unlike.rows == (("rounds", "9", "12", "9"),)
    runs[2]["overview"]["config_toml"] = config.replace("seed = 0", "seed = 7")
    assert len(runs_table([runs[0], runs[2], runs[2]]).rows) == 4


def test_what_cannot_be_read_is_told(folder: Path) -> None:
    values = report_of(values_of(folder)) | {"problems": ["evaluation.json is no JSON."]}
    assert "evaluation.json is no JSON." in sentences_of(make_document(values))
    (folder / "summary.json").write_text("{")
    told = sentences_of(make_document(report_of(values_of(folder))))
    assert any("summary.json is damaged" in one for one in told)


@pytest.mark.parametrize(
    ("n_grown", "told"),
    [
        (0, "nothing was grown."),
        (1, "1 seed with 1,200 more was kept."),
        (2, "2 seeds with 1,200 more were kept."),
    ],
)
def test_an_episode_says_what_was_grown(folder: Path, n_grown: int, told: str) -> None:
    run = values_of(folder)
    result = run["episodes"][0]["detail"]["result"]
    assert result is not None
    result |= {"n_grown": n_grown, "seed_parameters": 1200, "host_parameters": 3400}
    found = [one for one in sentences_of(make_document(report_of(run))) if "3,400" in one]
    assert found[0].endswith(f"The host began with 3,400 parameters; {told}")


def test_the_price_of_computing_and_of_parameters_is_told(folder: Path) -> None:
    run = values_of(folder)
    config = run["overview"]["config_toml"] or ""
    price = flat_settings(run)["budget.flop_price"]
    free = re.sub(r"(?m)^parameter_rent = .*$", "parameter_rent = 0.0", config)
    priced = re.sub(r"(?m)^parameter_rent = .*$", "parameter_rent = 0.25", config)
    run["overview"]["config_toml"] = free
    told = f"what its computing costs, {price:g} for the FLOPs of one reference run"
    assert any(one.endswith(f"{told}.") for one in sentences_of(make_document(report_of(run))))
    run["overview"]["config_toml"] = priced
    rent = "and 0.25 for holding as many parameters more as the reference host has."
    assert any(
        one.endswith(f"{told}, {rent}") for one in sentences_of(make_document(report_of(run)))
    )

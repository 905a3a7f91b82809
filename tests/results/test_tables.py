"""Evidence as text has every arm, every sentence and how it was measured."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from esper.formatting import points
from esper.results.evidence import Evidence
from esper.results.files import evidence_text, read_evidence_file
from esper.results.findings import weigh
from esper.results.sentences import verdict_sentences
from esper.results.tables import (
    all_to_markdown,
    facts,
    results_table,
    settings_table,
    to_markdown,
)
from esper.statistics import nested_interval
from tests.evidence.examples import make_arm, make_evidence, make_hosts


def example(*, n_runs: int = 3, price: float = 0.2, **values: object) -> Evidence:
    return make_evidence(
        make_arm("learned", make_hosts(n_runs, 30), kind="learned", tuning_runs=12_345),
        make_arm("heuristic", make_hosts(1, 30, gain=-0.02), kind="tuned", tuning_runs=4096),
        make_arm("no-growth", make_hosts(1, 30, gain=0.01), flops=1.0),
        price=price,
        **values,
    )


def test_a_row_holds_an_arms_means_and_its_difference() -> None:
    evidence = example()
    table, found = results_table(evidence), weigh(evidence)[0]
    assert [row[0] for row in table.rows] == ["learned", "heuristic", "no-growth"]
    assert {len(row) for row in table.rows} == {len(table.headers)}
    cells = dict(zip(table.headers, table.rows[1], strict=True))
    returns = nested_interval(evidence.arm("heuristic").returns)
    assert cells == {
        "arm": "heuristic",
        "return": f"{returns.mean:.3f} [{returns.low:.3f}, {returns.high:.3f}]",
        "score": f"{returns.mean + 0.1:.3f}",
        "FLOPs": "0.500",
        "parameters": "1,000",
        "added parameters": "+0%",
        "epochs": "12.0",
        "difference, points": points(found.returns).removesuffix(" points"),
        "IQM, points": (
            f"{100 * found.interquartile.mean:+.1f} "
            f"[{100 * found.interquartile.low:.1f}, {100 * found.interquartile.high:.1f}]"
        ),
        "P(improvement)": f"{found.improvement.mean:.2f}",
        "p (Holm)": f"{found.corrected_p:.3f}",
        "tuning runs": "4,096",
    }
    assert table.rows[0][7:] == ("", "", "", "", "12,345")


def test_markdown_has_the_verdict_every_arm_and_how_it_was_measured() -> None:
    evidence = example()
    text = to_markdown(evidence)
    assert text.startswith("# digits-family at price 0.2\n\n**")
    for sentence in (*evidence.sentences, *facts(evidence)):
        assert sentence in text
    for row in (*results_table(evidence).rows, *settings_table(evidence).rows):
        assert f"| {' | '.join(row)} |" in text
    for words in ("n_epochs = 16", "`esper evaluate run0`", "2030-01-02", "esper 0.1.0"):
        assert words in text


def test_cells_cannot_break_a_table() -> None:
    arm = make_arm("a|b", make_hosts(1, 30))
    row = results_table(make_evidence(arm)).to_markdown().splitlines()[2]
    assert row.startswith("| a\\|b | ")


@pytest.mark.parametrize(
    ("n_runs", "words"),
    [(3, "3 training runs (run0, run1 and run2)"), (1, "for this run only")],
)
def test_the_facts_name_runs_hosts_split_and_correction(n_runs: int, words: str) -> None:
    text = " ".join(facts(example(n_runs=n_runs)))
    assert words in text
    assert "30 hosts of digits-family" in text
    assert "evaluation (seed 3)" in text
    assert "scored on the test split." in text
    assert "(Holm)" in text


def test_the_facts_count_the_reads_of_the_test_split() -> None:
    counts = {"learned": 1, "heuristic": 1, "no-growth": 3}
    evidence = example()
    arms = tuple(replace(arm, test_reads=counts[arm.name]) for arm in evidence.arms)
    assert (
        "Hosts are scored on the test split; each host once by learned and heuristic, "
        "up to 3 times by no-growth."
    ) in facts(replace(evidence, arms=arms))
    assert "each host once by learned." in " ".join(
        facts(replace(evidence, arms=(arms[0], *evidence.others)))
    )


def test_the_facts_name_the_price_of_learning_if_known() -> None:
    text = {price: " ".join(facts(example(learned_price=price))) for price in (None, 0.2, 0.1)}
    assert "learned at" not in text[None]
    assert "learned at this price" in text[0.2]
    assert "learned at price 0.1" in text[0.1]


def test_the_row_of_the_same_size_has_two_p_values() -> None:
    own = make_arm("learned", make_hosts(3, 30), kind="learned")
    same = make_arm("scratch", make_hosts(3, 30, seed=4), kind="same_epochs", flops=0.6)
    evidence = make_evidence(own, same)
    (found,) = weigh(evidence)
    assert found.corrected_flops_p is not None
    assert 0.0 <= found.corrected_flops_p < 1e-6
    cells = dict(zip(results_table(evidence).headers, results_table(evidence).rows[1], strict=True))
    assert cells["p (Holm)"] == f"{found.corrected_p:.3f}, <0.001".replace("0.000", "<0.001")


def test_a_file_of_several_prices_is_one_page() -> None:
    entries = (example(), example(price=0.4))
    page = all_to_markdown(entries)
    assert page.startswith("# digits-family at 2 prices\n")
    for entry in entries:
        assert to_markdown(entry, level=2) in page
    assert all_to_markdown(entries[:1]) == to_markdown(entries[0])


def test_verdicts_in_a_file_are_not_trusted(tmp_path: Path) -> None:
    plain = json.loads(evidence_text([example()]))
    assert plain["verdicts"][0]["sentences"] == list(verdict_sentences(example()))
    plain["verdicts"][0]["sentences"] = ["Better than everything."]
    path = tmp_path / "evaluation.json"
    path.write_text(json.dumps(plain))
    read = read_evidence_file(path)
    assert verdict_sentences(read[0]) == verdict_sentences(example())
    assert evidence_text(read) == evidence_text([example()])


def test_only_columns_of_the_table_are_explained() -> None:
    assert "IQM is" in " ".join(facts(example()))
    text = " ".join(facts(example(), is_full_table=False))
    assert not any(words in text for words in ("IQM", "P(improvement)", "Tuning runs"))

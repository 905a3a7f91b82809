"""Evidence survives its file, and inconsistent or damaged evidence is rejected."""

import json
import math
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esper.errors import EvidenceError
from esper.results.arms import Arm
from esper.results.evidence import BestHost, Evidence
from esper.results.files import EVIDENCE_VERSION, evidence_text, read_evidence_file, read_verdicts
from esper.results.sentences import verdict_json
from tests.evidence.examples import make_arm, make_evidence, make_hosts


def example(price: float = 0.2) -> Evidence:
    return make_evidence(
        make_arm("learned", make_hosts(3, 12), kind="learned", grown_share=0.5, tuning_runs=9000),
        make_arm("heuristic", make_hosts(1, 12, seed=1), kind="tuned", tuning_runs=4096),
        price=price,
    )


def read(text: str, name: str = "a.json") -> tuple[Evidence, ...]:
    """Return the entries of a file with a text."""
    path = Path(tempfile.mkdtemp()) / name
    path.write_text(text)
    return read_evidence_file(path)


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    for field in fields(one):
        first, second = getattr(one, field.name), getattr(other, field.name)
        if field.name in ("arms", "entries"):
            assert len(first) == len(second)
            for a, b in zip(first, second, strict=True):
                assert_same(a, b)
        elif isinstance(first, np.ndarray):
            assert second.dtype == np.float64
            np.testing.assert_array_equal(first, second, strict=True)
        else:
            assert first == second, field.name


def test_evidence_survives_its_file() -> None:
    entries = (example(), replace(example(0.4), learned_price=0.2, notes=("A note.",)))
    text = evidence_text(entries)
    for found, entry in zip(read(text), entries, strict=True):
        assert_same(found, entry)
    assert json.loads(text)["entries"] == [entry.to_json() for entry in entries]
    assert json.loads(text)["evidence_version"] == EVIDENCE_VERSION


def test_a_row_of_numbers_is_one_line() -> None:
    lines = evidence_text([example()]).splitlines()
    assert len(lines) < 200
    row = json.dumps(example().own.score[1].tolist())
    assert any(line.strip().rstrip(",") == row for line in lines)


def test_values_are_rounded_and_read_only() -> None:
    given = np.array([[1 / 3, 2 / 3]])
    arm = make_arm("x", given)
    assert arm.score.tolist() == [[0.333333, 0.666667]]
    given[:] = 0.0
    assert arm.score[0, 0] == 0.333333
    with pytest.raises(ValueError, match="read-only"):
        arm.score[0, 0] = 1.0


def test_a_best_host_survives_its_file() -> None:
    best = BestHost(number=7, actions=[[1, 2], [3, 4]])
    text = evidence_text([replace(example(), best_host=best)])
    assert read(text)[0].best_host == best
    plain = example().to_json() | {"best_host": {"number": 7}}
    with pytest.raises(EvidenceError, match=r"BestHost .*'actions'"):
        Evidence.from_json(plain)


def test_stored_verdicts_are_read_without_computing_them_again(tmp_path: Path) -> None:
    entries, path = (example(), example(0.4)), tmp_path / "evaluation.json"
    written = evidence_text(entries)
    path.write_text(written)
    found = read_verdicts(path)
    assert [verdict for _, verdict in found] == [verdict_json(one) for one in entries]
    assert [entry["price"] for entry, _ in found] == [0.2, 0.4]
    for text in (
        "[]",
        "{}",
        written.replace('"evidence_version": 4', '"evidence_version": 2'),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match="it "):
            read_verdicts(path)


def test_arms_are_found_by_name() -> None:
    evidence = example()
    assert evidence.own is evidence.arm("learned")
    assert [arm.name for arm in evidence.others] == ["heuristic"]
    assert evidence.n_hosts == 12
    with pytest.raises(EvidenceError, match="Did you mean 'heuristic'"):
        evidence.arm("heuristik")


ARM: dict[str, Any] = {
    "name": "x",
    "label": "the x",
    "score": [[0.5, 0.6]],
    "returns": [[0.4, 0.5]],
    "flops": [[1.0, 1.0]],
    "parameters": [[10.0, 10.0]],
    "n_epochs": [[3.0, 3.0]],
    "grown_parameters": [[0.0, 2.0]],
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"score": [[0.5, math.nan]]}, "arm x has score that is not finite"),
        ({"flops": [[1.0, math.inf]]}, "flops that is not finite"),
        ({"flops": [[1.0, -0.1]]}, "flops down to -0.1"),
        ({"score": [0.5, 0.6]}, r"score of shape \(2,\)"),
        ({"score": [[]]}, r"score of shape \(1, 0\)"),
        ({"n_epochs": [[3.0]]}, r"n_epochs of shape \(1, 1\) and score of \(1, 2\)"),
        ({"grown_parameters": [[-1.0, 0.0]]}, "grown_parameters down to -1"),
        ({"kind": "tunde"}, "Did you mean 'tuned'"),
        ({"name": ""}, "name ''"),
        ({"tuning_runs": -1}, "tuning_runs of arm x is -1"),
        ({"test_reads": 0}, "test_reads of arm x is 0"),
    ],
)
def test_an_invalid_arm_is_rejected(change: dict[str, Any], words: str) -> None:
    Arm(**ARM)
    with pytest.raises(EvidenceError, match=words):
        Arm(**ARM | change)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"price": math.nan}, "price is nan"),
        ({"price": -1.0}, "price is -1.0"),
        ({"learned_price": math.inf}, "learned_price is inf"),
        ({"learned_price": -0.1}, "learned_price is -0.1"),
        ({"learned": "greedy"}, "unknown arm 'greedy'"),
        ({"runs": ("a",)}, "has 3 runs but 1"),
        ({"runs": ("a", "b", "a")}, "run a appears twice"),
        ({"arms": (example().own, example().own)}, "arm learned appears twice"),
        ({"arms": (example().own, make_arm("x", make_hosts(2, 12)))}, "2 runs on 12 hosts"),
        ({"arms": (example().own, make_arm("x", make_hosts(1, 11)))}, "1 runs on 11 hosts"),
    ],
)
def test_arms_that_do_not_match_are_rejected(change: dict[str, Any], words: str) -> None:
    with pytest.raises(EvidenceError, match=words):
        replace(example(), **change)


def test_a_file_is_about_one_task_and_has_each_price_once() -> None:
    with pytest.raises(EvidenceError, match="entries is empty"):
        evidence_text([])
    with pytest.raises(EvidenceError, match=r"prices \[0.2, 0.2\]"):
        evidence_text([example(), example()])
    for change in ({"task": "spirals"}, {"task_options": {}}):
        with pytest.raises(EvidenceError, match="one task"):
            evidence_text([example(), replace(example(0.4), **change)])


def spoil(*path: Any, value: Any = None, name: str | None = None) -> str:
    """Return a file with one value replaced, removed or renamed."""
    plain = json.loads(evidence_text([example()]))
    inner: Any = plain
    for step in path[:-1]:
        inner = inner[step]
    if name is not None:
        inner[name] = inner.pop(path[-1])
    elif value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return json.dumps(plain)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a.json .*not valid JSON"),
        ("[]", "no evidence_version"),
        (spoil("evidence_version", value=2), r"another version of Esper \(format 2, not 4\)"),
        (spoil("entries"), "a list of entries"),
        (spoil("entries", 0, value=[]), r"Evidence is \[\]"),
        (spoil("entries", 0, "seed"), "Evidence .*'seed'"),
        (spoil("entries", 0, "price", name="prize"), "Did you mean 'price'"),
        (spoil("entries", 0, "price", value=math.nan), "NaN"),
        (spoil("entries", 0, "price", value="0.2"), "Evidence.price is '0.2'"),
        (spoil("entries", 0, "arms", 0, "test_reads", value=True), "Arm.test_reads is True"),
        (spoil("entries", 0, "learned_price", value="0.1"), "'0.1'"),
        (spoil("entries", 0, "runs", value=[1, 2, 3]), "Evidence.runs"),
        (spoil("entries", 0, "arms", 0, "flops"), "Arm .*'flops'"),
        (spoil("entries", 0, "arms", 0, "flops", 0, 0, value=math.inf), "Infinity"),
        (spoil("entries", 0, "arms", 0, "flops", 0, 0, value="1"), "Arm.flops"),
        (spoil("entries", 0, "arms", 0, "flops", 0, 0), "Arm.flops"),
        (spoil("entries", 0, "arms", 0, "returns", value=[True] * 3), "Arm.returns"),
    ],
)
def test_a_damaged_file_is_rejected(text: str, words: str) -> None:
    with pytest.raises(EvidenceError, match=words) as raised:
        read(text)
    assert "a.json cannot be read" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", [Arm, Evidence])
def test_every_field_is_required_in_a_file(kind: type[Any]) -> None:
    for field in fields(kind):
        path = ("entries", 0) if kind is Evidence else ("entries", 0, "arms", 1)
        with pytest.raises(EvidenceError, match=repr(field.name)):
            read(spoil(*path, field.name))


def test_nan_in_plain_values_is_rejected() -> None:
    plain = example().to_json()
    plain["arms"][0]["score"][0][0] = math.nan
    with pytest.raises(EvidenceError, match="not finite"):
        Evidence.from_json(plain)
    with pytest.raises(EvidenceError, match=r"Evidence.price is nan"):
        Evidence.from_json(example().to_json() | {"price": math.nan})

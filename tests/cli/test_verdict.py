"""Differences are plotted in characters, against zero, within 80 columns."""

import io
import sys

import pytest

from esper.cli.verdict import WIDTH, plot_differences, show_evidence
from esper.formatting import points
from esper.statistics import Interval
from tests.evidence.examples import make_evidence
from tests.results.test_findings import other, own_arm

ROWS = [
    ("fixed", Interval(-0.03, -0.04, -0.02, 256), True),
    ("heuristic", Interval(0.005, -0.01, 0.02, 256), False),
    ("random", Interval(0.08, 0.06, 0.10, 256), True),
]


def plot(encoding: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    return plot_differences(ROWS)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_each_row_has_a_name_a_mean_and_its_place(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed, heuristic, random, axis = lines = plot(encoding, monkeypatch)
    assert all(len(line) <= WIDTH for line in lines)
    "".join(lines).encode(encoding)
    sure, unsure, zero = "●○│" if encoding == "utf-8" else "*o|"
    assert fixed.startswith("fixed      -3.0  ")
    at = axis.index(" 0 ") + 1
    assert fixed[at] == random[at] == zero
    assert fixed.index(sure) < at < random.index(sure)
    assert unsure in heuristic
    assert sure not in heuristic
    assert axis.split() == ["-4.0", "0", "+10.0"]


def test_the_ends_are_those_of_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed, _, random, axis = plot("ascii", monkeypatch)
    start, end = fixed.index("["), random.rindex("]")
    assert start == axis.index("-4.0")  # the lowest and the highest end are those of the axis
    assert end == len(axis) - 1
    width = random.index("[") - axis.index(" 0 ")
    assert width == pytest.approx(0.06 / 0.14 * (end - start), abs=2)


def test_what_rounds_to_zero_is_written_as_in_the_table() -> None:
    tiny = Interval(-0.0003, -0.0004, 0.01, 256)
    line, axis = plot_differences([("fixed", tiny, False)])
    assert line.split()[1] == points(tiny).split()[0] == "+0.0"
    assert "-" not in axis


def test_the_note_on_hollow_dots_says_what_is_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    equal = make_evidence(own_arm(), other("x", 0.0))
    show_evidence(equal)
    assert "intervals are not" in capsys.readouterr().out
    show_evidence(make_evidence(own_arm(), other("x", -0.3)))
    assert "intervals are not" not in capsys.readouterr().out


def test_no_differences_have_no_plot() -> None:
    assert plot_differences([]) == []

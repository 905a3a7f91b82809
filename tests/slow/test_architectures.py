"""Architectures of Transformers are grown without a change of function, saved and loaded again."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

from tests.slow.architectures import (
    ARCHITECTURES,
    HEADS,
    Architecture,
    counts_of,
    row_of,
    try_deepening,
    try_widening,
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
MIN_DEEPENED, MIN_WIDENED, MIN_HEADS = 62, 58, 28
FAMILIES = {
    "decoder",
    "encoder",
    "encoder-decoder",
    "vision",
    "audio",
    "text and images",
    "state space",
    "mixture of experts",
}


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda each: each.model)
def test_the_table_says_what_becomes_of_an_architecture(architecture: Architecture) -> None:
    row = row_of(architecture, try_deepening(architecture), try_widening(architecture))
    assert row in PAGE.read_text().splitlines(), "run tools/write_architectures.py"


def test_the_table_has_every_architecture_and_counts_them() -> None:
    lines = PAGE.read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    assert [row[0] for row in rows] == [f"`{each.model}`" for each in ARCHITECTURES]
    assert {each.family for each in ARCHITECTURES} == FAMILIES
    n_deepened, n_widened = (
        sum(not row[column].startswith("**no:**") for row in rows) for column in (2, 3)
    )
    n_heads = sum(HEADS in row[3] for row in rows)
    assert counts_of(len(rows), n_deepened, n_widened, n_heads) in lines
    assert n_deepened >= MIN_DEEPENED
    assert n_widened >= MIN_WIDENED
    assert n_heads >= MIN_HEADS

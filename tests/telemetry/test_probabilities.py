"""Packed probabilities are unpacked to the same values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from esper.telemetry.schema import unpack_probabilities
from esper.training.step_records import pack_probabilities

SIZES = (2, 5, 1)
SHAPE = (3, sum(SIZES))


@given(
    arrays.arrays(np.float32, SHAPE, elements=st.floats(0, 1, width=32)),
    arrays.arrays(np.bool_, SHAPE),
)
def test_legal_choices_have_a_probability_and_masked_ones_none(
    values: np.ndarray, legal: np.ndarray
) -> None:
    for row, packed in enumerate(pack_probabilities(values, legal)):
        heads = unpack_probabilities(packed, SIZES)
        assert [len(head) for head in heads] == list(SIZES)
        for k, found in enumerate(p for head in heads for p in head):
            assert (found is not None) == legal[row, k]
            assert found is None or found == pytest.approx(float(values[row, k]), abs=1 / 65534)


def test_a_worked_example_of_bytes() -> None:
    packed = bytes.fromhex("ffff" + "feff" + "ff7f")  # little-endian
    assert unpack_probabilities(packed, (1, 2)) == [[None], [1.0, 32767 / 65534]]


def test_a_wrong_number_of_choices_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"2 .* 3 choices"):
        unpack_probabilities(b"\0\0\0\0", (3,))

"""Splits are disjoint and stratified."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.errors import BadDataError
from esper.tasks.data import stratified_split


@given(
    counts=st.lists(st.integers(1, 60), min_size=2, max_size=6),
    shares=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
def test_splits_are_disjoint_and_each_class_has_its_share(
    counts: list[int], shares: list[float], seed: int
) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    whole = max(1.0, sum(shares))
    sizes = [int(share / whole * len(labels)) for share in shares]
    splits = stratified_split(labels, sizes, seed=seed)
    assert [len(split) for split in splits] == sizes
    everyone = np.concatenate(splits)
    assert len(np.unique(everyone)) == len(everyone)
    for split in splits:
        for label, count in enumerate(counts):
            # Spread evenly over the row, a cut of it is at most one off at either end, and the
            # other classes shift where it begins and ends by less than one step of theirs.
            share = count * len(split) / len(labels)
            slack = 2 + count * len(counts) / len(labels)
            assert abs(np.count_nonzero(labels[split] == label) - share) <= slack


def test_the_seed_determines_the_splits() -> None:
    labels = np.arange(100) % 5
    one, again, other = (stratified_split(labels, [50], seed=seed)[0] for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_too_few_samples_are_rejected() -> None:
    with pytest.raises(BadDataError, match=r"8, 3 samples need 11.* 10"):
        stratified_split(np.arange(10) % 2, [8, 3], seed=0)

"""Splits that hold every class in the same proportion. Shapes: n samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from esper.errors import BadDataError


def stratified_split(
    labels: NDArray[np.integer], sizes: Sequence[int], *, seed: int
) -> list[NDArray[np.int64]]:
    """Return the indices of disjoint splits, each with about the same share of every class.

    The samples of each class are shuffled and spread evenly over one long row, which is then cut.

    Args:
        labels: ``[n]`` class of each sample.
        sizes: Samples of each split.
        seed: Decides who goes where.

    Raises:
        BadDataError: If there are fewer samples than the splits need.
    """
    if sum(sizes) > len(labels):
        raise BadDataError(
            f"splits of {', '.join(str(size) for size in sizes)} samples need {sum(sizes)}; there "
            f"are {len(labels)}."
        )
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    shuffled = rng.permutation(len(labels))
    places = np.empty(len(labels))
    for label in np.unique(labels):
        of_label = labels[shuffled] == label
        count = int(of_label.sum())
        places[of_label] = (np.arange(count) + 0.5) / count
    row = shuffled[np.argsort(places, kind="stable")]
    ends = np.cumsum(sizes)
    return [row[end - size : end] for size, end in zip(sizes, ends, strict=True)]

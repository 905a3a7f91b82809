"""Nuisances: what makes data harder to learn from than the teacher's own inputs and labels.

Shapes: n samples, k inputs that matter, d inputs of the host, C classes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from esper.tasks.prior.teachers import Floats, Labels, draw_normal, multiply, round_to_grid

MIN_OF_CLASS = 8
"""Fewest samples of a class; each split gets at least one of them, validation two."""


def rotate(rng: np.random.Generator, inputs: NDArray[np.floating]) -> Floats:
    """Return the inputs ``[n, k]`` in random orthogonal coordinates."""
    k = inputs.shape[1]
    rotation, triangle = np.linalg.qr(rng.standard_normal((k, k)))
    return multiply(inputs, rotation * np.sign(np.diag(triangle)))


def combine_inputs(
    rng: np.random.Generator, inputs: NDArray[np.floating], n_redundant: int
) -> Floats:
    """Return ``[n, n_redundant]`` random linear combinations of the inputs ``[n, k]``."""
    weights = draw_normal(rng, inputs.shape[1], n_redundant)
    return multiply(inputs, weights / np.sqrt(inputs.shape[1]))


def merge_rare_classes(labels: Labels, *, minimum: int = MIN_OF_CLASS) -> tuple[Labels, int]:
    """Merge classes of fewer than ``minimum`` samples with the next; return how many are left."""
    counts = np.bincount(labels)
    kept = np.flatnonzero(counts >= minimum)
    if len(kept) == 0:
        return np.zeros_like(labels), 1
    classes = np.minimum(np.searchsorted(kept, np.arange(len(counts))), len(kept) - 1)
    return classes[labels], len(kept)


def choose_rows(
    rng: np.random.Generator, labels: Labels, shares: Floats, sizes: tuple[int, int, int]
) -> tuple[Labels, ...]:
    """Return the rows of the three splits, each of which has all classes.

    The first rows of training and test are one of each class, those of validation two.

    Args:
        rng: Chooses the rows.
        labels: ``[n]`` classes, of each at least four samples.
        shares: ``[C]`` the share of its samples that a class keeps, as far as there are enough.
        sizes: Samples for training, validation and testing.
    """
    order = rng.permutation(len(labels))
    if shares.min() < 1.0:
        is_dropped = rng.random(len(order)) >= shares[labels[order]]
        order = order[np.argsort(is_dropped, kind="stable")]
    by_class = np.argsort(labels[order], kind="stable")
    starts = np.searchsorted(labels[order][by_class], np.arange(len(shares)))
    places = by_class[starts[:, None] + np.arange(4)]
    firsts, rest = order[places], np.delete(order, places.ravel())
    train, validation, test = firsts[:, 0], firsts[:, 1:3].ravel(), firsts[:, 3]
    parts: list[Labels] = []
    for first, size in zip((train, validation, test), sizes, strict=True):
        n_more = size - len(first)
        parts.append(np.concatenate([first, rest[:n_more]]))
        rest = rest[n_more:]
    return tuple(parts)


def mislabel(rng: np.random.Generator, labels: Labels, n_classes: int, *, share: float) -> Labels:
    """Return the labels ``[n]`` with a share of them wrong, but not the first of each class.

    The first ``n_classes`` labels are one of each class.
    """
    labels = labels.copy()
    n_wrong = min(round(share * len(labels)), len(labels) - n_classes)
    wrong = n_classes + rng.permutation(len(labels) - n_classes)[:n_wrong]
    labels[wrong] += rng.integers(1, n_classes, size=n_wrong)
    return labels % n_classes


def standardize(values: NDArray[np.floating], like: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return values with the mean and the standard deviation of ``like`` removed, by column."""
    mean = like.mean(0, dtype=np.float64).astype(np.float32)
    deviation = like.std(0, dtype=np.float64).astype(np.float32)
    return (values.astype(np.float32) - mean) / np.where(deviation > 1e-6, deviation, 1.0)


def stretch_tails(values: NDArray[np.float32], *, heaviness: float) -> NDArray[np.float32]:
    """Return ``sinh(a x) / a``: the same near zero, but exponentially larger far from it."""
    stretched = np.sinh(heaviness * values.astype(np.float64)) / heaviness
    return round_to_grid(stretched).astype(np.float32)

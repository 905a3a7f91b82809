"""Teachers: random functions that label random inputs.

A draw has the same bits on every machine: numbers that are multiplied are multiples of 2**-16 and
of 2**-10, so products and their sums are exact in float64 in any order, and functions such as the
sine, whose last bit differs between libraries, are rounded before anything is decided.

Shapes: n samples, k inputs that matter, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper.tasks.data import log_uniform

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
GRID = 2.0**16
"""The multiples of the reciprocal are the numbers that teachers compute with."""
WEIGHT_GRID = 2.0**10
"""The same for weights, which need not be as fine: no two samples must become equal."""


@dataclass(frozen=True, eq=False)
class LabelledInputs:
    """Inputs with what a teacher says about them."""

    inputs: NDArray[Any]
    """``[n, k]``, ``[n, 1, 8, 8]`` for images, or ``[n, T]`` int64 for tokens."""
    targets: NDArray[Any]
    """``[n]`` classes, int64, or real numbers, float64; for tokens, the inputs."""
    facts: dict[str, float] = field(default_factory=dict[str, float])
    """The drawn properties of the teacher by name."""


def round_to_grid(values: NDArray[np.floating], grid: float = GRID) -> Floats:
    """Return the nearest multiples of ``1 / grid``, in float64."""
    rounded = np.multiply(values, grid, dtype=np.float64)
    np.rint(rounded, out=rounded)
    rounded /= grid
    return rounded


def multiply(left: NDArray[np.floating], right: NDArray[np.floating]) -> Floats:
    """Return the matrix product of rounded samples and rounded weights, which is exact."""
    return round_to_grid(left) @ round_to_grid(right, WEIGHT_GRID)


def draw_normal(rng: np.random.Generator, *shape: int) -> Floats:
    """Return standard normal numbers, rounded."""
    return round_to_grid(rng.standard_normal(shape, dtype=np.float32))


def label_by_scores(scores: Floats) -> Labels:
    """Return ``[n]`` the class of the largest of the scores ``[n, C]``, each standardized.

    Standardized, no class wins everywhere, whatever the teacher's biases are.
    """
    mean = round_to_grid(scores.mean(0))
    deviation = np.maximum(round_to_grid(scores.std(0)), 1.0 / GRID)
    return ((scores - mean) / deviation).argmax(1)


_ACTIVATIONS: tuple[tuple[str, Callable[[Floats], Floats]], ...] = (
    ("relu", lambda x: np.maximum(x, 0.0)),
    ("tanh", np.tanh),
    ("sine", np.sin),
    ("step", lambda x: (x > 0.0).astype(np.float64)),
)


def teach_network(
    rng: np.random.Generator, n_samples: int, n_inputs: int, n_classes: int
) -> LabelledInputs:
    """Label normal inputs by a random network of 1 to 4 hidden layers of 2 to 64 units."""
    depth, width = int(rng.integers(1, 5)), round(log_uniform(rng, 2, 64))
    activation = int(rng.integers(len(_ACTIVATIONS)))
    gain = rng.uniform(1.0, 3.0)
    inputs = draw_normal(rng, n_samples, n_inputs)
    x = inputs
    for _ in range(depth):
        weight = draw_normal(rng, x.shape[1], width) * (gain / np.sqrt(x.shape[1]))
        x = _ACTIVATIONS[activation][1](multiply(x, weight) + draw_normal(rng, width) / 2.0)
    scores = multiply(x, draw_normal(rng, width, n_classes))
    facts = {"depth": depth, "width": width, "activation": activation}
    return LabelledInputs(
        inputs,
        label_by_scores(scores),
        {f"teacher_{name}": float(value) for name, value in facts.items()},
    )


def teach_tree(
    rng: np.random.Generator, n_samples: int, n_inputs: int, n_classes: int
) -> LabelledInputs:
    """Label normal inputs by a random decision tree of depth 2 to 6."""
    return _teach_forest(rng, n_samples, n_inputs, n_classes, n_trees=1)


def teach_forest(
    rng: np.random.Generator, n_samples: int, n_inputs: int, n_classes: int
) -> LabelledInputs:
    """Label normal inputs by the votes of 2 to 8 random decision trees."""
    n_trees = int(rng.integers(2, 9))
    return _teach_forest(rng, n_samples, n_inputs, n_classes, n_trees=n_trees)


def _teach_forest(
    rng: np.random.Generator, n_samples: int, n_inputs: int, n_classes: int, *, n_trees: int
) -> LabelledInputs:
    inputs = draw_normal(rng, n_samples, n_inputs)
    minimum = 1 + int(n_classes > 4) + int(n_classes > 8)
    depth = int(rng.integers(minimum + 1, 7))
    scores = np.zeros((n_samples, n_classes))
    for _ in range(n_trees):
        votes = draw_normal(rng, 2**depth, n_classes)
        scores += votes[_find_leaves(rng, inputs, depth)]
    facts = {"teacher_depth": float(depth), "teacher_trees": float(n_trees)}
    return LabelledInputs(inputs, label_by_scores(scores), facts)


def _find_leaves(rng: np.random.Generator, inputs: Floats, depth: int) -> Labels:
    """Return ``[n]`` the leaf of each sample in a random tree."""
    n_samples, n_inputs, n_leaves = len(inputs), int(inputs.shape[1]), 1 << depth
    columns = rng.integers(n_inputs, size=n_leaves)
    thresholds = 0.6 * draw_normal(rng, n_leaves)
    flat = inputs.ravel()
    starts = np.arange(0, n_samples * n_inputs, n_inputs)
    nodes: Labels = np.ones(n_samples, dtype=np.int64)
    for _ in range(depth):
        is_right = flat.take(starts + columns.take(nodes)) > thresholds.take(nodes)
        nodes = 2 * nodes + is_right
    return nodes - n_leaves


def teach_mixture(
    rng: np.random.Generator, n_samples: int, n_inputs: int, n_classes: int
) -> LabelledInputs:
    """Draw each class from 1 to 4 normal distributions that overlap more or less."""
    n_parts = int(rng.integers(1, 5))
    distance = rng.uniform(1.0, 4.0)
    centres = draw_normal(rng, n_classes * n_parts, n_inputs) * (distance / n_inputs**0.25)
    scales = np.exp(rng.uniform(-0.7, 0.4, size=len(centres)))
    parts = rng.integers(len(centres), size=n_samples)
    inputs = centres[parts] + scales[parts, None] * draw_normal(rng, n_samples, n_inputs)
    facts = {"teacher_parts": float(n_parts), "teacher_distance": distance}
    return LabelledInputs(inputs, parts % n_classes, facts)


def teach_rings(
    rng: np.random.Generator, n_samples: int, n_inputs: int, n_classes: int
) -> LabelledInputs:
    """Draw classes as concentric rings, or spheres in up to 4 dimensions."""
    n_axes = int(rng.integers(2, min(n_inputs, 4) + 1))
    n_classes = min(n_classes, 6)
    n_rings = n_classes * int(rng.integers(1, 3)) if n_classes < 4 else n_classes
    thickness = rng.uniform(0.05, 0.3)
    directions = draw_normal(rng, n_samples, n_axes)
    directions /= np.maximum(np.sqrt((directions**2).sum(1, keepdims=True)), 1.0 / GRID)
    rings = rng.integers(n_rings, size=n_samples)
    radii = rings + 1.0 + thickness * draw_normal(rng, n_samples)
    facts = {"teacher_rings": float(n_rings), "teacher_thickness": thickness}
    return LabelledInputs(directions * radii[:, None], rings % n_classes, facts)


def teach_spirals(
    rng: np.random.Generator, n_samples: int, n_inputs: int, n_classes: int
) -> LabelledInputs:
    """Draw classes as the arms of a spiral in the plane."""
    n_classes = min(n_classes, 6)
    turns, thickness = rng.uniform(0.4, 1.6), rng.uniform(0.0, 0.06)
    labels = rng.integers(n_classes, size=n_samples)
    radii = np.sqrt(rng.uniform(0.02, 1.0, size=n_samples))
    angles = 2.0 * np.pi * (turns * radii + labels / n_classes)
    points = radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    points += thickness * draw_normal(rng, n_samples, 2)
    return LabelledInputs(points, labels, {"teacher_turns": turns, "teacher_thickness": thickness})


def teach_parity(
    rng: np.random.Generator, n_samples: int, n_inputs: int, n_classes: int
) -> LabelledInputs:
    """Label up to 12 bits by the parity of 2 to 4 of them, or by two such parities."""
    n_bits = min(n_inputs, 12)
    order = int(rng.integers(2, min(n_bits, 4) + 1))
    blur = rng.uniform(0.05, 0.35)
    bits = rng.integers(2, size=(n_samples, n_bits))
    labels = bits[:, :order].sum(1) % 2
    if n_classes >= 4 and n_bits >= 3:
        labels += 2 * (bits[:, -2:].sum(1) % 2)
    inputs = 2.0 * bits - 1.0 + blur * draw_normal(rng, n_samples, n_bits)
    return LabelledInputs(inputs, labels, {"teacher_order": float(order), "teacher_blur": blur})


def teach_smooth(rng: np.random.Generator, n_samples: int, n_inputs: int) -> LabelledInputs:
    """Map normal inputs to a sum of 2 to 16 random waves."""
    n_waves, frequency = int(rng.integers(2, 17)), rng.uniform(0.5, 2.5)
    inputs = draw_normal(rng, n_samples, n_inputs)
    directions = draw_normal(rng, n_inputs, n_waves) * (frequency / np.sqrt(n_inputs))
    phases = rng.uniform(0.0, 2.0 * np.pi, size=n_waves)
    waves = np.sin(multiply(inputs, directions) + phases)
    values = multiply(waves, draw_normal(rng, n_waves, 1))[:, 0]
    return LabelledInputs(
        inputs, values, {"teacher_waves": float(n_waves), "teacher_frequency": frequency}
    )


def teach_piecewise(rng: np.random.Generator, n_samples: int, n_inputs: int) -> LabelledInputs:
    """Map normal inputs to a constant or linear function in each leaf of a tree."""
    depth, is_linear = int(rng.integers(1, 5)), rng.random() < 0.5
    inputs = draw_normal(rng, n_samples, n_inputs)
    leaves = _find_leaves(rng, inputs, depth)
    values = 2.0 * draw_normal(rng, 2**depth)[leaves]
    if is_linear:
        slopes = multiply(inputs, draw_normal(rng, n_inputs, 2**depth) / np.sqrt(n_inputs))
        values = values + slopes[np.arange(n_samples), leaves]
    return LabelledInputs(
        inputs, values, {"teacher_depth": float(depth), "teacher_is_linear": float(is_linear)}
    )


def teach_filters(rng: np.random.Generator, n_samples: int, n_classes: int) -> LabelledInputs:
    """Label random textures of 8x8 pixels by the mean responses of 2 to 8 random 3x3 filters."""
    n_filters, smoothness = int(rng.integers(2, 9)), rng.uniform(0.0, 0.8)
    pixels = draw_normal(rng, n_samples, 10, 10)
    strength = smoothness * rng.random((n_samples, 2, 1, 1))
    pixels = pixels[:, 1:] + strength[:, 0] * pixels[:, :-1]
    pixels = round_to_grid(pixels[:, :, 1:] + strength[:, 1] * pixels[:, :, :-1])
    images = np.ascontiguousarray(pixels[:, :8, :8])
    patches = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(1, 2))
    responses = multiply(patches.reshape(-1, 9), draw_normal(rng, 9, n_filters))
    means = np.maximum(responses, 0.0).reshape(n_samples, -1, n_filters).mean(1)
    spread = np.maximum(round_to_grid(means.std(0)), 1.0 / GRID)
    features = (means - round_to_grid(means.mean(0))) / spread
    scores = multiply(features, draw_normal(rng, n_filters, n_classes))
    facts = {"teacher_filters": float(n_filters), "teacher_smoothness": smoothness}
    return LabelledInputs(images[:, None], label_by_scores(scores), facts)


def teach_markov(
    rng: np.random.Generator, n_samples: int, n_tokens: int, vocabulary: int
) -> LabelledInputs:
    """Draw sequences ``[n, n_tokens]`` in which each token depends on the last one or two.

    The targets are the sequences too.
    """
    order, concentration = int(rng.integers(1, 3)), log_uniform(rng, 0.03, 0.5)
    chances = rng.gamma(concentration, size=(vocabulary**order, vocabulary)) + 1e-4
    chances = np.cumsum(chances, axis=1)
    chances = round_to_grid(chances / chances[:, -1:])
    tokens = np.empty((n_samples, n_tokens), dtype=np.int64)
    tokens[:, :order] = rng.integers(vocabulary, size=(n_samples, order))
    for step in range(order, n_tokens):
        contexts = tokens[:, step - 1]
        if order == 2:
            contexts = contexts + vocabulary * tokens[:, step - 2]
        tokens[:, step] = (chances[contexts, :-1] <= rng.random((n_samples, 1))).sum(1)
    facts = {"teacher_order": float(order), "teacher_concentration": concentration}
    return LabelledInputs(tokens, tokens, facts)


CLASSIFYING: dict[str, Callable[[np.random.Generator, int, int, int], LabelledInputs]] = {
    "network": teach_network,
    "tree": teach_tree,
    "forest": teach_forest,
    "mixture": teach_mixture,
    "rings": teach_rings,
    "spirals": teach_spirals,
    "parity": teach_parity,
}
"""Teachers of classes by kind, called with a generator and the numbers of samples, inputs and
classes. They may use fewer inputs and classes."""

REGRESSING: dict[str, Callable[[np.random.Generator, int, int], LabelledInputs]] = {
    "smooth": teach_smooth,
    "piecewise": teach_piecewise,
}
"""Teachers of real numbers by kind, called with a generator and the numbers of samples and
inputs."""

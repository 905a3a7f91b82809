"""The task ``prior``: in every episode another problem, host, learning rate, budget and price.

Problems are made up by random teachers and spoilt by nuisances; only the digits are real. So a
controller that learns on this task has seen many kinds of problems, but none that it is tested on.

Shapes: n samples, d inputs of the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray

from esper.config.catalogue import TASKS
from esper.config.checks import Bounds, NonNegativeFloat, check, require_choice
from esper.config.growth import Budget, CNNHostConfig, GPTHostConfig, MLPHostConfig
from esper.errors import TaskError
from esper.formatting import many
from esper.growth.hosts import HostMaker
from esper.tasks.data import TaskData, TaskDraw, log_uniform
from esper.tasks.digits_family import GROWTH, draw_digits
from esper.tasks.metrics import ACCURACY, RELATIVE_ERROR, Metric, bits_per_character
from esper.tasks.prior import nuisances
from esper.tasks.prior.hosts import CONTEXT, MAX_SLOTS, catalogue
from esper.tasks.prior.teachers import (
    CLASSIFYING,
    REGRESSING,
    LabelledInputs,
    draw_normal,
    teach_filters,
    teach_markov,
)
from esper.tasks.task import Task

SHARES: dict[str, float] = {
    "network": 0.19,
    "tree": 0.06,
    "forest": 0.1,
    "mixture": 0.12,
    "rings": 0.08,
    "spirals": 0.08,
    "parity": 0.08,
    "smooth": 0.08,
    "piecewise": 0.08,
    "digits": 0.08,
    "digit-images": 0.02,
    "filters": 0.02,
    "markov": 0.01,
}
"""The share of each kind of problem."""
KINDS = tuple(SHARES)

N_SAMPLES = (60, 20_000)
N_IMAGES = (60, 2_000)
N_SEQUENCES = (60, 2_000)
N_HELD_OUT = (400, 600)
"""Samples for validation and testing."""
N_HELD_OUT_SEQUENCES = (100, 150)
LEARNING_RATES = (3e-4, 3e-2)
BATCH_SIZES = (16, 128)
MAX_BATCHES = 12
"""Maximum batches per epoch: with more data, an epoch is a part of a pass."""
MAX_SEQUENCE_BATCHES = 4
"""The same for GPTs, which train slowly."""
N_EPOCHS = (8, 64)
PRICES = (0.01, 0.3)
FREE_SHARE = 0.5
"""The share of draws with price 0."""
LABEL_NOISE = (0.02, 0.4)
TARGET_NOISE = (0.05, 0.5)
INPUT_NOISE = (0.05, 0.5)
MIN_CLASS_SHARE = 0.1
LARGEST_CLASS = 0.9
"""A teacher that gives one class to more of its samples is drawn again."""
HEAVINESS = (0.5, 1.2)


@dataclass(frozen=True, eq=False)
class _Problem:
    """The drawn data of a host."""

    data: TaskData
    n_classes: int
    metric: Metric
    facts: dict[str, float] = field(default_factory=dict[str, float])


def make_prior(
    *,
    kind: str | None = None,
    price: float | None = None,
    n_epochs: int | None = None,
) -> Task:
    """Return the task ``prior``.

    Args:
        kind: The kind of all problems, one of ``KINDS``; None to draw it.
        price: The price of a reference run's FLOPs; None to draw it.
        n_epochs: Epochs per episode, at most 64; None to draw them.
    """
    if kind is not None:
        require_choice("kind", kind, KINDS)
    check("price", price, NonNegativeFloat | None)
    if n_epochs is not None:
        check("n_epochs", n_epochs, Annotated[int, Bounds(1, N_EPOCHS[1])])

    def draw(seed: int) -> TaskDraw:
        return draw_prior(seed, kind=kind, price=price, n_epochs=n_epochs)

    return Task(
        name="prior",
        make_host=catalogue().designs[0],
        draw=draw,
        budget=Budget(n_epochs=N_EPOCHS[1], flop_price=price or 0.0, parameter_rent=0.0),
        growth=GROWTH,
        summary=TASKS["prior"],
        draws_price=price is None,
        draws_designs=True,
        max_slots=MAX_SLOTS,
    )


def draw_prior(
    seed: int,
    *,
    kind: str | None = None,
    price: float | None = None,
    n_epochs: int | None = None,
) -> TaskDraw:
    """Draw a problem, a host and the settings of an episode from a seed.

    What is given is not drawn, and changes nothing else about settings.
    """
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 11])))
    is_free, drawn_price = rng.random() < FREE_SHARE, log_uniform(rng, *PRICES)
    drawn_epochs = round(log_uniform(rng, *N_EPOCHS))
    learning_rate = log_uniform(rng, *LEARNING_RATES)
    batch_size = 16 * round(log_uniform(rng, *BATCH_SIZES) / 16)
    drawn_kind = _draw_kind(rng)
    kind = kind or drawn_kind
    makers = _makers(kind)
    maker = makers[int(rng.integers(len(makers)))]
    problem = _draw_problem(rng, kind, maker)
    n_samples = len(problem.data.train)
    max_batches = MAX_SEQUENCE_BATCHES if kind == "markov" else MAX_BATCHES
    batches_per_epoch = min(max(n_samples // batch_size, 1), max_batches)
    if n_epochs is None:
        n_epochs = drawn_epochs
    if price is None:
        price = 0.0 if is_free else drawn_price
    facts: dict[str, float] = {
        "kind": KINDS.index(kind),
        "design": catalogue().designs.index(maker),
        "n_classes": problem.n_classes,
        "n_samples": n_samples,
        **problem.facts,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "batches_per_epoch": batches_per_epoch,
        "n_epochs": n_epochs,
        "flop_price": price,
        "host_width": maker.config.width,
        "host_hidden": maker.config.hidden,
        "host_blocks": maker.config.n_blocks,
    }
    return TaskDraw(
        data=problem.data,
        n_classes=problem.n_classes,
        learning_rate=learning_rate,
        make_host=maker,
        batch_size=batch_size,
        batches_per_epoch=batches_per_epoch,
        n_epochs=n_epochs,
        flop_price=price,
        metric=problem.metric,
        facts={name: float(value) for name, value in facts.items()},
        title=f"{_describe_problem(kind, facts)}; {_describe_host(maker)}",
    )


def _draw_kind(rng: np.random.Generator) -> str:
    place = rng.random() * sum(SHARES.values())
    for kind in KINDS:
        place -= SHARES[kind]
        if place < 0.0:
            return kind
    return KINDS[-1]


def _makers(kind: str) -> tuple[HostMaker, ...]:
    """Return the designs that can learn a kind of problem."""
    designs = catalogue()
    if kind in CLASSIFYING:
        return designs.classifiers
    if kind in REGRESSING:
        return designs.regressors
    if kind == "digits":
        return designs.digit_classifiers
    return designs.token_predictors if kind == "markov" else designs.image_classifiers


def _draw_problem(rng: np.random.Generator, kind: str, maker: HostMaker) -> _Problem:
    config = maker.config
    if kind.startswith("digit"):
        return _draw_digits(rng, is_flat=kind == "digits")
    match config:
        case MLPHostConfig():
            if kind in REGRESSING:
                return _draw_regression(rng, kind, config.n_features)
            return _draw_classes(rng, kind, config.n_features, config.n_classes)
        case CNNHostConfig():
            return _draw_images(rng, config.n_classes)
        case GPTHostConfig():
            return _draw_sequences(rng, config.vocabulary)


def _draw_digits(rng: np.random.Generator, *, is_flat: bool) -> _Problem:
    """Draw groups of digits with noise, as the task ``digits-family`` does."""
    drawn = draw_digits(int(rng.integers(2**62)), "mlp" if is_flat else "cnn")
    facts = {name: drawn.facts[name] for name in ("n_digits", "label_noise", "input_noise")}
    return _Problem(drawn.data, drawn.n_classes, ACCURACY, facts)


def _draw_classes(rng: np.random.Generator, kind: str, n_features: int, n_outputs: int) -> _Problem:
    sizes = (round(log_uniform(rng, *N_SAMPLES)), *N_HELD_OUT)
    n_classes = n_outputs if rng.random() < 0.7 else int(rng.integers(2, n_outputs + 1))
    n_inputs = _draw_informative(rng, n_features)
    return _classify(
        rng, sizes, lambda count: CLASSIFYING[kind](rng, count, n_inputs, n_classes), n_features
    )


def _draw_images(rng: np.random.Generator, n_outputs: int) -> _Problem:
    sizes = (round(log_uniform(rng, *N_IMAGES)), *N_HELD_OUT)
    n_classes = int(rng.integers(2, n_outputs + 1))
    return _classify(rng, sizes, lambda count: teach_filters(rng, count, n_classes))


def _classify(
    rng: np.random.Generator,
    sizes: tuple[int, int, int],
    teach: Callable[[int], LabelledInputs],
    n_features: int | None = None,
) -> _Problem:
    """Return the splits of a lesson about classes, with nuisances; images stay as they are."""
    is_imbalanced, is_wrong = rng.random() < 0.3, rng.random() < 0.4
    label_noise = rng.uniform(*LABEL_NOISE) if is_wrong else 0.0
    count = sum(sizes) + (sum(sizes) // 2 if is_imbalanced else 0)
    lesson, labels, n_classes = _draw_lesson(teach, count)
    shares = np.ones(n_classes)
    if is_imbalanced:
        shares[:] = [log_uniform(rng, MIN_CLASS_SHARE, 1.0) for _ in range(n_classes)]
    rows = nuisances.choose_rows(rng, labels, shares, sizes)
    # With two classes, a share of 1/2 would leave nothing to learn.
    label_noise *= min(1.0, n_classes / 4)
    targets = [labels[part] for part in rows]
    targets[0] = nuisances.mislabel(rng, targets[0], n_classes, share=label_noise)
    facts = {**lesson.facts, "label_noise": label_noise, "is_imbalanced": float(is_imbalanced)}
    inputs = lesson.inputs[np.concatenate(rows)]
    if n_features is None:
        inputs = inputs.astype(np.float32)
    else:
        inputs = _spoil(rng, inputs, n_features, sizes[0], facts)
    return _Problem(_split(inputs, np.concatenate(targets), sizes), n_classes, ACCURACY, facts)


def _draw_lesson(
    teach: Callable[[int], LabelledInputs], count: int
) -> tuple[LabelledInputs, NDArray[np.int64], int]:
    """Return a lesson, its classes and their number; draw again if one class is nearly all."""
    for _ in range(100):
        lesson = teach(count)
        labels, n_classes = nuisances.merge_rare_classes(lesson.targets.astype(np.int64))
        if n_classes > 1 and np.bincount(labels).max() <= LARGEST_CLASS * count:
            return lesson, labels, n_classes
    raise TaskError("a teacher of task 'prior' gave the same class to nearly all of its samples.")


def _draw_regression(rng: np.random.Generator, kind: str, n_features: int) -> _Problem:
    sizes = (round(log_uniform(rng, *N_SAMPLES)), *N_HELD_OUT)
    n_train = sizes[0]
    lesson = REGRESSING[kind](rng, sum(sizes), _draw_informative(rng, n_features))
    noise = rng.uniform(*TARGET_NOISE) if rng.random() < 0.5 else 0.0
    facts = {**lesson.facts, "label_noise": noise}
    inputs = _spoil(rng, lesson.inputs, n_features, n_train, facts)
    clean = nuisances.standardize(lesson.targets.astype(np.float64), like=lesson.targets[:n_train])
    targets = clean.copy()
    targets[:n_train] += (noise * draw_normal(rng, n_train)).astype(np.float32)
    targets = nuisances.standardize(targets, like=targets[:n_train])
    return _Problem(_split(inputs, targets, sizes), 0, RELATIVE_ERROR, facts)


def _draw_sequences(rng: np.random.Generator, vocabulary: int) -> _Problem:
    sizes = (round(log_uniform(rng, *N_SEQUENCES)), *N_HELD_OUT_SEQUENCES)
    lesson = teach_markov(rng, sum(sizes), CONTEXT + 1, vocabulary)
    data = _split(lesson.inputs[:, :-1], lesson.targets[:, 1:], sizes)
    return _Problem(data, vocabulary, bits_per_character(vocabulary), lesson.facts)


def _draw_informative(rng: np.random.Generator, n_features: int) -> int:
    """Return the number of inputs that the teacher may use: all in half of the draws."""
    minimum = max(2, -(-n_features // 4))
    fewer = int(rng.integers(minimum, n_features + 1))
    return n_features if rng.random() < 0.5 else fewer


def _spoil(
    rng: np.random.Generator,
    inputs: NDArray[np.floating],
    n_features: int,
    n_train: int,
    facts: dict[str, float],
) -> NDArray[np.float32]:
    """Return ``[n, d]`` inputs as a host gets them, and add what was drawn to the facts."""
    n_samples, n_informative = inputs.shape
    n_free = n_features - n_informative
    n_irrelevant = round(n_free * rng.random() ** 2) if rng.random() < 0.6 else 0
    is_rotated, is_noisy, is_heavy = rng.random() < 0.4, rng.random() < 0.4, rng.random() < 0.15
    input_noise = rng.uniform(*INPUT_NOISE) if is_noisy else 0.0
    heaviness = rng.uniform(*HEAVINESS) if is_heavy else 0.0
    inputs = nuisances.standardize(inputs, like=inputs[:n_train])
    inputs = nuisances.rotate(rng, inputs) if is_rotated else inputs
    redundant = nuisances.combine_inputs(rng, inputs, n_free - n_irrelevant)
    irrelevant = draw_normal(rng, n_samples, n_irrelevant)
    columns = np.concatenate([inputs, redundant, irrelevant], axis=1)
    columns = columns[:, rng.permutation(n_features)]
    columns = nuisances.standardize(columns, like=columns[:n_train])
    if is_noisy:
        noise = rng.standard_normal(columns.shape, dtype=np.float32)
        columns += np.float32(input_noise) * noise
    n_heavy = int(rng.integers(1, n_features + 1)) if is_heavy else 0
    if is_heavy:
        columns[:, :n_heavy] = nuisances.stretch_tails(columns[:, :n_heavy], heaviness=heaviness)
    facts |= {
        "n_features": float(n_features),
        "n_informative": float(n_informative),
        "n_irrelevant": float(n_irrelevant),
        "is_rotated": float(is_rotated),
        "input_noise": input_noise,
        "n_heavy": float(n_heavy),
        "heaviness": heaviness,
    }
    return columns


def _split(
    inputs: NDArray[np.generic], targets: NDArray[np.generic], sizes: tuple[int, int, int]
) -> TaskData:
    """Return consecutive samples as splits of these sizes."""
    x, y = (torch.from_numpy(np.ascontiguousarray(each)) for each in (inputs, targets))
    return TaskData.cut(x, y, sizes)


_TITLES = {
    "network": "random network",
    "tree": "random tree",
    "forest": "random forest",
    "mixture": "normal distributions",
    "parity": "sparse parity",
    "smooth": "smooth function",
    "piecewise": "piecewise function",
    "digit-images": "images of digits",
    "filters": "random filters",
    "markov": "Markov chain",
}
"""The kinds of problems in words, where their names don't say enough."""


def _describe_problem(kind: str, facts: dict[str, float]) -> str:
    """Return a problem in words, such as "rings, 8 inputs, 3 classes, 500 samples"."""
    parts = [_TITLES.get(kind, kind)]
    if "n_features" in facts:
        parts.append(f"{facts['n_features']:.0f} inputs")
    if facts["n_classes"]:
        parts.append(f"{facts['n_classes']:.0f} {'tokens' if kind == 'markov' else 'classes'}")
    parts.append(f"{facts['n_samples']:,.0f} samples")
    if facts.get("n_irrelevant"):
        parts.append(many(int(facts["n_irrelevant"]), "irrelevant input"))
    for name in ("label_noise", "input_noise"):
        if facts.get(name):
            parts.append(f"{facts[name]:.0%} {name.replace('_', ' ')}")
    if facts.get("is_imbalanced"):
        parts.append("imbalanced")
    if facts.get("n_heavy"):
        parts.append("heavy tails")
    return ", ".join(parts)


def _describe_host(maker: HostMaker) -> str:
    """Return a host in words, such as "residual MLP, 2 blocks of 8 (tanh, norm)"."""
    config = maker.config
    match config:
        case MLPHostConfig():
            name = f"{'residual' if config.has_skips else 'plain'} MLP"
            details = f" ({config.activation}{', norm' if config.has_norm else ''})"
        case CNNHostConfig():
            name, details = "CNN", ""
        case GPTHostConfig():
            name, details = "GPT", ""
    return f"{name}, {many(config.n_blocks, 'block')} of {config.hidden}{details}"

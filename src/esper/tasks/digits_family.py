"""The task ``digits-family``: a distribution of tasks on handwritten digits.

Each draw has its own classes (groups of some of the digits), number of samples, noise, learning
rate and host size. All draws take their splits from the same three pools, so no draw trains on a
sample that another is tested on.

Shapes: n samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.config.catalogue import TASKS
from esper.config.checks import require_choice
from esper.config.growth import Budget, CNNHostConfig, GrowthConfig, MLPHostConfig, PopulationConfig
from esper.growth.hosts import HostMaker
from esper.tasks.data import TaskData, TaskDraw, log_uniform
from esper.tasks.digits import digit_splits, standard_digits
from esper.tasks.task import Task

N_DIGITS = (4, 10)
N_SAMPLES = (60, 1000)
LABEL_NOISE = (0.0, 0.4)
INPUT_NOISE = (0.0, 0.3)
LEARNING_RATES = (1e-3, 3e-2)
N_NOISE_ROWS = 2**13
GROWTH = GrowthConfig(
    min_training_epochs=0, min_holding_epochs=0, advances_alone=True, max_widening=8.0
)
"""A seed blends in from its first epoch and can be fossilized four epochs after germination.

A block is widened at most as far as a search over sizes would go.
"""


@dataclass(frozen=True)
class HostKind:
    """A kind of host and the sizes that are drawn."""

    design: MLPHostConfig | CNNHostConfig
    """The host whose sizes determine those of seeds; drawn hosts are smaller."""
    widths: tuple[int, ...]
    """Possible hidden units; costs are relative to the host with the most."""

    @property
    def largest(self) -> int:
        """Hidden units of the largest host."""
        return max(self.widths)


HOST_KINDS: dict[str, HostKind] = {
    "mlp": HostKind(
        MLPHostConfig(
            n_features=64, n_classes=10, width=16, hidden=32, n_blocks=2, has_skips=False
        ),
        widths=(4, 8, 16),
    ),
    "cnn": HostKind(
        CNNHostConfig(image_size=8, n_channels=1, n_classes=10, width=4, hidden=8, n_blocks=2),
        widths=(2, 4),
    ),
}
"""The hosts by the value of the option ``host``.

The MLPs have no skips, because a residual stream of width 16 is enough for the digits: with one,
the number of hidden units would hardly matter.
"""


@dataclass(frozen=True, eq=False)
class _Pools:
    """The data that all draws share."""

    images: Tensor
    """``[1797, 64]`` standardized."""
    deviation: float
    """Standard deviation of the images before, in [0, 1]."""
    digits: NDArray[np.int64]
    """``[1797]``"""
    rows: tuple[NDArray[np.int64], ...]
    """Indices of the images for training, validation and testing."""


@dataclass(frozen=True, eq=False)
class _Grouping:
    """The classes of one draw."""

    classes: NDArray[np.int64]
    """``[10]`` class of each digit, -1 for an unused digit."""
    n_digits: int
    n_classes: int


def make_digits_family(
    *,
    host: str = "mlp",
    width: int | None = None,
    n_epochs: int = 24,
    batches_per_epoch: int | None = 8,
) -> Task:
    """Return the task ``digits-family``.

    Args:
        host: The hosts, "mlp" or "cnn".
        width: Hidden units of all hosts; None to draw them.
        n_epochs: Epochs per episode.
        batches_per_epoch: Batches per epoch; None for one pass over the data.
    """
    require_choice("host", host, HOST_KINDS)
    kind = HOST_KINDS[host]
    if width is not None:
        require_choice("width", width, kind.widths)

    def draw(seed: int) -> TaskDraw:
        return draw_digits(seed, host, width)

    return Task(
        name="digits-family",
        make_host=_host_makers(host)[kind.largest],
        draw=draw,
        budget=Budget(n_epochs=n_epochs, flop_price=0.1, parameter_rent=0.0),
        training=PopulationConfig(
            batch_size=32, learning_rate=1e-3, batches_per_epoch=batches_per_epoch
        ),
        growth=GROWTH,
        summary=TASKS["digits-family"],
        test_pool=len(_pools().rows[-1]),
    )


def draw_digits(seed: int, host: str = "mlp", width: int | None = None) -> TaskDraw:
    """Draw data, a learning rate and, unless a width is given, a host size from a seed."""
    kind = HOST_KINDS[host]
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 3])))
    grouping = _draw_grouping(rng)
    facts = {
        "n_digits": grouping.n_digits,
        "n_classes": grouping.n_classes,
        "label_noise": rng.uniform(*LABEL_NOISE),
        "input_noise": rng.uniform(*INPUT_NOISE),
        "learning_rate": log_uniform(rng, *LEARNING_RATES),
        "width": kind.widths[rng.integers(len(kind.widths))],
    }
    if width is not None:
        facts["width"] = width
    pools = _pools()
    train, validation, test = (
        rows[grouping.classes[pools.digits[rows]] >= 0] for rows in pools.rows
    )
    train, labels = _draw_training(rng, grouping, train, facts["label_noise"])
    facts["n_samples"] = len(train)
    rows = (train, validation, test)
    targets = (labels, *(grouping.classes[pools.digits[part]] for part in (validation, test)))
    hidden = int(facts["width"])
    return TaskDraw(
        data=_gather(rng, rows, targets, facts["input_noise"], is_flat=host == "mlp"),
        n_classes=grouping.n_classes,
        learning_rate=facts["learning_rate"],
        make_host=None if hidden == kind.largest else _host_makers(host)[hidden],
        facts=facts,
        title=f"{_describe_problem(facts)}; {host.upper()} of {hidden}",
    )


def _describe_problem(facts: Mapping[str, float]) -> str:
    """Return a problem in words, such as "8 digits in 3 classes, 420 samples"."""
    return (
        f"{facts['n_digits']:.0f} digits in {facts['n_classes']:.0f} classes, "
        f"{facts['n_samples']:,.0f} samples, {facts['label_noise']:.0%} label noise, "
        f"{facts['input_noise']:.0%} input noise"
    )


def _draw_grouping(rng: np.random.Generator) -> _Grouping:
    """Draw some of the digits and assign them to classes, at least one digit to each."""
    n_digits = int(rng.integers(N_DIGITS[0], N_DIGITS[1] + 1))
    n_classes = int(rng.integers(2, n_digits + 1))
    digits = rng.permutation(10)[:n_digits]
    classes = np.full(10, -1)
    classes[digits[:n_classes]] = np.arange(n_classes)
    classes[digits[n_classes:]] = rng.integers(n_classes, size=n_digits - n_classes)
    return _Grouping(classes, n_digits, n_classes)


def _draw_training(
    rng: np.random.Generator,
    grouping: _Grouping,
    available: NDArray[np.int64],
    label_noise: float,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of training samples and their labels, both ``[n]``, some labels wrong.

    One sample of each digit comes first and keeps its label.
    """
    n_samples = min(round(log_uniform(rng, *N_SAMPLES)), len(available))
    available = rng.permutation(available)
    digits = _pools().digits
    firsts = np.unique(digits[available], return_index=True)[1]
    rows = np.concatenate([available[firsts], np.delete(available, firsts)])[:n_samples]
    labels = grouping.classes[digits[rows]]
    n_wrong = round(label_noise * n_samples)
    wrong = len(firsts) + rng.permutation(n_samples - len(firsts))[:n_wrong]
    labels[wrong] += rng.integers(1, grouping.n_classes, size=len(wrong))
    return rows, labels % grouping.n_classes


def _gather(
    rng: np.random.Generator,
    rows: tuple[NDArray[np.int64], ...],
    targets: tuple[NDArray[np.int64], ...],
    input_noise: float,
    *,
    is_flat: bool,
) -> TaskData:
    """Return the images of these rows with noise added, and their targets."""
    pools = _pools()
    images = pools.images.index_select(0, torch.from_numpy(np.concatenate(rows)))
    images.add_(_draw_noise(rng, len(images)), alpha=input_noise / pools.deviation)
    images = images if is_flat else images.view(-1, 1, 8, 8)
    labels = torch.from_numpy(np.concatenate(targets))
    return TaskData.cut(images, labels, [len(part) for part in rows])


def _draw_noise(rng: np.random.Generator, n_rows: int) -> Tensor:
    """Return normal noise ``[n, 64]``: random rows of a fixed table.

    Drawing as many numbers would take longer than the rest of a draw. An odd stride through a
    table whose size is a power of two repeats no row.
    """
    start, step = rng.integers(N_NOISE_ROWS), 2 * rng.integers(N_NOISE_ROWS // 2) + 1
    rows = (start + step * np.arange(n_rows)) % N_NOISE_ROWS
    return _noise_table().index_select(0, torch.from_numpy(rows))


@lru_cache(maxsize=1)
def _noise_table() -> Tensor:
    return torch.randn(N_NOISE_ROWS, 64, generator=torch.Generator().manual_seed(5))


@lru_cache(maxsize=1)
def _pools() -> _Pools:
    images, labels, deviation = standard_digits()
    rows = tuple(part.numpy() for part in digit_splits())
    return _Pools(images, deviation, labels.numpy(), rows)


@lru_cache(maxsize=len(HOST_KINDS))
def _host_makers(host: str) -> dict[int, HostMaker]:
    """Return the host factory of each width, the same object in every draw."""
    kind = HOST_KINDS[host]
    return {width: HostMaker(replace(kind.design, hidden=width)) for width in kind.widths}

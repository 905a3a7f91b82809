"""A wide network learns what each teacher of the task ``prior`` teaches, without nuisances."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from esper.tasks.prior import nuisances, teachers
from esper.tasks.prior.teachers import CLASSIFYING, REGRESSING, LabelledInputs

pytestmark = pytest.mark.slow


def make_rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def fit(lesson: LabelledInputs, *, n_train: int, n_classes: int) -> float:
    """Return the score on held-out samples of a wide MLP that is trained on a lesson."""
    inputs = lesson.inputs.reshape(len(lesson.inputs), -1)
    x = torch.from_numpy(nuisances.standardize(inputs, like=inputs[:n_train]))
    y = torch.from_numpy(lesson.targets)
    if not n_classes:
        targets = lesson.targets.astype(np.float64)
        y = torch.from_numpy(nuisances.standardize(targets, like=targets[:n_train]))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(x.shape[1], 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU()
        ).append(nn.Linear(48, max(n_classes, 1)))
        optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
        for _ in range(12):
            for batch in torch.randperm(n_train).split(50):
                optimizer.zero_grad()
                loss_of(model(x[batch]), y[batch]).backward()
                optimizer.step()
        with torch.no_grad():
            outputs, truth = model(x[n_train:]), y[n_train:]
    if n_classes:
        return float((outputs.argmax(1) == truth).double().mean())
    return 1.0 - float(mse_loss(outputs[:, 0], truth) / truth.var())


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    if targets.is_floating_point():
        return mse_loss(outputs[:, 0], targets)
    return cross_entropy(outputs, targets)


@pytest.mark.parametrize("kind", CLASSIFYING)
def test_teachers_of_classes_can_be_learned(kind: str) -> None:
    gains: list[float] = []
    for seed in range(3):
        lesson = CLASSIFYING[kind](make_rng(seed), 1800, 4, 3)
        guessing = np.bincount(lesson.targets.astype(np.int64)).max() / 1800
        gains.append((fit(lesson, n_train=1200, n_classes=3) - guessing) / (1.0 - guessing))
    assert np.mean(gains) > 0.3


@pytest.mark.parametrize("kind", REGRESSING)
def test_teachers_of_numbers_can_be_learned(kind: str) -> None:
    scores = [
        fit(REGRESSING[kind](make_rng(seed), 1800, 4), n_train=1200, n_classes=0)
        for seed in range(3)
    ]
    assert np.mean(scores) > 0.5


def test_the_teacher_of_images_can_be_learned() -> None:
    lesson = teachers.teach_filters(make_rng(), 1800, 3)
    assert lesson.inputs.shape == (1800, 1, 8, 8)
    labels = torch.from_numpy(lesson.targets)
    # The mean squared response of a filter is a linear function of these moments.
    images = lesson.inputs[:, 0]
    pairs = [
        (
            images[:, : 8 - dy, max(0, -dx) : 8 - max(0, dx)]
            * images[:, dy:, max(0, dx) : 8 + min(0, dx)]
        )
        for dy in range(3)
        for dx in range(-2, 3)
    ]
    moments = np.stack([pair.mean((1, 2)) for pair in pairs] + [images.mean((1, 2))], axis=1)
    gain = fit(LabelledInputs(moments, lesson.targets), n_train=1200, n_classes=3)
    assert gain > labels.bincount().max() / 1800 + 0.1

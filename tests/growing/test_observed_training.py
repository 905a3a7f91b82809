"""Trainings that differ only in units, labels or metric look alike to a controller."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

import esper
from esper.tamiyo.policy.observations import HOST_FEATURES

EPOCHS = 7
TRAIN, VALIDATION = slice(0, 96), slice(96, None)
X = torch.randn(160, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = (X[:, :3] ** 2).argmax(1)
HEIGHTS = X[:, :1] ** 2 + X[:, 1:2]
LOSS_FEATURES = [name for name in HOST_FEATURES if name.startswith(("loss_", "train_", "valid"))]


class Watcher:
    """Waits, and keeps what it sees."""

    name = "watcher"

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        pass

    def act(self, observations: Any, masks: Any, starts: Any) -> Any:
        self.seen.append(observations[0].copy())
        return np.zeros((1, 8), np.int64)


def make_model(n_outputs: int, order: Tensor | None = None) -> nn.Sequential:
    """Return a model whose outputs are in this order."""
    torch.manual_seed(1)
    head = nn.Linear(12, n_outputs)
    if order is not None:
        with torch.no_grad():
            head.weight.copy_(head.weight[order])
            head.bias.copy_(head.bias[order])
    layers = [nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), head]
    return nn.Sequential(*layers).double()


def watch(
    model: nn.Module, targets: Tensor, loss_of: Any, score_of: Any = None, loss_unit: float = 1.0
) -> np.ndarray:
    """Train a model and return what its controller sees after each epoch, ``[epochs, D]``."""
    optimizer, watcher = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), Watcher()
    grower = esper.Grower(model, optimizer, epochs=EPOCHS, controller=watcher)
    for _ in range(EPOCHS):
        for start in range(0, 96, 24):
            rows = slice(start, start + 24)
            loss = loss_of(model(X[rows]), targets[rows])
            loss.backward()
            grower.step(loss_unit * loss.detach())
        with torch.no_grad():
            outputs = model(X[VALIDATION])
        known = targets[VALIDATION]
        score = None if score_of is None else score_of(outputs, known)
        grower.end_epoch(val_loss=loss_unit * loss_of(outputs, known).item(), score=score)
    return np.array(watcher.seen)


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    return (outputs.argmax(1) == targets).double().mean().item()


def explained(outputs: Tensor, targets: Tensor) -> float:
    return 1.0 - (mse_loss(outputs, targets) / targets.var(correction=0)).item()


def column(name: str) -> int:
    return list(HOST_FEATURES).index(name)


def test_the_order_of_classes_does_not_matter() -> None:
    seen = watch(make_model(3), LABELS, cross_entropy, accuracy)
    order = torch.tensor([2, 0, 1])  # output i is the score of class order[i]
    permuted = watch(make_model(3, order), order.argsort()[LABELS], cross_entropy, accuracy)
    np.testing.assert_allclose(permuted, seen, atol=1e-6)
    assert (np.ptp(seen[:, [column("train_loss"), column("error")]], axis=0) > 0.02).all()


@pytest.mark.parametrize("unit", [1e-3, 1e4])
def test_the_unit_of_regression_targets_does_not_matter(unit: float) -> None:
    def standardized(targets: Tensor) -> Tensor:
        known = targets[TRAIN]
        return (targets - known.mean()) / known.std()

    seen = watch(make_model(1), standardized(HEIGHTS), mse_loss, explained)
    others = watch(make_model(1), standardized(unit * HEIGHTS + 5.0), mse_loss, explained)
    np.testing.assert_allclose(others, seen, atol=1e-5)
    # The error is the mean squared error relative to predicting the mean.
    assert (seen[:, column("error")] < 2 * np.log(1 / 0.005) / np.log(400) - 1).any()


@pytest.mark.parametrize("unit", [1e-3, 1e4])
def test_the_unit_of_the_loss_does_not_matter(unit: float) -> None:
    seen = watch(make_model(1), HEIGHTS, mse_loss, explained)
    others = watch(make_model(1), HEIGHTS, mse_loss, explained, loss_unit=unit)
    np.testing.assert_allclose(others, seen, atol=1e-5)


def test_losses_look_the_same_with_any_score() -> None:
    seen = watch(make_model(3), LABELS, cross_entropy, accuracy)
    others = watch(make_model(3), LABELS, cross_entropy)
    columns = [column(name) for name in LOSS_FEATURES]
    assert len(columns) == 9
    np.testing.assert_array_equal(others[:, columns], seen[:, columns])
    assert (others[:, column("error")] != seen[:, column("error")]).any()

"""One bad step in any batch of an epoch, the last included, costs no more than the epoch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.campaign import RUINED_BATCHES
from torch import nn

import esper

N_SAMPLES, BATCH, EPOCHS = 256, 32, 10
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(N_SAMPLES, 8, generator=GENERATOR)
Y = (X[:, 0] * X[:, 1] + X[:, 2] > 0).long()


class OneBadStep(torch.optim.AdamW):
    """Takes one step that is a billion times too long."""

    def __init__(self, params: Any, *, bad_step: int, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.bad_step, self.n_steps = bad_step, 0

    def step(self, closure: Any = None) -> Any:
        self.n_steps += 1
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] *= 1e9 if self.n_steps == self.bad_step else 1.0
        found = super().step(closure)
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate
        return found


def grow(controller: str, bad_step: int) -> esper.Grown:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    return esper.grow(
        model,
        (X[:192], Y[:192]),
        (X[192:], Y[192:]),
        EPOCHS,
        controller=controller,
        batch_size=BATCH,
        optimizer=lambda params: OneBadStep(params, bad_step=bad_step, lr=1e-2),
        at=["0>2"],
        progress=False,
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("controller", ["no-growth", "heuristic", "shipped"])
@pytest.mark.parametrize("batch", RUINED_BATCHES)
def test_a_bad_step_costs_no_more_than_its_epoch(batch: int, controller: str) -> None:
    n_batches = 192 // BATCH
    good, found = grow(controller, 0), grow(controller, 5 * n_batches + batch)
    assert found.summary.after > good.summary.after - 0.06
    assert len(found.summary.problems) <= 2
    loss = nn.functional.cross_entropy(found.model(X[192:]), Y[192:])
    assert math.isfinite(float(loss))
    assert float(loss) < 2.0

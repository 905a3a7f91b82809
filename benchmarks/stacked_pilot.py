"""A hand-written baseline: the hosts of ``digits-family`` stacked in a few lines of PyTorch.

Shapes: N = hosts, B = samples of a batch. There are no slots, no governor and no
records, and all hosts have the same size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu
from torch.optim import AdamW

from esper.populations import HostSpec
from esper.populations.host_data import BatchOrder

SIZES = ((64, 16), (16, 16), (16, 16), (16, 16), (16, 16), (16, 10))
RECTIFIED = (1, 3)
"""The layers followed by a ReLU: the first of each block."""
RATE = 1e-3


class StackedPilot:
    """Trains all hosts with one forward pass, one backward pass and one update per batch."""

    def __init__(self, specs: Sequence[HostSpec], batch_size: int, n_batches: int) -> None:
        generator, n = torch.Generator().manual_seed(0), len(specs)
        self.weights = [
            nn.Parameter(torch.randn(n, *size, generator=generator) / size[0] ** 0.5)
            for size in SIZES
        ]
        self.biases = [nn.Parameter(torch.zeros(n, 1, size[1])) for size in SIZES]
        self.optimizer = AdamW([*self.weights, *self.biases], RATE, weight_decay=0.0, foreach=True)
        data = [spec.data.split("train") for spec in specs]
        self.inputs = torch.cat([inputs for inputs, _ in data])
        self.targets = torch.cat([targets for _, targets in data])
        counts = [len(targets) for _, targets in data]
        self.firsts = np.cumsum([0, *counts[:-1]])
        self.orders = [
            BatchOrder(spec.seed, count, batch_size, n_batches)
            for spec, count in zip(specs, counts, strict=True)
        ]

    def train_epoch(self) -> Tensor:
        """Train all hosts for an epoch; return the losses of the last batch, ``[N]``."""
        drawn = [order.draw_epoch() for order in self.orders]
        numbers = torch.from_numpy(np.stack(drawn, 1) + self.firsts[:, None])
        losses = torch.zeros(len(self.orders))
        for batch in numbers:
            losses = self._learn(self.inputs[batch], self.targets[batch])
        return losses

    def _learn(self, x: Tensor, targets: Tensor) -> Tensor:
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            x = relu(x) if layer in RECTIFIED else x
        flat = cross_entropy(x.flatten(0, 1), targets.flatten(), reduction="none")
        losses = flat.view(targets.shape).mean(1)
        self.optimizer.zero_grad()
        losses.sum().backward()
        self.optimizer.step()
        return losses.detach()

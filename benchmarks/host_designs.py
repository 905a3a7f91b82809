"""Hosts of several designs and sizes, random data for them, and a plain loop to train them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import AdamW

from esper.config.growth import (
    CNNHostConfig,
    GPTHostConfig,
    HostConfig,
    MLPHostConfig,
    PopulationConfig,
)
from esper.growth.hosts import build_host, make_host, sample_input
from esper.populations import HostData, HostSpec
from esper.populations.host_data import BatchOrder

N_TRAIN, N_VALIDATION = 128, 16

# So small that hundreds of epochs hardly change a host; the amount of arithmetic is the same.
POPULATION = PopulationConfig(batch_size=32, optimizer="adamw", learning_rate=1e-6)

HOSTS: dict[str, dict[str, HostConfig]] = {
    "MLP": {
        "1k": MLPHostConfig(width=8, hidden=12),
        "10k": MLPHostConfig(width=40, hidden=44),
        "50k": MLPHostConfig(width=96, hidden=108),
        "200k": MLPHostConfig(width=208, hidden=216),
    },
    "CNN": {
        "1k": CNNHostConfig(width=4, hidden=6),
        "10k": CNNHostConfig(width=16, hidden=16),
        "50k": CNNHostConfig(width=36, hidden=38),
        "200k": CNNHostConfig(width=72, hidden=76),
    },
    "GPT": {
        "1k": GPTHostConfig(vocabulary=16, context=16, width=8, hidden=16, n_blocks=1),
        "10k": GPTHostConfig(width=20, hidden=40),
        "50k": GPTHostConfig(width=48, hidden=120),
    },
}
"""Host configurations by design and approximate number of parameters."""


class Builder:
    """Build hosts of one size, with slots."""

    def __init__(self, config: HostConfig) -> None:
        self.config = config

    def __call__(self, seed: int) -> nn.Module:
        """Return the host of a seed."""
        return make_host(self.config, seed=seed)


def make_specs(config: HostConfig, n_hosts: int) -> list[HostSpec]:
    """Return specifications of hosts, each with its own random data."""
    return [HostSpec(seed=seed, data=_random_data(config, seed)) for seed in range(n_hosts)]


def _random_data(config: HostConfig, seed: int) -> HostData:
    generator = torch.Generator().manual_seed(seed)
    n_samples = N_TRAIN + N_VALIDATION
    inputs = sample_input(config, n_samples)
    inputs = inputs[torch.randperm(n_samples, generator=generator)]
    if isinstance(config, GPTHostConfig):
        targets = inputs.roll(-1, 1)
    else:
        targets = torch.randint(config.n_classes, (n_samples,), generator=generator)
    train, rest = slice(0, N_TRAIN), slice(N_TRAIN, None)
    return HostData(inputs[train].clone(), targets[train].clone(), inputs[rest], targets[rest])


class BareLoop:
    """A plain training loop without slots or governor: torch's AdamW, one host at a time."""

    def __init__(self, config: HostConfig, specs: Sequence[HostSpec]) -> None:
        rate, size = POPULATION.learning_rate, POPULATION.batch_size
        self.specs = specs
        self.models = [build_host(config, seed=spec.seed) for spec in specs]
        self.optimizers = [AdamW(m.parameters(), rate, weight_decay=0.0) for m in self.models]
        self.orders = [BatchOrder(spec.seed, N_TRAIN, size) for spec in specs]

    def train_epoch(self) -> np.ndarray:
        """Train every host for one epoch; return the mean loss of each, ``[hosts]``."""
        return np.array([self._train_host(host) for host in range(len(self.specs))])

    def _train_host(self, host: int) -> float:
        model, optimizer = self.models[host], self.optimizers[host]
        inputs, targets = self.specs[host].data.split("train")
        losses: list[float] = []
        for batch in torch.from_numpy(self.orders[host].draw_epoch()):
            optimizer.zero_grad()
            # One prediction per row, for images and for sequences.
            outputs = model(inputs[batch]).flatten(0, -2)
            loss = cross_entropy(outputs, targets[batch].flatten())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return float(np.mean(losses))

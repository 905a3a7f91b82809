"""Small populations that several tests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from esper.config.growth import (
    CNNHostConfig,
    GPTHostConfig,
    HostConfig,
    MLPHostConfig,
    PopulationConfig,
)
from esper.growth.hosts import host_sites, make_host, sample_input
from esper.growth.slot_states import Outcome
from esper.lifecycle.factored_actions import GrowthAction
from esper.populations import HostData, HostSpec, Population

MLP = MLPHostConfig(n_features=6, n_classes=3, width=5, hidden=4)
CNN = CNNHostConfig(image_size=5, n_classes=3, width=4, hidden=4)
GPT = GPTHostConfig(vocabulary=7, context=6, width=8, hidden=8, n_blocks=1)
CONFIGS: dict[str, HostConfig] = {"mlp": MLP, "cnn": CNN, "gpt": GPT}


def make_data(config: HostConfig, n_samples: int, seed: int) -> HostData:
    """Return samples with learnable labels."""
    generator = torch.Generator().manual_seed(seed)
    inputs = sample_input(config, n_samples + 12)
    if isinstance(config, GPTHostConfig):
        inputs = inputs.clone()[torch.randperm(len(inputs), generator=generator)]
        targets = inputs.roll(-1, 1)
    else:
        inputs = torch.randn(inputs.shape, generator=generator)
        targets = label(inputs, config.n_classes)
    train, rest = slice(0, n_samples), slice(n_samples, None)
    return HostData(inputs[train], targets[train], inputs[rest], targets[rest])


def label(inputs: Tensor, n_classes: int) -> Tensor:
    flat = inputs.flatten(1)
    weights = torch.randn(flat.shape[1], n_classes, generator=torch.Generator().manual_seed(9))
    return (flat @ weights).argmax(1)


def make_specs(config: HostConfig, sizes: Sequence[int]) -> list[HostSpec]:
    """Return specs with different data and learning rates."""
    rates = [None, 0.004, 0.002]
    return [
        HostSpec(
            seed=index,
            data=make_data(config, size, seed=index),
            learning_rate=rates[index % len(rates)],
        )
        for index, size in enumerate(sizes)
    ]


def to_regression(specs: Sequence[HostSpec], n_outputs: int | None = None) -> list[HostSpec]:
    """Return hosts whose targets are numbers ``[n]``, or ``[n, n_outputs]``."""

    def measure(inputs: Tensor) -> Tensor:
        flat = inputs.flatten(1)
        generator = torch.Generator().manual_seed(9)
        weights = torch.randn(flat.shape[1], n_outputs or 1, generator=generator).to(flat.dtype)
        values = (flat @ weights).sin()
        return values.squeeze(1) if n_outputs is None else values

    def convert(data: HostData) -> HostData:
        train, validation = data.train_inputs, data.validation_inputs
        return HostData(train, measure(train), validation, measure(validation))

    return [replace(spec, data=convert(spec.data)) for spec in specs]


def apply_all(population: Population, actions: Sequence[GrowthAction]) -> list[Outcome]:
    """Apply one action to each host."""
    pairs = zip(range(population.n_hosts), actions, strict=True)
    return [population.apply(host, action) for host, action in pairs]


class Make(Protocol):
    """Makes a population of one form."""

    def __call__(
        self,
        build: Callable[[int], nn.Module],
        specs: Sequence[HostSpec],
        config: PopulationConfig | None = None,
        **options: Any,
    ) -> Population: ...


def in_torch(build: Any, specs: Any, config: Any = None, **options: Any) -> Population:
    """Return a population that torch trains."""
    return Population(build, specs, config, form="torch", **options)


def compiled(build: Any, specs: Any, config: Any = None, **options: Any) -> Population:
    """Return a population that the kernel trains where it can."""
    return Population(build, specs, config, form="auto", **options)


def module_slots(config: HostConfig) -> list[str]:
    """Return the slots of a host beside whose blocks modules grow."""
    return [site.name for site in host_sites(config) if site.what == "module"]


FORMS: list[Make] = [in_torch, compiled]


def is_compiled(population: Population, host: int) -> bool:
    """Return whether the kernel trains a host."""
    return population._vector_hosts.explain(host) is None


class Builder:
    """Builds hosts of one size, in one dtype."""

    def __init__(self, config: HostConfig, dtype: torch.dtype = torch.float32) -> None:
        self.config = config
        self.dtype = dtype

    def __call__(self, seed: int) -> nn.Module:
        return make_host(self.config, seed=seed).to(self.dtype)


def to_double(specs: list[HostSpec]) -> list[HostSpec]:
    """Return the same hosts with data in double precision."""

    def double(tensor: Tensor) -> Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor

    return [
        HostSpec(
            seed=spec.seed,
            data=HostData(
                double(spec.data.train_inputs),
                double(spec.data.train_targets),
                double(spec.data.validation_inputs),
                double(spec.data.validation_targets),
            ),
            learning_rate=spec.learning_rate,
        )
        for spec in specs
    ]

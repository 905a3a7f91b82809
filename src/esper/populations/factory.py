"""Choosing the form of a population: stacked where that is possible and faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from esper.config.checks import check
from esper.config.growth import GrowthConfig, PopulationConfig
from esper.errors import UnsupportedHostError
from esper.growth.modules import count_parameters, seeded
from esper.populations.host_data import HostSpec, Objective
from esper.populations.population import BuildHost, Population
from esper.populations.sequential import SequentialPopulation
from esper.populations.stacked import StackedPopulation

Form = Literal["auto", "sequential", "stacked"]

MAX_STACKED_PARAMETERS = 200_000
"""Largest host for which stacking is faster, as measured in benchmarks/README.md."""

MIN_STACKED_HOSTS = 2
"""Smallest population for which stacking is faster; a single transformer is not."""


def make_population(
    build: BuildHost,
    specs: Sequence[HostSpec],
    config: PopulationConfig | None = None,
    *,
    form: Form = "auto",
    objective: Objective | None = None,
    growth_config: GrowthConfig | None = None,
) -> Population:
    """Return a population of hosts, by default in the form that trains them faster.

    Args:
        build: Builds a host with slots from a seed.
        specs: Seed, data and settings of each host.
        config: Training settings.
        form: "stacked", "sequential", or "auto" to use the faster one that supports the design.
        objective: Loss and metric; classification by default.
        growth_config: Minimum number of epochs in each stage; by default the built host's.

    Raises:
        ConfigError: If ``form`` is unknown.
        UnsupportedHostError: If ``form`` is "stacked" and the design cannot be stacked.

    Examples:
        >>> inputs, targets = torch.randn(32, 2), torch.arange(32) % 3
        >>> data = esper.HostData(inputs, targets, inputs, targets)
        >>> specs = [esper.HostSpec(seed=seed, data=data) for seed in range(4)]
        >>> config = esper.MLPHostConfig(n_features=2, n_classes=3)
        >>> def build(seed):
        ...     return esper.make_host(config, seed=seed)
        >>> hosts = esper.make_population(build, specs)
        >>> report = hosts.train_epoch()
    """
    check("form", form, Form)
    options: dict[str, Any] = {"objective": objective, "growth_config": growth_config}
    if form == "stacked":
        return StackedPopulation(build, specs, config, **options)
    if form == "auto" and len(specs) >= MIN_STACKED_HOSTS and _is_small(build, specs[0]):
        try:
            stacked = StackedPopulation(build, specs, config, **options)
        except UnsupportedHostError:
            pass
        else:
            # Convolutions of many hosts are faster than those of one in the kernel alone.
            if specs[0].data.train_inputs.ndim != 4 or stacked.vector_hosts.has_program(0):
                return stacked
    return SequentialPopulation(build, specs, config, **options)


def _is_small(build: BuildHost, spec: HostSpec) -> bool:
    with seeded(spec.seed):
        return count_parameters(build(spec.seed)) <= MAX_STACKED_PARAMETERS

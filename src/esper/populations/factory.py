"""Choosing the form of a population: stacked where that is possible and faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from esper.errors import ConfigError, UnsupportedHostError, did_you_mean
from esper.growth.modules import count_parameters, seeded
from esper.populations.host_data import HostSpec
from esper.populations.population import BuildHost, Population
from esper.populations.sequential import SequentialPopulation
from esper.populations.stacked import StackedPopulation

Form = Literal["auto", "sequential", "stacked"]
FORMS: tuple[str, ...] = ("auto", "sequential", "stacked")

MAX_STACKED_PARAMETERS = 200_000
"""Largest host for which stacking is faster, as measured in benchmarks/README.md."""

MIN_STACKED_HOSTS = 2
"""Smallest population for which stacking is faster; a single transformer is not."""


def make_population(
    build: BuildHost, specs: Sequence[HostSpec], *args: Any, form: Form = "auto", **kwargs: Any
) -> Population:
    """Return a population of hosts, by default in the form that trains them faster.

    Args:
        build: Builds a host with slots from a seed.
        specs: Seed, data and settings of each host.
        args: Further arguments of :class:`Population`.
        form: "stacked", "sequential", or "auto" to use the faster one that supports the design.
        kwargs: Further keyword arguments of :class:`Population`.

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
    if form not in FORMS:
        raise ConfigError(
            f"form is {form!r}; it must be one of {', '.join(FORMS)}.{did_you_mean(form, FORMS)}"
        )
    if form == "stacked":
        return StackedPopulation(build, specs, *args, **kwargs)
    if form == "auto" and len(specs) >= MIN_STACKED_HOSTS and _is_small(build, specs[0]):
        try:
            return StackedPopulation(build, specs, *args, **kwargs)
        except UnsupportedHostError:
            pass
    return SequentialPopulation(build, specs, *args, **kwargs)


def _is_small(build: BuildHost, spec: HostSpec) -> bool:
    with seeded(spec.seed):
        return count_parameters(build(spec.seed)) <= MAX_STACKED_PARAMETERS

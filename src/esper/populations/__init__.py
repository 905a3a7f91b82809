"""Many hosts trained at once: sequential and stacked populations with the same results."""

from esper.populations.factory import make_population
from esper.populations.host_data import (
    CrossEntropy,
    HostData,
    HostSpec,
    HostState,
    Objective,
    SquaredError,
)
from esper.populations.population import EpochReport, Evaluation, FirstSeed, Population
from esper.populations.sequential import SequentialPopulation
from esper.populations.stacked import StackedPopulation

__all__ = [
    "CrossEntropy",
    "EpochReport",
    "Evaluation",
    "FirstSeed",
    "HostData",
    "HostSpec",
    "HostState",
    "Objective",
    "Population",
    "SequentialPopulation",
    "SquaredError",
    "StackedPopulation",
    "make_population",
]

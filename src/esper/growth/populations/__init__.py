"""Many hosts trained side by side, in two forms with one interface and the same results."""

from esper.growth.populations.choosing import make_population
from esper.growth.populations.host_data import HostData, HostSpec
from esper.growth.populations.host_state import HostState
from esper.growth.populations.objective import CrossEntropy, Objective
from esper.growth.populations.population import EpochReport, Evaluation, FirstSeed, Population
from esper.growth.populations.sequential import SequentialPopulation
from esper.growth.populations.slot_arrays import SlotArrays
from esper.growth.populations.stacked import StackedPopulation

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
    "SlotArrays",
    "StackedPopulation",
    "make_population",
]

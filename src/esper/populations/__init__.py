"""Many hosts trained at once, by a compiled kernel where possible and by torch elsewhere."""

from esper.populations.host_data import (
    CrossEntropy,
    HostData,
    HostSpec,
    HostState,
    Objective,
    SquaredError,
)
from esper.populations.population import (
    Evaluation,
    FirstSeed,
    Form,
    Population,
    make_population,
)
from esper.populations.tally import EpochTally

__all__ = [
    "CrossEntropy",
    "EpochTally",
    "Evaluation",
    "FirstSeed",
    "Form",
    "HostData",
    "HostSpec",
    "HostState",
    "Objective",
    "Population",
    "SquaredError",
    "make_population",
]

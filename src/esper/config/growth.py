"""Settings of growth: how long a seed stays in a stage, and when the governor steps in."""

from __future__ import annotations

from dataclasses import dataclass

from esper.config.checks import require_bool, require_int, require_number


@dataclass(frozen=True, kw_only=True)
class GrowthConfig:
    """How long a seed must stay in a stage before a gate lets it go on."""

    min_training_epochs: int = 1
    """Epochs that a seed learns in isolation before it may blend."""

    min_holding_epochs: int = 1
    """Epochs that a seed is held at its target before it may be fossilized."""

    embargo_epochs: int = 2
    """Epochs that a slot rests after a seed was pruned."""

    advances_alone: bool = False
    """Whether a seed goes on by itself as soon as its gate lets it, from germinating to being held.
    What is left to decide is what to germinate, fossilize and prune, and how to blend."""

    def __post_init__(self) -> None:
        require_bool("advances_alone", self.advances_alone)
        require_int("min_training_epochs", self.min_training_epochs, least=0)
        require_int("min_holding_epochs", self.min_holding_epochs, least=0)
        require_int("embargo_epochs", self.embargo_epochs, least=1)


@dataclass(frozen=True, kw_only=True)
class GovernorConfig:
    """When a loss counts as an outlier. Numbers that are not finite always stop an update."""

    warmup_losses: int = 20
    """Losses that are watched before any can count as an outlier."""

    memory: float = 0.95
    """How much of the running mean and spread each new loss keeps, in [0, 1)."""

    outlier_deviations: float = 10.0
    """Deviations above the running mean at which a loss is an outlier."""

    outlier_factor: float = 3.0
    """An outlier is also at least this many times the running mean."""

    outlier_floor: float = 1.0
    """A rise above the running mean that is smaller than this is no outlier."""

    def __post_init__(self) -> None:
        require_number("outlier_floor", self.outlier_floor, least=0.0)
        require_int("warmup_losses", self.warmup_losses, least=2)
        require_number("memory", self.memory, least=0.0, most=0.9999)
        require_number("outlier_deviations", self.outlier_deviations, above=0.0)
        require_number("outlier_factor", self.outlier_factor, least=1.0)

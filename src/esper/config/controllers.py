"""Settings of rule-based controllers."""

from __future__ import annotations

from dataclasses import dataclass

from esper.config.checks import NonNegativeFloat, NonNegativeInt, PositiveInt, Settings
from esper.errors import ConfigError

PREFERRED_BLUEPRINTS: tuple[str, ...] = (
    "widen_large",
    "widen_medium",
    "widen_small",
    "mlp_large",
    "conv_heavy",
    "conv_light",
    "bottleneck",
    "mlp_small",
    "conv_small",
    "lora_large",
    "low_rank",
    "lora_small",
)
"""Default order of preference: width first, and large before small."""


@dataclass(frozen=True, kw_only=True)
class HeuristicConfig(Settings):
    """When the heuristic germinates, advances, fossilizes, prunes and finishes.

    Thresholds are in units of the score (0.02 is two points of accuracy); an epoch is one decision.
    """

    warmup_epochs: NonNegativeInt = 2
    """Epochs before trends are considered."""

    plateau_rise: float = 0.02
    """Rise of the score over four epochs below which it is on a plateau."""

    training_epochs: PositiveInt = 1
    """Epochs that a seed trains before it is blended in."""

    training_patience: PositiveInt = 4
    """Epochs of training after which an unhealthy seed is pruned."""

    min_gradient_ratio: NonNegativeFloat = 0.003
    """Smallest gradient of a healthy seed, relative to the host's."""

    max_loss_rise: NonNegativeFloat = 0.2
    """Largest rise of the validation loss in an epoch at which seeds are blended in, relative to
    the first one."""

    tempo_epochs: PositiveInt = 3
    """Epochs that alpha takes to reach 1; must be a choice of the tempo head."""

    holding_epochs: PositiveInt = 1
    """Epochs that a seed is held before it may be fossilized."""

    judging_epochs: PositiveInt = 2
    """Epochs that a seed is held before it may be pruned for not helping."""

    min_contribution: float = 0.0
    """Contribution to the score above which a held seed helps."""

    max_live_seeds: PositiveInt = 1
    """Number of live seeds at which no other germinates."""

    max_prunes: NonNegativeInt = 2
    """Number of seeds lost, to a rule or the governor, after which a host gets no other."""

    profit_epochs: NonNegativeInt = 2
    """Epochs that must remain after a seed is fossilized for it to be worth starting."""

    finish_rise: float = 0.02
    """Rise of the score over four epochs below which it is treated as flat."""

    finish_patience: PositiveInt | None = 2
    """Epochs without a rise after which a host with nothing more to grow is finished; None for
    never."""

    blueprints: tuple[str, ...] = PREFERRED_BLUEPRINTS
    """Blueprints in order of preference: the first that fits a slot, then the next after each lost
    seed. Unlisted ones that fit come last."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value, limit in (
            ("training_epochs", self.training_epochs, "training_patience"),
            ("holding_epochs", self.holding_epochs, "judging_epochs"),
            ("finish_rise", self.finish_rise, "plateau_rise"),
        ):
            if value > getattr(self, limit):
                raise ConfigError(
                    f"{limit} is {getattr(self, limit)}; it must be at least {name}, which is "
                    f"{value}."
                )

    @property
    def commit_epochs(self) -> int:
        """Fewest decisions from germinating a seed to fossilizing it."""
        # A seed is germinated for one epoch, and alpha is at rest in the last epoch of its ramp.
        return 1 + self.training_epochs + self.tempo_epochs + self.holding_epochs

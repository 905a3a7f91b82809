"""Settings of rule-based controllers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from esper.config.checks import make_numbers_plain, require_int, require_number
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
class HeuristicConfig:
    """When the heuristic germinates, advances, fossilizes, prunes and finishes.

    Thresholds are in units of the score (0.02 is two points of accuracy); an epoch is one decision.
    """

    warmup_epochs: int = 2
    """Epochs before trends are considered."""

    plateau_rise: float = 0.02
    """Rise of the score over four epochs below which it is on a plateau."""

    training_epochs: int = 1
    """Epochs that a seed trains before it is blended in."""

    training_patience: int = 4
    """Epochs of training after which an unhealthy seed is pruned."""

    min_gradient_ratio: float = 0.003
    """Smallest gradient of a healthy seed, relative to the host's."""

    max_loss_rise: float = 0.2
    """Largest rise of the validation loss in an epoch at which seeds are blended in, relative to
    the first one."""

    tempo_epochs: int = 3
    """Epochs that alpha takes to reach 1; must be a choice of the tempo head."""

    holding_epochs: int = 1
    """Epochs that a seed is held before it may be fossilized."""

    judging_epochs: int = 2
    """Epochs that a seed is held before it may be pruned for not helping."""

    min_contribution: float = 0.0
    """Contribution to the score above which a held seed helps."""

    max_live_seeds: int = 1
    """Number of live seeds at which no other germinates."""

    max_prunes: int = 2
    """Number of seeds lost, to a rule or the governor, after which a host gets no other."""

    profit_epochs: int = 2
    """Epochs that must remain after a seed is fossilized for it to be worth starting."""

    finish_rise: float = 0.02
    """Rise of the score over four epochs below which it counts as no rise."""

    finish_patience: int | None = 2
    """Epochs without a rise after which a host with nothing more to grow is finished; None for
    never."""

    blueprints: tuple[str, ...] = PREFERRED_BLUEPRINTS
    """Blueprints in order of preference: the first that fits a slot, then the next after each lost
    seed. Unlisted ones that fit come last."""

    def __post_init__(self) -> None:
        require_int("warmup_epochs", self.warmup_epochs, least=0)
        require_int("training_epochs", self.training_epochs, least=1)
        require_int("training_patience", self.training_patience, least=self.training_epochs)
        require_int("tempo_epochs", self.tempo_epochs, least=1)
        require_int("holding_epochs", self.holding_epochs, least=1)
        require_int("judging_epochs", self.judging_epochs, least=self.holding_epochs)
        require_int("max_live_seeds", self.max_live_seeds, least=1)
        require_int("max_prunes", self.max_prunes, least=0)
        require_int("profit_epochs", self.profit_epochs, least=0)
        if self.finish_patience is not None:
            require_int("finish_patience", self.finish_patience, least=1)
        require_number("plateau_rise", self.plateau_rise)
        require_number("finish_rise", self.finish_rise, most=self.plateau_rise)
        require_number("min_gradient_ratio", self.min_gradient_ratio, least=0.0)
        require_number("max_loss_rise", self.max_loss_rise, least=0.0)
        require_number("min_contribution", self.min_contribution)
        if isinstance(self.blueprints, str) or not isinstance(self.blueprints, Iterable):
            raise ConfigError(f"blueprints is {self.blueprints!r}; it must be a tuple of names.")
        object.__setattr__(self, "blueprints", tuple(self.blueprints))
        for index, name in enumerate(self.blueprints):
            if not isinstance(name, str):
                raise ConfigError(f"blueprints[{index}] is {name!r}; it must be a name.")
        make_numbers_plain(self)

    @property
    def commit_epochs(self) -> int:
        """Fewest decisions from germinating a seed to fossilizing it."""
        # A seed is germinated for one epoch, and alpha is at rest in the last epoch of its ramp.
        return 1 + self.training_epochs + self.tempo_epochs + self.holding_epochs

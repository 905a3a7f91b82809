"""Settings of the controllers that follow rules."""

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
"""What is grown where there is no other wish: width first, and the large before the small."""


@dataclass(frozen=True, kw_only=True)
class HeuristicConfig:
    """When the heuristic germinates, advances, fossilizes, prunes and finishes.

    Scores are in units of the score (0.02 is two points of accuracy), epochs are decisions.
    """

    warmup_epochs: int = 2
    """Epochs of an episode before any trend counts."""

    plateau_rise: float = 0.02
    """A rise of the score over four epochs that is below this is a plateau."""

    training_epochs: int = 1
    """Epochs that a seed learns by itself before it is blended in."""

    training_patience: int = 4
    """Epochs of learning after which a seed that is still not healthy is pruned."""

    min_gradient_ratio: float = 0.003
    """A seed whose gradient is smaller than this share of the host's is not healthy."""

    max_loss_rise: float = 0.2
    """While the validation loss rises by more than this in an epoch, as a share of the loss of
    guessing, no seed is blended in."""

    tempo_epochs: int = 3
    """Epochs that alpha takes to 1; one of the choices of the tempo head."""

    holding_epochs: int = 1
    """Epochs that a seed is held before it can be fossilized."""

    judging_epochs: int = 2
    """Epochs that a seed is held before it is pruned for not helping."""

    min_contribution: float = 0.0
    """A held seed helps if the score with it is above the score without it by more than this."""

    max_live_seeds: int = 1
    """Seeds that live at once; while there are as many, none germinates."""

    max_prunes: int = 2
    """Lost seeds, pruned by a rule or by the governor, after which a host gets no other."""

    profit_epochs: int = 2
    """Epochs that must be left after a seed is committed, for it to be worth starting."""

    finish_rise: float = 0.02
    """A rise of the score over four epochs that is below this is as good as none."""

    finish_patience: int | None = 2
    """Epochs without a rise after which a host that has nothing more to grow is finished; None for
    never."""

    blueprints: tuple[str, ...] = PREFERRED_BLUEPRINTS
    """The blueprints to grow, best first: the first that fits a slot, after each lost seed the
    next. Those that fit and are not named come last."""

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
            raise ConfigError(f"blueprints is {self.blueprints!r}; a tuple of names is needed.")
        object.__setattr__(self, "blueprints", tuple(self.blueprints))
        for index, name in enumerate(self.blueprints):
            if not isinstance(name, str):
                raise ConfigError(f"blueprints[{index}] is {name!r}; it must be a name.")
        make_numbers_plain(self)

    @property
    def commit_epochs(self) -> int:
        """Decisions from germinating a seed to fossilizing it, if nothing holds it up."""
        # It is germinated for one epoch, and alpha is at rest in the last epoch of its ramp.
        return 1 + self.training_epochs + self.tempo_epochs + self.holding_epochs

"""Settings of growth: how long a seed stays in a stage, and when the governor steps in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from esper.config.checks import (
    make_numbers_plain,
    require_bool,
    require_choice,
    require_int,
    require_number,
)
from esper.errors import ConfigError


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


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long an episode is, and what it costs, in units of a task's score."""

    n_epochs: int = 16
    """Decisions of an episode: epochs that a host may train."""

    flop_price: float = 0.2
    """Score that one whole run of the reference host's FLOPs costs."""

    parameter_rent: float = 0.02
    """Score that it costs to hold as many added parameters as the reference host has, for a whole
    run."""

    def __post_init__(self) -> None:
        require_int("n_epochs", self.n_epochs, least=1)
        require_number("flop_price", self.flop_price, least=0.0)
        require_number("parameter_rent", self.parameter_rent, least=0.0)
        make_numbers_plain(self)


REWARDS = ("dense", "sparse")


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """How an episode's result is spread over its steps.

    With gamma 1 the sum is the same for all settings; with another gamma the discounted sum is the
    same for all shapings.
    """

    reward: Literal["dense", "sparse"] = "dense"
    """Pay as it happens, or everything at the end."""

    shaping: float = 0.02
    """Potential, in score, of a host all of whose slots are fossilized; 0 for no shaping."""

    governor_penalty: float = 0.01
    """Score that each epoch costs in which the governor had to put a host back."""

    gamma: float = 1.0
    """Discount of the agent that learns from the reward, which shaping must know."""

    def __post_init__(self) -> None:
        require_choice("reward", self.reward, REWARDS)
        require_number("shaping", self.shaping, least=0.0)
        require_number("governor_penalty", self.governor_penalty, least=0.0)
        require_number("gamma", self.gamma, above=0.0, most=1.0)


OPTIMIZERS = ("sgd", "adam", "adamw")
WIDEN_STARTS = ("random", "gradmax")


@dataclass(frozen=True, kw_only=True)
class PopulationConfig:
    """How the hosts of a population are trained."""

    batch_size: int = 32
    """Samples of a step, or all of a host that has fewer."""

    batches_per_epoch: int | None = None
    """Batches of an epoch, from one shuffle after another; None for one pass of whole batches."""

    optimizer: Literal["sgd", "adam", "adamw"] = "adamw"
    """The rule by which parameters move."""

    learning_rate: float = 1e-3
    """Step size of hosts that have none of their own."""

    weight_decay: float = 0.0
    """How strongly weights are pulled to zero; decoupled from the gradient for adamw."""

    momentum: float = 0.9
    """Share of the last move that sgd repeats."""

    beta1: float = 0.9
    """Memory of the mean gradient, for adam and adamw."""

    beta2: float = 0.999
    """Memory of the squared gradient, for adam and adamw."""

    adam_eps: float = 1e-8
    """Floor under the root of the squared gradient, for adam and adamw."""

    seed_lr_factor: float = 1.0
    """Learning rate of a seed that is not committed, relative to its host's."""

    widen_start: Literal["random", "gradmax"] = "random"
    """Where a widening seed starts: anywhere, or where its gradient on a batch is largest."""

    def __post_init__(self) -> None:
        require_int("batch_size", self.batch_size, least=2)
        if self.batches_per_epoch is not None:
            require_int("batches_per_epoch", self.batches_per_epoch, least=1)
        require_number("learning_rate", self.learning_rate, above=0.0)
        require_number("weight_decay", self.weight_decay, least=0.0)
        for name in ("momentum", "beta1", "beta2"):
            require_number(name, getattr(self, name), least=0.0, most=0.999999)
        require_number("adam_eps", self.adam_eps, above=0.0)
        require_number("seed_lr_factor", self.seed_lr_factor, above=0.0)
        require_choice("optimizer", self.optimizer, OPTIMIZERS)
        require_choice("widen_start", self.widen_start, WIDEN_STARTS)
        make_numbers_plain(self)


@dataclass(frozen=True, kw_only=True)
class MLPHostConfig:
    """A network of linear layers for vectors, residual as a rule."""

    n_features: int = 64
    """Numbers in a sample."""
    n_classes: int = 10
    """Outputs."""
    width: int = 16
    """Width of the residual stream."""
    hidden: int = 16
    """Hidden units of each block."""
    n_blocks: int = 2
    """Blocks, each with a slot."""
    has_skips: bool = True
    """Whether blocks are residual; without, everything goes through their hidden units."""

    def __post_init__(self) -> None:
        _require_sizes(self, "n_features", "n_classes", "width", "hidden", "n_blocks")
        require_bool("has_skips", self.has_skips)


@dataclass(frozen=True, kw_only=True)
class CNNHostConfig:
    """A residual network of 3x3 convolutions for images."""

    image_size: int = 8
    """Rows and columns of an image."""
    n_channels: int = 1
    """Channels of an image."""
    n_classes: int = 10
    """Outputs."""
    width: int = 8
    """Channels of the residual stream."""
    hidden: int = 8
    """Channels between the two convolutions of each block."""
    n_blocks: int = 2
    """Residual blocks, each with a slot."""

    def __post_init__(self) -> None:
        _require_sizes(self, "image_size", "n_channels", "n_classes", "width", "hidden", "n_blocks")


@dataclass(frozen=True, kw_only=True)
class GPTHostConfig:
    """A causal pre-norm transformer over tokens."""

    vocabulary: int = 64
    """Different tokens."""
    context: int = 32
    """Tokens that a prediction may look at."""
    width: int = 16
    """Width of the residual stream."""
    hidden: int = 32
    """Hidden units of each block's two-layer network."""
    n_heads: int = 2
    """Attention heads; the width is divided among them."""
    n_blocks: int = 2
    """Transformer blocks, each with a slot around it and one around its two-layer network."""

    def __post_init__(self) -> None:
        _require_sizes(self, "vocabulary", "context", "width", "hidden", "n_heads", "n_blocks")
        if self.width % self.n_heads:
            raise ConfigError(
                f"width is {self.width} and n_heads is {self.n_heads}; the width must be a "
                "multiple of n_heads."
            )


HostConfig = MLPHostConfig | CNNHostConfig | GPTHostConfig


def _require_sizes(config: HostConfig, *names: str) -> None:
    for name in names:
        require_int(name, getattr(config, name), least=1)

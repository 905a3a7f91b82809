"""Settings of growth: stages, the governor, budgets, rewards, populations and hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict

from esper.config.checks import (
    MOST_INT,
    make_numbers_plain,
    require_bool,
    require_choice,
    require_int,
    require_number,
)
from esper.errors import ConfigError

MOST_EPOCHS = 100_000
"""Most epochs of an episode. This and what follows bound the time that a file can ask for."""

MOST_BATCHES_PER_EPOCH = 1_000_000

MOST_BLOCKS = 1000
"""Most blocks of a host, each of which has slots; other sizes are bounded by memory."""

DEEPEN_STARTS = ("copied", "fresh")


@dataclass(frozen=True, kw_only=True)
class GrowthConfig:
    """How seeds start, and how long they stay in a stage before its gate opens.

    Examples:
        >>> config = esper.GrowthConfig(min_training_epochs=2)
        >>> config.min_training_epochs
        2
    """

    min_training_epochs: int = 1
    """Epochs that a seed trains before it may blend."""

    min_holding_epochs: int = 1
    """Epochs that a seed is held before it may be fossilized."""

    embargo_epochs: int = 2
    """Epochs that a slot is closed after a seed was pruned or fossilized."""

    advances_alone: bool = False
    """Whether seeds advance by themselves as soon as their gate opens. The controller then decides
    only what to germinate, fossilize and prune, and how to blend."""

    commits_at_once: bool = False
    """Whether a seed is committed, at its alpha target, as soon as it germinates. New seeds change
    nothing yet, so the model goes on as it was and all of it trains together."""

    max_widening: float | None = None
    """Hidden units that a block may be widened to, relative to its own; None for no limit. A seed
    takes what is left of it, and then the slot is closed."""

    deepen_start: Literal["copied", "fresh"] = "copied"
    """Weights of a deepen seed behind its zeroed layers: the block's own, or newly drawn ones."""

    def __post_init__(self) -> None:
        require_bool("advances_alone", self.advances_alone)
        require_bool("commits_at_once", self.commits_at_once)
        require_choice("deepen_start", self.deepen_start, DEEPEN_STARTS)
        if self.max_widening is not None:
            require_number("max_widening", self.max_widening, least=1.0)
        require_int("min_training_epochs", self.min_training_epochs, least=0)
        require_int("min_holding_epochs", self.min_holding_epochs, least=0)
        require_int("embargo_epochs", self.embargo_epochs, least=1)


@dataclass(frozen=True, kw_only=True)
class GovernorConfig:
    """When a loss is an outlier. Losses and gradients that are not finite always stop an update.

    Examples:
        >>> config = esper.GovernorConfig(untrained_loss=1e9)
        >>> config.untrained_loss
        1000000000.0
    """

    warmup_losses: int = 20
    """Losses observed, at first and after a rollback, before the bound is at its narrowest."""

    warmup_factor: float = 1000.0
    """Multiple of the first loss that an outlier must reach until then. Each further outlier in a
    row multiplies it again."""

    untrained_loss: float = 1e3
    """Used in place of the first loss, to judge the first loss itself."""

    memory: float = 0.95
    """Decay of the running mean and deviation of the loss, in [0, 1)."""

    outlier_deviations: float = 10.0
    """Standard deviations above the running mean that an outlier must reach."""

    outlier_factor: float = 3.0
    """Multiple of the running mean that an outlier must reach."""

    outlier_floor: float = 1.0
    """Rise above the running mean that an outlier must reach."""

    def __post_init__(self) -> None:
        require_number("outlier_floor", self.outlier_floor, least=0.0)
        require_int("warmup_losses", self.warmup_losses, least=2)
        require_number("memory", self.memory, least=0.0, most=0.9999)
        require_number("outlier_deviations", self.outlier_deviations, above=0.0)
        require_number("outlier_factor", self.outlier_factor, least=1.0)
        require_number("warmup_factor", self.warmup_factor, least=1.0)
        require_number("untrained_loss", self.untrained_loss, above=0.0)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Length of an episode, and its prices in units of the task's score.

    Examples:
        >>> esper.Budget(n_epochs=8, flop_price=0.1)
        Budget(n_epochs=8, flop_price=0.1, parameter_rent=0.02)
    """

    n_epochs: int = 16
    """Epochs that a host may train, which is the number of decisions in an episode."""

    flop_price: float = 0.2
    """Price of the FLOPs of one reference run, in score."""

    parameter_rent: float = 0.02
    """Price of holding as many added parameters as the reference host has for a whole run, in
    score."""

    def __post_init__(self) -> None:
        require_int("n_epochs", self.n_epochs, least=1, most=MOST_EPOCHS)
        require_number("flop_price", self.flop_price, least=0.0)
        require_number("parameter_rent", self.parameter_rent, least=0.0)
        make_numbers_plain(self)


RewardForm = Literal["dense", "sparse", "paired", "scheduled"]
REWARDS: tuple[RewardForm, ...] = ("dense", "sparse", "paired", "scheduled")
RELATIVE_REWARDS: tuple[RewardForm, ...] = ("paired", "scheduled")
"""Forms that are relative to the same host with another controller."""


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """How an episode's return is distributed over its steps.

    With gamma 1 the sum of rewards is the same for all settings, minus what the same host with
    another controller would have got if rewards are paired or scheduled; otherwise the
    discounted sum is the same for all values of ``shaping``.

    Examples:
        >>> esper.RewardConfig()
        RewardConfig(reward='dense', shaping=0.02, governor_penalty=0.01, gamma=1.0)
    """

    reward: RewardForm = "dense"
    """Reward every step, only the last one, or every step by how much better it was than the same
    epoch of the same host: paired, with that host left alone; scheduled, with that host grown by
    the fixed schedule that suits its price."""

    shaping: float = 0.02
    """Shaping potential of a host with a committed seed in every slot, in score; 0 for no
    shaping."""

    governor_penalty: float = 0.01
    """Penalty for each epoch that the governor rolls back, in score."""

    gamma: float = 1.0
    """Discount factor used in shaping; must equal ppo.gamma."""

    def __post_init__(self) -> None:
        require_choice("reward", self.reward, REWARDS)
        require_number("shaping", self.shaping, least=0.0)
        require_number("governor_penalty", self.governor_penalty, least=0.0)
        require_number("gamma", self.gamma, above=0.0, most=1.0)


OPTIMIZERS = ("sgd", "adam", "adamw")
WIDEN_STARTS = ("random", "gradmax")


@dataclass(frozen=True, kw_only=True)
class PopulationConfig:
    """How the hosts of a population are trained.

    Examples:
        >>> config = esper.PopulationConfig(batch_size=16)
        >>> config.batch_size
        16
    """

    batch_size: int = 32
    """Samples per batch; all samples for hosts that have fewer."""

    batches_per_epoch: int | None = None
    """Batches per epoch, reshuffling as needed; None for one pass over all full batches."""

    optimizer: Literal["sgd", "adam", "adamw"] = "adamw"
    """Optimizer of the hosts."""

    learning_rate: float = 1e-3
    """Learning rate of hosts that don't set their own."""

    weight_decay: float = 0.0
    """Weight decay; decoupled from the gradient for adamw."""

    momentum: float = 0.9
    """Momentum of sgd."""

    beta1: float = 0.9
    """Decay of the mean gradient, for adam and adamw."""

    beta2: float = 0.999
    """Decay of the squared gradient, for adam and adamw."""

    adam_eps: float = 1e-8
    """Epsilon of adam and adamw."""

    seed_lr_factor: float = 1.0
    """Learning rate of a seed before it is fossilized, relative to its host's."""

    widen_start: Literal["random", "gradmax"] = "random"
    """Initialization of widening seeds: random, or maximizing the gradient on a batch (GradMax)."""

    def __post_init__(self) -> None:
        require_int("batch_size", self.batch_size, least=2)
        if self.batches_per_epoch is not None:
            require_int(
                "batches_per_epoch", self.batches_per_epoch, least=1, most=MOST_BATCHES_PER_EPOCH
            )
        require_number("learning_rate", self.learning_rate, above=0.0)
        require_number("weight_decay", self.weight_decay, least=0.0)
        for name in ("momentum", "beta1", "beta2"):
            require_number(name, getattr(self, name), least=0.0, most=0.999999)
        require_number("adam_eps", self.adam_eps, above=0.0)
        require_number("seed_lr_factor", self.seed_lr_factor, above=0.0)
        require_choice("optimizer", self.optimizer, OPTIMIZERS)
        require_choice("widen_start", self.widen_start, WIDEN_STARTS)
        make_numbers_plain(self)


class TrainingSettings(TypedDict, total=False):
    """The settings of a :class:`PopulationConfig` that `esper.grow` takes beside its optimizer."""

    batch_size: int
    batches_per_epoch: int | None
    learning_rate: float
    weight_decay: float
    momentum: float
    beta1: float
    beta2: float
    adam_eps: float
    seed_lr_factor: float
    widen_start: Literal["random", "gradmax"]


MLP_ACTIVATIONS = ("relu", "gelu", "tanh")


@dataclass(frozen=True, kw_only=True)
class MLPHostConfig:
    """An MLP for vectors, residual by default.

    Examples:
        >>> host = esper.make_host(esper.MLPHostConfig(n_features=2, n_classes=3))
        >>> host(torch.zeros(5, 2)).shape
        torch.Size([5, 3])
    """

    n_features: int = 64
    """Number of input features."""
    n_classes: int = 10
    """Number of classes, or of outputs for regression."""
    width: int = 16
    """Width of the residual stream."""
    hidden: int = 16
    """Hidden units of each block."""
    n_blocks: int = 2
    """Number of blocks, each with a slot."""
    has_skips: bool = True
    """Whether blocks have skip connections."""
    activation: Literal["relu", "gelu", "tanh"] = "relu"
    """Activation of the hidden units."""
    has_norm: bool = False
    """Whether the input of each block is normalized (LayerNorm)."""

    def __post_init__(self) -> None:
        _require_sizes(self, "n_features", "n_classes", "width", "hidden", "n_blocks")
        require_bool("has_skips", self.has_skips)
        require_choice("activation", self.activation, MLP_ACTIVATIONS)
        require_bool("has_norm", self.has_norm)


@dataclass(frozen=True, kw_only=True)
class CNNHostConfig:
    """A residual network of 3x3 convolutions for images.

    Examples:
        >>> host = esper.make_host(esper.CNNHostConfig(image_size=8))
        >>> host(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 10])
    """

    image_size: int = 8
    """Height and width of an image."""
    n_channels: int = 1
    """Channels of an image."""
    n_classes: int = 10
    """Number of classes, or of outputs for regression."""
    width: int = 8
    """Channels of the residual stream."""
    hidden: int = 8
    """Channels between the two convolutions of each block."""
    n_blocks: int = 2
    """Number of residual blocks, each with a slot."""

    def __post_init__(self) -> None:
        _require_sizes(self, "image_size", "n_channels", "n_classes", "width", "hidden", "n_blocks")


@dataclass(frozen=True, kw_only=True)
class GPTHostConfig:
    """A causal pre-norm transformer over tokens.

    Examples:
        >>> host = esper.make_host(esper.GPTHostConfig(vocabulary=64, context=32))
        >>> host(torch.zeros(5, 32, dtype=torch.long)).shape
        torch.Size([5, 32, 64])
    """

    vocabulary: int = 64
    """Number of distinct tokens."""
    context: int = 32
    """Context length in tokens."""
    width: int = 16
    """Width of the residual stream."""
    hidden: int = 32
    """Hidden units of each block's MLP."""
    n_heads: int = 2
    """Number of attention heads; must divide the width."""
    n_blocks: int = 2
    """Number of transformer blocks, each with a slot around it and one around its MLP."""

    def __post_init__(self) -> None:
        _require_sizes(self, "vocabulary", "context", "width", "hidden", "n_heads", "n_blocks")
        if self.width % self.n_heads:
            raise ConfigError(
                f"width is {self.width}; it must be a multiple of n_heads, which is {self.n_heads}."
            )


HostConfig = MLPHostConfig | CNNHostConfig | GPTHostConfig


def _require_sizes(config: HostConfig, *names: str) -> None:
    for name in names:
        most = MOST_BLOCKS if name == "n_blocks" else MOST_INT
        require_int(name, getattr(config, name), least=1, most=most)

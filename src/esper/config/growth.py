"""Settings of growth: stages, the governor, budgets, rewards, populations and hosts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict, get_args

from esper.config.checks import (
    Bounds,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Settings,
)
from esper.errors import ConfigError

MAX_EPOCHS = 100_000
"""Maximum epochs of an episode. This and what follows bound the time that a file can ask for."""

MAX_BATCHES_PER_EPOCH = 1_000_000

MAX_BLOCKS = 1000
"""Maximum blocks of a host, each of which has slots; other sizes are bounded by memory."""


@dataclass(frozen=True, kw_only=True)
class GrowthConfig(Settings):
    """How seeds start, and how long they stay in a stage before its gate opens.

    Examples:
        >>> config = esper.GrowthConfig(min_training_epochs=2)
        >>> config.min_training_epochs
        2
    """

    min_training_epochs: NonNegativeInt = 1
    """Epochs that a seed trains before it may blend."""

    min_holding_epochs: NonNegativeInt = 1
    """Epochs that a seed is held before it may be fossilized."""

    embargo_epochs: PositiveInt = 2
    """Epochs that a slot is closed after a seed was pruned or fossilized."""

    advances_alone: bool = False
    """Whether seeds advance by themselves as soon as their gate opens. The controller then decides
    only what to germinate, fossilize and prune, and how to blend."""

    commits_at_once: bool = True
    """Whether new units and copied blocks are committed, at their alpha target, as soon as they
    germinate. They change nothing yet, so the model computes what it did and all of it trains
    together. If not, they are blended in. Modules beside a block are always blended in."""

    max_widening: Annotated[float, Bounds(1.0)] | None = None
    """Units of a place, and blocks of a list, that may be reached, relative to those it had; None
    for no limit. A seed takes what is left of it, and then the slot is closed."""

    deepen_start: Literal["copied", "fresh"] = "copied"
    """Weights of a copied block behind its zeroed layers: the block's own, or newly drawn ones."""


@dataclass(frozen=True, kw_only=True)
class GovernorConfig(Settings):
    """When a loss is an outlier. Losses and gradients that are not finite always stop an update.

    Examples:
        >>> config = esper.GovernorConfig(untrained_loss=1e9)
        >>> config.untrained_loss
        1000000000.0
    """

    warmup_losses: Annotated[int, Bounds(2)] = 20
    """Losses observed, at first and after a rollback, before the bound is at its narrowest."""

    warmup_factor: Annotated[float, Bounds(1.0)] = 1000.0
    """Multiple of the first loss that an outlier must reach until then. Each further outlier in a
    row multiplies it again."""

    untrained_loss: PositiveFloat = 1e3
    """Used in place of the first loss, to judge the first loss itself."""

    memory: Annotated[float, Bounds(0.0, 0.9999)] = 0.95
    """Decay of the running mean and deviation of the loss, in [0, 1)."""

    outlier_deviations: PositiveFloat = 10.0
    """Standard deviations above the running mean that an outlier must reach."""

    outlier_factor: Annotated[float, Bounds(1.0)] = 3.0
    """Multiple of the running mean that an outlier must reach."""

    outlier_floor: NonNegativeFloat = 1.0
    """Rise above the running mean that an outlier must reach."""


@dataclass(frozen=True, kw_only=True)
class Budget(Settings):
    """Length of an episode, and its prices in units of the task's score.

    Examples:
        >>> esper.Budget(n_epochs=8, flop_price=0.1)
        Budget(n_epochs=8, flop_price=0.1, parameter_rent=0.02)
    """

    n_epochs: Annotated[int, Bounds(1, MAX_EPOCHS)] = 16
    """Epochs that a host may train, which is the number of decisions in an episode."""

    flop_price: NonNegativeFloat = 0.2
    """Score that the FLOPs of one reference run cost."""

    parameter_rent: NonNegativeFloat = 0.02
    """Score lost for doubling the host's parameters for a whole run."""


RewardForm = Literal["dense", "sparse", "paired", "scheduled"]
RELATIVE_REWARDS: tuple[RewardForm, ...] = ("paired", "scheduled")
"""Forms that are relative to the same host with another controller."""


@dataclass(frozen=True, kw_only=True)
class RewardConfig(Settings):
    """How an episode's return is distributed over its steps.

    With gamma 1 the sum of rewards is the same for all settings, minus what the same host with
    another controller would have got if rewards are paired or scheduled; otherwise the
    discounted sum is the same for all values of ``shaping``.

    Examples:
        >>> esper.RewardConfig()
        RewardConfig(reward='dense', shaping=0.02, governor_penalty=0.01, gamma=1.0)
    """

    reward: RewardForm = "dense"
    """Reward every step (dense), only the last one (sparse), or every step relative to the same
    epoch of the same host: with no growth (paired), or grown by the fixed schedule that suits its
    price (scheduled)."""

    shaping: NonNegativeFloat = 0.02
    """Shaping potential of a host with a committed seed in every slot, in score; 0 for no
    shaping."""

    governor_penalty: NonNegativeFloat = 0.01
    """Penalty for each epoch that the governor rolls back, in score."""

    gamma: Annotated[float, Bounds(above=0.0, maximum=1.0)] = 1.0
    """Discount factor used in shaping; must equal ppo.gamma."""


Optimizer = Literal["sgd", "adam", "adamw"]
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)
Decay = Annotated[float, Bounds(0.0, 0.999999)]


@dataclass(frozen=True, kw_only=True)
class PopulationConfig(Settings):
    """How the hosts of a population are trained.

    Examples:
        >>> config = esper.PopulationConfig(batch_size=16)
        >>> config.batch_size
        16
    """

    batch_size: Annotated[int, Bounds(2)] = 32
    """Samples per batch; all samples for hosts that have fewer."""

    batches_per_epoch: Annotated[int, Bounds(1, MAX_BATCHES_PER_EPOCH)] | None = None
    """Batches per epoch, reshuffling as needed; None for one pass over all full batches."""

    optimizer: Optimizer = "adamw"
    """Optimizer of the hosts."""

    learning_rate: PositiveFloat = 1e-3
    """Learning rate of hosts that don't set their own."""

    weight_decay: NonNegativeFloat = 0.0
    """Weight decay; decoupled from the gradient for adamw."""

    momentum: Decay = 0.9
    """Momentum of sgd."""

    beta1: Decay = 0.9
    """Decay of the mean gradient, for adam and adamw."""

    beta2: Decay = 0.999
    """Decay of the squared gradient, for adam and adamw."""

    adam_eps: PositiveFloat = 1e-8
    """Epsilon of adam and adamw."""


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


Activation = Literal["relu", "gelu", "tanh"]
MLP_ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)


@dataclass(frozen=True, kw_only=True)
class MLPHostConfig(Settings):
    """An MLP for vectors, residual by default.

    Examples:
        >>> host = esper.make_host(esper.MLPHostConfig(n_features=2, n_classes=3))
        >>> host(torch.zeros(5, 2)).shape
        torch.Size([5, 3])
    """

    n_features: PositiveInt = 64
    """Number of input features."""
    n_classes: PositiveInt = 10
    """Number of classes, or of outputs for regression."""
    width: PositiveInt = 16
    """Width of the residual stream."""
    hidden: PositiveInt = 16
    """Hidden units of each block."""
    n_blocks: Annotated[int, Bounds(1, MAX_BLOCKS)] = 2
    """Number of blocks, each with a slot."""
    has_skips: bool = True
    """Whether blocks have skip connections."""
    activation: Activation = "relu"
    """Activation of the hidden units."""
    has_norm: bool = False
    """Whether the input of each block is normalized (LayerNorm)."""


@dataclass(frozen=True, kw_only=True)
class CNNHostConfig(Settings):
    """A residual network of 3x3 convolutions for images.

    Examples:
        >>> host = esper.make_host(esper.CNNHostConfig(image_size=8))
        >>> host(torch.zeros(5, 1, 8, 8)).shape
        torch.Size([5, 10])
    """

    image_size: PositiveInt = 8
    """Height and width of an image."""
    n_channels: PositiveInt = 1
    """Channels of an image."""
    n_classes: PositiveInt = 10
    """Number of classes, or of outputs for regression."""
    width: PositiveInt = 8
    """Channels of the residual stream."""
    hidden: PositiveInt = 8
    """Channels between the two convolutions of each block."""
    n_blocks: Annotated[int, Bounds(1, MAX_BLOCKS)] = 2
    """Number of residual blocks, each with a slot."""


@dataclass(frozen=True, kw_only=True)
class GPTHostConfig(Settings):
    """A causal pre-norm transformer over tokens.

    Examples:
        >>> host = esper.make_host(esper.GPTHostConfig(vocabulary=64, context=32))
        >>> host(torch.zeros(5, 32, dtype=torch.long)).shape
        torch.Size([5, 32, 64])
    """

    vocabulary: PositiveInt = 64
    """Number of distinct tokens."""
    context: PositiveInt = 32
    """Context length in tokens."""
    width: PositiveInt = 16
    """Width of the residual stream."""
    hidden: PositiveInt = 32
    """Hidden units of each block's MLP."""
    n_heads: PositiveInt = 2
    """Number of attention heads; must divide the width."""
    n_blocks: Annotated[int, Bounds(1, MAX_BLOCKS)] = 2
    """Number of transformer blocks, each with a slot around it and one around its MLP."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.n_heads:
            raise ConfigError(
                f"width is {self.width}; it must be a multiple of n_heads, which is {self.n_heads}."
            )


HostConfig = MLPHostConfig | CNNHostConfig | GPTHostConfig

"""Settings of policy networks and of the PPO update, named as in Stable-Baselines3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from esper.config.checks import (
    Bounds,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Settings,
    UnitInterval,
)
from esper.config.sb3_names import reject_unknown
from esper.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class PolicyConfig(Settings):
    """Sizes of the recurrent actor-critic network."""

    feature_size: Annotated[int, Bounds(2)] = 128
    """Width of the layer between the observation and the LSTM; one unit is reserved for resets."""

    lstm_size: PositiveInt = 128
    """Width of the LSTM's hidden state."""

    slot_size: PositiveInt = 32
    """Width of the encoding of each slot in a policy for growth."""

    embedding_size: PositiveInt = 4
    """Width of the embedding of a categorical feature, such as a blueprint."""

    normalize_observations: bool = False
    """Normalise each feature by its running mean and standard deviation."""


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(Settings):
    """The network that :class:`esper.simic.PPO` builds for an environment.

    Args:
        hidden_sizes: Widths of the hidden layers; the policy and the value function have their own.
        value_sizes: Widths of the hidden layers of the value function; None: as hidden_sizes.
        activation: Activation of the hidden layers.
        feature_size: Width of the layer before an LSTM.
        lstm_size: Width of the LSTM's hidden state.
        image_size: Width of the encoding of an image.
        squash: Squash continuous actions into their bounds by tanh instead of clipping them.
        log_std_init: Initial logarithm of the standard deviation of continuous actions.
        normalize_observations: Normalise vector observations by their running mean and standard
            deviation.
    """

    hidden_sizes: tuple[PositiveInt, ...] = (64, 64)
    value_sizes: tuple[PositiveInt, ...] | None = None
    activation: Literal["tanh", "relu"] = "tanh"
    feature_size: Annotated[int, Bounds(2)] = 128
    lstm_size: PositiveInt = 128
    image_size: PositiveInt = 512
    squash: bool = False
    log_std_init: float = 0.0
    normalize_observations: bool = False

    def __new__(cls, **settings: Any) -> Self:
        """Reject unknown settings, with what to write for those of Stable-Baselines3."""
        reject_unknown("NetworkConfig", settings, cls.__dataclass_fields__)
        return super().__new__(cls)


@dataclass(frozen=True, kw_only=True)
class PPOConfig(Settings):
    """Settings of one PPO update over one collected rollout.

    Args:
        learning_rate: Step size of Adam.
        n_epochs: Passes over the rollout in one update.
        batch_size: Steps of a minibatch; a recurrent policy rounds to whole sequences.
        n_minibatches: Minibatches of each pass, instead of batch_size; None: use batch_size.
        sequence_length: Steps through which gradients flow back in a recurrent policy; None: the
            whole rollout.
        gamma: Discount factor, in [0, 1].
        gae_lambda: Trace decay of the advantages: 0 trusts the critic alone, 1 the observed rewards
            alone.
        clip_range: How far a probability ratio may leave 1 before its gradient stops.
        clip: Clip the ratio of each head of an action, or the ratio of the whole action.
        clip_range_vf: How far a value may leave its old value, in standard deviations of the
            return; None: freely.
        ent_coef: Weight of the entropy bonus.
        vf_coef: Weight of the value loss.
        max_grad_norm: Norm to which the gradient is clipped; None: not at all.
        target_kl: The update stops when approx_kl exceeds 1.5 times this; None: never.
        normalize_advantage: Normalise advantages to mean 0 and standard deviation 1 over the
            rollout.
        normalize_returns: Train the critic on returns in units of their running standard deviation.
    """

    learning_rate: NonNegativeFloat = 3e-4
    n_epochs: Annotated[int, Bounds(1, 10_000)] = 10
    batch_size: PositiveInt = 64
    n_minibatches: PositiveInt | None = None
    sequence_length: PositiveInt | None = None
    gamma: UnitInterval = 0.99
    gae_lambda: UnitInterval = 0.95
    clip_range: NonNegativeFloat = 0.2
    clip: Literal["per-head", "joint"] = "per-head"
    clip_range_vf: NonNegativeFloat | None = None
    ent_coef: NonNegativeFloat = 0.0
    vf_coef: NonNegativeFloat = 0.5
    max_grad_norm: PositiveFloat | None = 0.5
    target_kl: PositiveFloat | None = None
    normalize_advantage: bool = True
    normalize_returns: bool = True

    @property
    def kl_limit(self) -> float:
        """The approx_kl above which an update stops."""
        return float("inf") if self.target_kl is None else 1.5 * self.target_kl

    def require_agreement(self, n_envs: int, n_steps: int, prefix: str = "") -> None:
        """Raise ConfigError if ``n_minibatches`` contradicts ``batch_size``."""
        needed = max(1, round(n_envs * n_steps / self.batch_size))
        if self.n_minibatches not in (None, needed):
            raise ConfigError(
                f"{prefix}batch_size is {self.batch_size} and {prefix}n_minibatches is "
                f"{self.n_minibatches}, but a rollout has {n_envs * n_steps} steps ({n_envs} "
                f"environments, n_steps {n_steps}), which makes {needed}; give only one of them."
            )

    def count_minibatches(self, n_steps: int, n_sequences: int) -> int:
        """Return how many minibatches a pass over a rollout has.

        Raises:
            ConfigError: If ``n_minibatches`` asks for more than there are sequences.
        """
        if self.n_minibatches is None:
            return max(1, min(n_sequences, round(n_steps / self.batch_size)))
        if self.n_minibatches > n_sequences:
            raise ConfigError(
                f"n_minibatches is {self.n_minibatches}, but the rollout has {n_sequences} "
                "sequences; use fewer minibatches, or set sequence_length."
            )
        return self.n_minibatches

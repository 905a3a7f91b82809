"""Settings of policy networks and of the PPO update, named as in Stable-Baselines3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

from esper.config.checks import (
    reject_unknown,
    require_bool,
    require_choice,
    require_int,
    require_number,
)
from esper.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """Sizes of the recurrent actor-critic network."""

    feature_size: int = 128
    """Width of the layer between the observation and the LSTM; one unit is reserved for resets."""

    lstm_size: int = 128
    """Width of the LSTM's hidden state."""

    slot_size: int = 32
    """Width of the encoding of each slot in a policy for growth."""

    embedding_size: int = 4
    """Width of the embedding of a categorical feature, such as a blueprint."""

    normalize_observations: bool = False
    """Normalise each feature by its running mean and standard deviation."""

    def __post_init__(self) -> None:
        require_int("feature_size", self.feature_size, least=2)
        require_int("lstm_size", self.lstm_size, least=1)
        require_int("slot_size", self.slot_size, least=1)
        require_int("embedding_size", self.embedding_size, least=1)
        require_bool("normalize_observations", self.normalize_observations)


_POLICY_KWARGS = {
    "net_arch": "write hidden_sizes=(64, 64)",
    "activation_fn": "write activation='relu' or 'tanh'",
    "squash_output": "write squash=True",
    "lstm_hidden_size": "write lstm_size=",
    "n_lstm_layers": "leave it out: the LSTM has one layer",
    "shared_lstm": "leave it out: policy and value share the LSTM",
    "enable_critic_lstm": "leave it out: policy and value share the LSTM",
    "ortho_init": "leave it out: weights are always drawn so",
    "normalize_images": "leave it out: uint8 images are always scaled to 0 to 1",
    "features_extractor_class": "pass a network of your own as PPO(policy=...)",
    "features_extractor_kwargs": "pass a network of your own as PPO(policy=...)",
    "optimizer_class": "leave it out: the optimizer is Adam",
    "optimizer_kwargs": "leave it out: the optimizer is Adam",
}
"""Settings that Stable-Baselines3 has in ``policy_kwargs``, and what to do instead."""


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """The network that :class:`esper.simic.PPO` builds for an environment.

    Args:
        hidden_sizes: Widths of the hidden layers; the policy and the value function have their own.
        activation: Activation of the hidden layers.
        feature_size: Width of the layer before an LSTM.
        lstm_size: Width of the LSTM's hidden state.
        image_size: Width of the encoding of an image.
        squash: Squash continuous actions into their bounds by tanh instead of clipping them.
        log_std_init: Initial logarithm of the standard deviation of continuous actions.
        normalize_observations: Normalise vector observations by their running mean and standard
            deviation.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    feature_size: int = 64
    lstm_size: int = 64
    image_size: int = 512
    squash: bool = False
    log_std_init: float = 0.0
    normalize_observations: bool = False

    def __new__(cls, **settings: Any) -> Self:
        """Reject unknown settings, with what to write for those of Stable-Baselines3."""
        reject_unknown("NetworkConfig", settings, cls.__dataclass_fields__, _POLICY_KWARGS)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if not isinstance(self.hidden_sizes, (tuple, list)) or not all(
            isinstance(size, int) for size in self.hidden_sizes
        ):
            raise ConfigError(
                f"hidden_sizes is {self.hidden_sizes!r}; it must be a tuple of widths, "
                "such as (64, 64)."
            )
        object.__setattr__(self, "hidden_sizes", tuple(self.hidden_sizes))
        for size in self.hidden_sizes:
            require_int("hidden_sizes", size, least=1)
        require_choice("activation", self.activation, ("tanh", "relu"))
        require_int("feature_size", self.feature_size, least=2)
        require_int("lstm_size", self.lstm_size, least=1)
        require_int("image_size", self.image_size, least=1)
        require_bool("squash", self.squash)
        require_number("log_std_init", self.log_std_init)
        require_bool("normalize_observations", self.normalize_observations)


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Settings of one PPO update over one collected rollout.

    Args:
        learning_rate: Step size of Adam.
        n_epochs: Passes over the rollout in one update.
        batch_size: Steps of a minibatch; a recurrent policy rounds to whole sequences.
        n_minibatches: Minibatches of each pass, instead of batch_size; None: as batch_size says.
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
        max_grad_norm: Norm to which the gradient is clipped.
        target_kl: The update stops when approx_kl exceeds 1.5 times this; None: never.
        normalize_advantage: Normalise advantages to mean 0 and standard deviation 1 over the
            rollout.
        normalize_returns: Train the critic on returns in units of their running standard deviation.
    """

    learning_rate: float = 3e-4
    n_epochs: int = 10
    batch_size: int = 64
    n_minibatches: int | None = None
    sequence_length: int | None = None
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    clip: Literal["per-head", "joint"] = "per-head"
    clip_range_vf: float | None = None
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    target_kl: float | None = None
    normalize_advantage: bool = True
    normalize_returns: bool = True

    def __post_init__(self) -> None:
        require_number("learning_rate", self.learning_rate, least=0.0)
        require_int("n_epochs", self.n_epochs, least=1, most=10_000)
        require_int("batch_size", self.batch_size, least=1)
        if self.n_minibatches is not None:
            require_int("n_minibatches", self.n_minibatches, least=1)
        if self.sequence_length is not None:
            require_int("sequence_length", self.sequence_length, least=1)
        require_number("gamma", self.gamma, least=0.0, most=1.0)
        require_number("gae_lambda", self.gae_lambda, least=0.0, most=1.0)
        require_number("clip_range", self.clip_range, least=0.0)
        require_choice("clip", self.clip, ("per-head", "joint"))
        if self.clip_range_vf is not None:
            require_number("clip_range_vf", self.clip_range_vf, above=0.0)
        require_number("ent_coef", self.ent_coef, least=0.0)
        require_number("vf_coef", self.vf_coef, least=0.0)
        require_number("max_grad_norm", self.max_grad_norm, above=0.0)
        if self.target_kl is not None:
            require_number("target_kl", self.target_kl, above=0.0)
        require_bool("normalize_advantage", self.normalize_advantage)
        require_bool("normalize_returns", self.normalize_returns)

    @property
    def kl_limit(self) -> float:
        """The approx_kl above which an update stops."""
        return float("inf") if self.target_kl is None else 1.5 * self.target_kl

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

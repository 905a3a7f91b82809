"""Settings of the policy network and of the PPO update, under the names of Stable-Baselines3."""

from __future__ import annotations

from dataclasses import dataclass

from esper.config.checks import require_bool, require_int, require_number


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """Sizes of the recurrent actor-critic network."""

    feature_size: int = 128
    """Width of the layer between the observation and the LSTM; one of it is kept for resets."""

    lstm_size: int = 128
    """Width of the LSTM's hidden state."""

    slot_size: int = 32
    """Numbers that a policy for growth makes of each slot, whatever the number of slots."""

    embedding_size: int = 4
    """Numbers that stand for a category (a blueprint) among the observation's columns."""

    normalize_observations: bool = False
    """Whether observations are shifted and scaled by the running mean and deviation of each
    column."""

    def __post_init__(self) -> None:
        require_int("feature_size", self.feature_size, least=2)
        require_int("lstm_size", self.lstm_size, least=1)
        require_int("slot_size", self.slot_size, least=1)
        require_int("embedding_size", self.embedding_size, least=1)
        require_bool("normalize_observations", self.normalize_observations)


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Settings of one PPO update over one collected rollout."""

    learning_rate: float = 3e-4
    """Step size of Adam."""

    n_epochs: int = 4
    """Passes over the rollout in one update."""

    n_minibatches: int = 1
    """Parts that each pass is split into; whole sequences are kept together."""

    sequence_length: int | None = None
    """Steps that gradients flow back through; None for the whole rollout of an environment."""

    gamma: float = 0.99
    """Discount factor, in [0, 1]."""

    gae_lambda: float = 0.95
    """Trace decay of the advantages: 0 trusts the critic alone, 1 the observed rewards alone."""

    clip_range: float = 0.2
    """How far a head's probability ratio may leave 1 before its gradient stops."""

    clip_range_vf: float | None = None
    """How far a value may leave its old value, in standard deviations of the return; None: freely.
    """

    ent_coef: float = 0.01
    """Weight of the entropy bonus."""

    vf_coef: float = 0.5
    """Weight of the value loss."""

    max_grad_norm: float = 0.5
    """Norm that the gradient is clipped to."""

    target_kl: float | None = 0.02
    """The update stops when approx_kl exceeds 1.5 times this; None: never."""

    normalize_advantage: bool = True
    """Whether advantages are shifted and scaled to mean 0 and deviation 1 over the rollout."""

    normalize_returns: bool = True
    """Whether the critic learns returns in units of their running deviation."""

    def __post_init__(self) -> None:
        require_number("learning_rate", self.learning_rate, above=0.0)
        require_int("n_epochs", self.n_epochs, least=1)
        require_int("n_minibatches", self.n_minibatches, least=1)
        if self.sequence_length is not None:
            require_int("sequence_length", self.sequence_length, least=1)
        require_number("gamma", self.gamma, least=0.0, most=1.0)
        require_number("gae_lambda", self.gae_lambda, least=0.0, most=1.0)
        require_number("clip_range", self.clip_range, above=0.0)
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

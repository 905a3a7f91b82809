"""Settings of a training run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from esper.config.checks import (
    make_numbers_plain,
    require_bool,
    require_choice,
    require_int,
    require_number,
    require_seed,
)
from esper.config.growth import Budget, RewardConfig
from esper.config.held_out_hosts import MOST_TRIAL_HOSTS
from esper.config.learning import PolicyConfig, PPOConfig
from esper.errors import ConfigError

SCHEDULES = ("constant", "linear", "cosine")
FIRST_POLICIES = ("cautious", "taught")
MOST_THREADS = 1024
SINKS = ("tensorboard", "wandb", "trackio")

OWN_TRAINING = "own training"
"""The task of a run that records a training loop of the user's own, with ``Grower.record``."""

PPO_TRAINING = "PPO on "
"""What the task of a run begins with that records ``PPO.learn``; the environment's name follows."""

OptionValue = bool | int | float | str


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Schedules of the learning rate and the entropy coefficient over the run."""

    learning_rate: Literal["constant", "linear", "cosine"] = "linear"
    """Schedule of ppo.learning_rate."""

    learning_rate_end: float = 0.2
    """Final learning rate, relative to the initial one."""

    ent_coef: Literal["constant", "linear", "cosine"] = "linear"
    """Schedule of ppo.ent_coef."""

    ent_coef_end: float = 0.1
    """Final entropy coefficient, relative to the initial one."""

    def __post_init__(self) -> None:
        require_choice("learning_rate", self.learning_rate, SCHEDULES)
        require_number("learning_rate_end", self.learning_rate_end, above=0.0)
        require_choice("ent_coef", self.ent_coef, SCHEDULES)
        require_number("ent_coef_end", self.ent_coef_end, least=0.0)
        make_numbers_plain(self)


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Evaluation of the controller on held-out hosts."""

    eval_freq: int = 10
    """Rounds between evaluations; the last round is always evaluated."""

    n_eval_episodes: int = 64
    """Hosts per evaluation, the same each time."""

    n_final_episodes: int = 256
    """Hosts in the comparison at the end, which are used for nothing else."""

    deterministic: bool = False
    """Whether to take the most likely action instead of sampling."""

    patience: int | None = None
    """Evaluations without improvement after which the run stops; None for never."""

    min_improvement: float = 0.0
    """Smallest increase in return that counts as an improvement."""

    def __post_init__(self) -> None:
        require_int("eval_freq", self.eval_freq, least=1)
        require_int("n_eval_episodes", self.n_eval_episodes, least=1)
        require_int("n_final_episodes", self.n_final_episodes, least=2)
        if self.n_final_episodes > MOST_TRIAL_HOSTS:
            raise ConfigError(
                f"n_final_episodes is {self.n_final_episodes}; it must be at most "
                f"{MOST_TRIAL_HOSTS}, because hosts with higher numbers are for evaluations."
            )
        require_bool("deterministic", self.deterministic)
        if self.patience is not None:
            require_int("patience", self.patience, least=1)
        require_number("min_improvement", self.min_improvement, least=0.0)
        make_numbers_plain(self)


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Saving of checkpoints."""

    save_freq: int = 80
    """Steps between checkpoints, which may fall within a round; a step of all environments counts
    once."""

    keep_last: int = 3
    """Latest checkpoints to keep, besides the best."""

    def __post_init__(self) -> None:
        require_int("save_freq", self.save_freq, least=1)
        require_int("keep_last", self.keep_last, least=1)
        make_numbers_plain(self)


@dataclass(frozen=True, kw_only=True)
class TelemetryConfig:
    """Recording of telemetry."""

    record_steps: bool = True
    """Whether to record every step of every environment, or only episodes and rounds."""

    sinks: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Trackers to send metrics to, besides the run's own database."""

    def __post_init__(self) -> None:
        require_bool("record_steps", self.record_steps)
        if isinstance(self.sinks, str) or not isinstance(self.sinks, (tuple, list)):
            raise ConfigError(f"sinks is {self.sinks!r}; it must be a list of names.")
        object.__setattr__(self, "sinks", tuple(self.sinks))
        for index, name in enumerate(self.sinks):
            require_choice(f"sinks[{index}]", name, SINKS)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of a training run.

    Examples:
        >>> config = esper.RunConfig(task="spirals", rounds=2)
        >>> config.task, config.rounds
        ('spirals', 2)
    """

    task: str = "digits-family"
    """Task of the hosts: a registered name, or module:function of your own."""

    task_options: dict[str, OptionValue] = field(default_factory=dict[str, OptionValue])
    """Options of the task, by name."""

    rounds: int = 300
    """Number of rounds; each collects rollouts and updates the policy."""

    envs: int = 64
    """Number of hosts grown in parallel."""

    envs_per_shard: int | None = None
    """Most hosts of a shard, the unit of work of worker processes; None for a single shard. Results
    depend on the shards but not on the workers."""

    n_steps: int = 16
    """Steps per host and round."""

    seed: int = 0
    """Random seed."""

    threads: int = 1
    """PyTorch threads. Small hosts are fastest with one."""

    first_policy: Literal["cautious", "taught"] = "cautious"
    """How the policy starts: growing a little of everything, or taught by hosts that were grown by
    every schedule."""

    budget: Budget = field(default_factory=Budget)
    """Length and price of an episode."""

    rewards: RewardConfig = field(default_factory=RewardConfig)
    """Reward of an episode's steps."""

    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """The controller's network."""

    ppo: PPOConfig = field(
        default_factory=lambda: PPOConfig(
            gamma=1.0, n_epochs=4, n_minibatches=1, ent_coef=0.01, target_kl=0.02
        )
    )
    """The PPO update."""

    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """Schedules of the learning rate and the entropy coefficient."""

    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Evaluation of the controller on held-out hosts."""

    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Saving of checkpoints."""

    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    """Recording of telemetry."""

    def __post_init__(self) -> None:
        if not isinstance(self.task, str) or not self.task:
            raise ConfigError(f"task is {self.task!r}; it must be the name of a task.")
        if not self.task.isprintable():
            raise ConfigError(f"task is {self.task!r}; it must not have control characters.")
        self._require_options()
        self._require_sections()
        require_int("rounds", self.rounds, least=1)
        require_int("envs", self.envs, least=1)
        if self.envs_per_shard is not None:
            require_int("envs_per_shard", self.envs_per_shard, least=1)
        require_int("n_steps", self.n_steps, least=1)
        require_seed(self.seed)
        require_choice("first_policy", self.first_policy, FIRST_POLICIES)
        require_int("threads", self.threads, least=1, most=MOST_THREADS)
        length = self.ppo.sequence_length or self.n_steps
        n_sequences = self.envs * -(-self.n_steps // length)
        if (self.ppo.n_minibatches or 1) > n_sequences and not self.is_ppo_training:
            raise ConfigError(
                f"ppo.n_minibatches is {self.ppo.n_minibatches}; it must be at most {n_sequences}, "
                f"the number of sequences in a rollout of {self.envs} hosts."
            )
        is_shaped = self.rewards.shaping and not self.is_ppo_training
        if self.ppo.gamma != self.rewards.gamma and is_shaped:
            raise ConfigError(
                f"ppo.gamma is {self.ppo.gamma} and rewards.gamma is {self.rewards.gamma}; "
                "they must be equal for shaping."
            )
        make_numbers_plain(self)

    @property
    def is_own_training(self) -> bool:
        """Whether the run records a training loop of the user's own, so that nothing is learned.

        Its rounds are epochs, and settings of learning have no meaning.
        """
        return self.task == OWN_TRAINING

    @property
    def is_ppo_training(self) -> bool:
        """Whether the run records ``PPO.learn`` on some environment, so that no hosts are grown."""
        return self.task.startswith(PPO_TRAINING)

    def _require_sections(self) -> None:
        """Reject sections that are of another class."""
        for name, kind in _SECTIONS.items():
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise ConfigError(f"{name} is {value!r}; it must be a {kind.__name__}.")

    def _require_options(self) -> None:
        """Reject task options that a TOML file cannot hold."""
        if not isinstance(self.task_options, dict):
            raise ConfigError(f"task_options is {self.task_options!r}; it must be a dict.")
        for name, value in self.task_options.items():
            is_plain = isinstance(value, (bool, int, str))
            is_finite = isinstance(value, float) and math.isfinite(value)
            if not isinstance(name, str) or not (is_plain or is_finite):
                raise ConfigError(
                    f"task_options.{name} is {value!r}; it must be a finite number, a string, or "
                    "true or false."
                )


class RunSettings(TypedDict, total=False):
    """Settings of a :class:`RunConfig` to change; those of a section by name or as a whole."""

    task: str
    task_options: Mapping[str, OptionValue]
    rounds: int
    envs: int
    envs_per_shard: int | None
    n_steps: int
    seed: int
    threads: int
    first_policy: Literal["cautious", "taught"]
    budget: Budget | Mapping[str, Any]
    rewards: RewardConfig | Mapping[str, Any]
    policy: PolicyConfig | Mapping[str, Any]
    ppo: PPOConfig | Mapping[str, Any]
    schedule: ScheduleConfig | Mapping[str, Any]
    evaluation: EvaluationConfig | Mapping[str, Any]
    checkpoints: CheckpointConfig | Mapping[str, Any]
    telemetry: TelemetryConfig | Mapping[str, Any]


_SECTIONS: dict[str, type] = {
    "budget": Budget,
    "rewards": RewardConfig,
    "policy": PolicyConfig,
    "ppo": PPOConfig,
    "schedule": ScheduleConfig,
    "evaluation": EvaluationConfig,
    "checkpoints": CheckpointConfig,
    "telemetry": TelemetryConfig,
}

"""Settings of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

from esper.config.ablation import AblationConfig
from esper.config.checks import (
    Bounds,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Seed,
    Settings,
)
from esper.config.growth import Budget, RewardConfig
from esper.config.held_out_hosts import MAX_TRIAL_HOSTS
from esper.config.learning import PolicyConfig, PPOConfig
from esper.errors import ConfigError

ScheduleShape = Literal["constant", "linear", "cosine"]
MAX_THREADS = 1024

OWN_TRAINING = "own training"
"""The task of a run that records a training loop of the user's own, with ``Grower.record``."""

PPO_TRAINING = "PPO on "
"""What the task of a run begins with that records ``PPO.learn``; the environment's name follows."""

OptionValue = bool | int | float | str

TASKS_BUDGET = Budget()
"""The budget of settings that name none; this very object stands for that of the task."""

TASK_OBJECT = "task object "
"""What the task of a run begins with that was given as an object; its name follows."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Settings):
    """Schedules of the learning rate and the entropy coefficient over the run."""

    learning_rate: ScheduleShape = "linear"
    """Schedule of ppo.learning_rate."""

    learning_rate_end: PositiveFloat = 0.2
    """Final learning rate, relative to the initial one."""

    ent_coef: ScheduleShape = "linear"
    """Schedule of ppo.ent_coef."""

    ent_coef_end: NonNegativeFloat = 0.1
    """Final entropy coefficient, relative to the initial one."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Settings):
    """Evaluation of the controller on held-out hosts."""

    eval_freq: PositiveInt = 10
    """Rounds between evaluations; the last round is always evaluated."""

    n_eval_episodes: PositiveInt = 64
    """Hosts per evaluation, the same each time."""

    n_final_episodes: Annotated[int, Bounds(2, MAX_TRIAL_HOSTS)] = 256
    """Hosts in the comparison at the end, which are used for nothing else."""

    deterministic: bool = False
    """Whether to take the most likely action instead of sampling."""

    patience: PositiveInt | None = None
    """Evaluations without improvement after which the run stops; None for never."""

    min_improvement: NonNegativeFloat = 0.0
    """Smallest increase in return that counts as an improvement."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Settings):
    """Saving of checkpoints."""

    save_freq: PositiveInt = 80
    """Steps between checkpoints, which may fall within a round; a step of all environments counts
    once."""

    keep_last: PositiveInt = 3
    """Latest checkpoints to keep."""


@dataclass(frozen=True, kw_only=True)
class TelemetryConfig(Settings):
    """Recording of telemetry."""

    record_steps: bool = True
    """Whether to record every step of every environment, or only episodes and rounds."""

    sinks: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Trackers to send metrics to, besides the run's own database."""


@dataclass(frozen=True, kw_only=True)
class RunConfig(Settings):
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

    rounds: PositiveInt = 300
    """Number of rounds; each collects rollouts and updates the policy."""

    envs: PositiveInt = 64
    """Number of hosts grown in parallel."""

    envs_per_shard: PositiveInt | None = None
    """Maximum hosts per shard (a shard is what one worker processes at a time); None for a single
    shard. Results depend on the shards but not on the workers."""

    n_steps: PositiveInt = 16
    """Steps per host and round."""

    seed: Seed = 0
    """Random seed."""

    threads: Annotated[int, Bounds(1, MAX_THREADS)] = 1
    """PyTorch threads. Small hosts are fastest with one."""

    first_policy: Literal["cautious", "taught"] = "cautious"
    """How the policy starts: growing a little of everything, or taught by hosts that were grown by
    every schedule."""

    lesson_hosts: PositiveInt = 1536
    """Hosts that teach the policy, if it is taught. Each is grown by every schedule."""

    budget: Budget = TASKS_BUDGET
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

    ablation: AblationConfig = field(default_factory=AblationConfig)
    """What is taken away from the controller, or changed in its world."""

    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """Schedules of the learning rate and the entropy coefficient."""

    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Evaluation of the controller on held-out hosts."""

    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Saving of checkpoints."""

    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    """Recording of telemetry."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.task or not self.task.isprintable():
            raise ConfigError(
                f"task is {self.task!r}; it must be the name of a task, without control characters."
            )
        length = self.ppo.sequence_length or self.n_steps
        n_sequences = self.envs * -(-self.n_steps // length)
        if (self.ppo.n_minibatches or 1) > n_sequences and not self.is_ppo_training:
            raise ConfigError(
                f"ppo.n_minibatches is {self.ppo.n_minibatches}; it must be at most {n_sequences}, "
                f"the number of sequences in a rollout of {self.envs} hosts."
            )
        # What differs from its default was set.
        is_size_set = self.ppo.batch_size != PPOConfig.batch_size and not self.is_ppo_training
        if is_size_set:
            self.ppo.require_agreement(self.envs, self.n_steps, "ppo.")
        is_shaped = self.rewards.shaping and not self.is_ppo_training
        if self.ppo.gamma != self.rewards.gamma and is_shaped:
            raise ConfigError(
                f"ppo.gamma is {self.ppo.gamma} and rewards.gamma is {self.rewards.gamma}; "
                "they must be equal for shaping."
            )

    @property
    def is_own_training(self) -> bool:
        """Whether the run records a training loop of the user's own, so that nothing is learned.

        Its rounds are epochs, and settings of learning have no meaning.
        """
        return self.task == OWN_TRAINING

    @property
    def is_of_task_object(self) -> bool:
        """Whether the task was given as an object, which no file can make again."""
        return self.task.startswith(TASK_OBJECT)

    @property
    def is_ppo_training(self) -> bool:
        """Whether the run records ``PPO.learn`` on some environment, so that no hosts are grown."""
        return self.task.startswith(PPO_TRAINING)


class RunSettings(TypedDict, total=False):
    """Settings of a :class:`RunConfig` to change; those of a section by name or as a whole."""

    task_options: Mapping[str, OptionValue]
    rounds: int
    envs: int
    envs_per_shard: int | None
    n_steps: int
    seed: int
    threads: int
    first_policy: Literal["cautious", "taught"]
    lesson_hosts: int
    budget: Budget | Mapping[str, Any]
    rewards: RewardConfig | Mapping[str, Any]
    policy: PolicyConfig | Mapping[str, Any]
    ppo: PPOConfig | Mapping[str, Any]
    ablation: AblationConfig | Mapping[str, Any]
    schedule: ScheduleConfig | Mapping[str, Any]
    evaluation: EvaluationConfig | Mapping[str, Any]
    checkpoints: CheckpointConfig | Mapping[str, Any]
    telemetry: TelemetryConfig | Mapping[str, Any]

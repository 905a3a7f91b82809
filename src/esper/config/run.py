"""Settings of a whole run: what is learned, by whom, for how long, and what is kept of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from esper.config.checks import (
    make_numbers_plain,
    require_bool,
    require_choice,
    require_int,
    require_number,
)
from esper.config.growth import Budget, RewardConfig
from esper.config.held_out_hosts import MOST_TRIAL_HOSTS
from esper.config.learning import PolicyConfig, PPOConfig
from esper.errors import ConfigError

SCHEDULES = ("constant", "linear", "cosine")
SINKS = ("tensorboard", "wandb", "trackio")

OptionValue = bool | int | float | str


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How rates change from the first round to the last."""

    learning_rate: Literal["constant", "linear", "cosine"] = "linear"
    """The way from ppo.learning_rate to its last value."""

    learning_rate_end: float = 0.2
    """The last learning rate, as a share of the first."""

    ent_coef: Literal["constant", "linear", "cosine"] = "linear"
    """The way from ppo.ent_coef to its last value."""

    ent_coef_end: float = 0.1
    """The last entropy weight, as a share of the first."""

    def __post_init__(self) -> None:
        require_choice("learning_rate", self.learning_rate, SCHEDULES)
        require_number("learning_rate_end", self.learning_rate_end, above=0.0)
        require_choice("ent_coef", self.ent_coef, SCHEDULES)
        require_number("ent_coef_end", self.ent_coef_end, least=0.0)
        make_numbers_plain(self)


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """When the controller is tried on hosts that it does not learn from."""

    eval_freq: int = 10
    """Rounds between evaluations; the last round is always followed by one."""

    n_eval_episodes: int = 64
    """Hosts of such an evaluation, the same each time."""

    n_final_episodes: int = 256
    """Hosts of the comparison at the end, which nothing was chosen by."""

    deterministic: bool = False
    """Whether the likeliest action is taken instead of drawing one."""

    patience: int | None = None
    """Evaluations without a better one after which the run stops; None for never."""

    min_improvement: float = 0.0
    """What an evaluation must be better by, in return, to count as better."""

    def __post_init__(self) -> None:
        require_int("eval_freq", self.eval_freq, least=1)
        require_int("n_eval_episodes", self.n_eval_episodes, least=1)
        require_int("n_final_episodes", self.n_final_episodes, least=2)
        if self.n_final_episodes > MOST_TRIAL_HOSTS:
            raise ConfigError(
                f"n_final_episodes is {self.n_final_episodes}; it must be at most "
                f"{MOST_TRIAL_HOSTS}, hosts with higher numbers are kept for evaluations."
            )
        require_bool("deterministic", self.deterministic)
        if self.patience is not None:
            require_int("patience", self.patience, least=1)
        require_number("min_improvement", self.min_improvement, least=0.0)
        make_numbers_plain(self)


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """How often a run is saved, and how much of it is kept."""

    save_freq: int = 80
    """Steps of all environments between checkpoints, counted as one; also in mid-rollout."""

    keep_last: int = 3
    """Checkpoints that are kept beside the best."""

    def __post_init__(self) -> None:
        require_int("save_freq", self.save_freq, least=1)
        require_int("keep_last", self.keep_last, least=1)
        make_numbers_plain(self)


@dataclass(frozen=True, kw_only=True)
class TelemetryConfig:
    """What is recorded of a run."""

    record_steps: bool = True
    """Whether every step of every environment is recorded, or only episodes and rounds."""

    sinks: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Where metrics are sent besides the run's own database."""

    def __post_init__(self) -> None:
        require_bool("record_steps", self.record_steps)
        if isinstance(self.sinks, str) or not isinstance(self.sinks, (tuple, list)):
            raise ConfigError(f"sinks is {self.sinks!r}; a list of names is needed.")
        object.__setattr__(self, "sinks", tuple(self.sinks))
        for index, name in enumerate(self.sinks):
            require_choice(f"sinks[{index}]", name, SINKS)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that decides a training run."""

    task: str = "digits-family"
    """What hosts learn: the name of a task, or module:function of your own."""

    task_options: dict[str, OptionValue] = field(default_factory=dict[str, OptionValue])
    """Options of the task, by name."""

    rounds: int = 300
    """Rounds of collecting steps and improving the policy."""

    envs: int = 64
    """Hosts that are grown side by side."""

    n_steps: int = 16
    """Steps that each host contributes to a round."""

    seed: int = 0
    """Decides everything that is random."""

    threads: int = 1
    """Threads of PyTorch. Small hosts are fastest with one."""

    budget: Budget = field(default_factory=Budget)
    """How long an episode is, and what it costs."""

    rewards: RewardConfig = field(default_factory=RewardConfig)
    """How an episode's result is spread over its steps."""

    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """The controller's network."""

    ppo: PPOConfig = field(default_factory=lambda: PPOConfig(gamma=1.0))
    """The update."""

    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """How rates change over the run."""

    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """Trials on hosts that are not learned from."""

    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    """What is saved, and when."""

    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)
    """What is recorded."""

    def __post_init__(self) -> None:
        if not isinstance(self.task, str) or not self.task:
            raise ConfigError(f"task is {self.task!r}; it must be the name of a task.")
        self._require_options()
        require_int("rounds", self.rounds, least=1)
        require_int("envs", self.envs, least=1)
        require_int("n_steps", self.n_steps, least=1)
        require_int("seed", self.seed, least=0)
        require_int("threads", self.threads, least=1)
        length = self.ppo.sequence_length or self.n_steps
        n_sequences = self.envs * -(-self.n_steps // length)
        if self.ppo.n_minibatches > n_sequences:
            raise ConfigError(
                f"ppo.n_minibatches is {self.ppo.n_minibatches}; a rollout of {self.envs} hosts "
                f"has {n_sequences} sequences, so it must be at most that."
            )
        if self.ppo.gamma != self.rewards.gamma and self.rewards.shaping:
            raise ConfigError(
                f"ppo.gamma is {self.ppo.gamma} and rewards.gamma is {self.rewards.gamma}; "
                "shaping needs them to be equal."
            )
        make_numbers_plain(self)

    def _require_options(self) -> None:
        """Refuse options of the task that no file could hold."""
        if not isinstance(self.task_options, dict):
            raise ConfigError(f"task_options is {self.task_options!r}; it must be a dict.")
        for name, value in self.task_options.items():
            is_plain = isinstance(value, (bool, int, str))
            is_finite = isinstance(value, float) and math.isfinite(value)
            if not isinstance(name, str) or not (is_plain or is_finite):
                raise ConfigError(
                    f"task_options.{name} is {value!r}; it must be a finite number, a word or a "
                    "flag."
                )

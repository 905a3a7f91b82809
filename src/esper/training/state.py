"""The state of a run: everything its next step depends on, as tensors and plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, cast

from torch import Tensor

from esper.config.growth import GrowthConfig
from esper.config.run import RunConfig
from esper.config.toml import read_toml, write_toml
from esper.errors import CheckpointError, EsperError, OtherVersionError
from esper.lifecycle.slot_config import SlotConfig
from esper.simic.agent import PPOAgent, TamiyoRolloutBuffer
from esper.storage.state import State
from esper.tamiyo.policy.observations import VERSION
from esper.tamiyo.policy.slot_network import SlotPolicy
from esper.training.records import RoundTally
from esper.training.shards import Position, ShardedRollout

Phase = Literal["starting", "collecting", "evaluating", "done"]


@dataclass
class Progress:
    """How far a run is, and the plain values its next decisions depend on."""

    phase: Phase = "starting"
    """What comes next: the trials before the first round, a rollout, an evaluation, or nothing."""

    round: int = 0
    """Number of completed rounds."""

    step: int = 0
    """Number of steps; a step of all environments counts once."""

    n_updates: int = 0
    """Number of successful updates."""

    refusals_in_a_row: int = 0
    """Number of rejected updates since the last successful one."""

    no_growth_score: float | None = None
    """Mean score with no growth, on the hosts of evaluations."""

    fixed_return: float | None = None
    """Mean return of the fixed schedule on the same hosts."""

    fixed_stop: int | None = None
    """Epochs after which it stops its hosts; None before its trial."""

    passed_round: int | None = None
    """The round after which an evaluation first beat the fixed schedule."""

    best_return: float | None = None
    """Mean return of the best evaluation."""

    best_round: int | None = None
    """The round of the best evaluation."""

    evaluations_since_best: int = 0

    telemetry_position: int = 0
    """Number of telemetry records written."""


class RunParts:
    """The mutable parts of a run; each saves and loads its own state."""

    def __init__(
        self,
        config: RunConfig,
        agent: PPOAgent,
        rollout: ShardedRollout,
        *,
        growth: GrowthConfig | None,
        slot_config: SlotConfig,
        task_facts: dict[str, Any],
    ) -> None:
        """Put the parts together.

        Args:
            config: Settings of the run.
            agent: The agent that learns.
            rollout: The hosts, which act with the agent's weights.
            growth: The rules of growth of the task.
            slot_config: The slots of the hosts.
            task_facts: What users of the controller should know of the task.
        """
        self.config, self.agent, self.rollout = config, agent, rollout
        policy = agent.policy
        assert isinstance(policy, SlotPolicy), "a run trains a policy for growth"
        self.policy = policy
        self.buffer: TamiyoRolloutBuffer = agent.make_buffer(config.envs, config.n_steps)
        self.growth, self.slot_config, self.task_facts = growth, slot_config, task_facts
        self.progress = Progress()
        self.tally: RoundTally | None = None
        """The tally of a round whose rollout is complete; None before that."""
        self.best_policy: dict[str, Tensor] = {}
        """The weights of the best evaluation; empty before the first evaluation."""
        self.best_returns: dict[str, float] = {}
        """Mean and standard deviation of returns, the units of that policy's values."""

    @property
    def position(self) -> Position:
        """Where the shards stand."""
        return Position(self.progress.round + 1, self.progress.step)

    def keep_best(self) -> None:
        """Keep the current policy as the best one."""
        weights, scale = self.policy.state_dict(), self.agent.normalizer
        self.best_policy = {name: tensor.clone() for name, tensor in weights.items()}
        self.best_returns = {"return_mean": float(scale.mean), "return_std": float(scale.std)}

    def save(self) -> State:
        """Return a state from which :meth:`load` continues bit for bit."""
        return {
            "agent": self.agent.state_dict(),
            "shards": self.rollout.save(),
            "buffer": self.buffer.state_dict(),
            "tally": None if self.tally is None else self.tally.state_dict(),
            # All that a controller needs besides the settings of the run.
            "best_policy": {
                "weights": dict(self.best_policy),
                "observations": VERSION,
                "blueprints": list(self.slot_config.blueprints),
                "growth": None if self.growth is None else asdict(self.growth),
                "returns": self.best_returns,
                "task": self.task_facts,
            },
            "progress": asdict(self.progress),
            "config": write_toml(self.config),
        }

    def load(self, state: State) -> None:
        """Continue from what :meth:`save` returned.

        Raises:
            CheckpointError: If the state belongs to another run.
            OtherVersionError: If something is missing that this version of Esper saves.
        """
        try:
            require_saved_config(self.config, state)
            self.agent.load_state_dict(state["agent"])
            self.buffer.load_state_dict(state["buffer"])
            self.tally = RoundTally(self.config.envs) if self.buffer.is_full else None
            if self.tally is not None:
                self.tally.load_state_dict(state["tally"])
            best = state["best_policy"]
            self.best_policy = dict(best["weights"])
            self.best_returns = dict(best["returns"])
            for one in fields(self.progress):
                setattr(self.progress, one.name, state["progress"][one.name])
            self.rollout.load(state["shards"], self.position)
        except CheckpointError:
            raise
        except KeyError as error:
            raise OtherVersionError(
                f"the checkpoint was made by another version of Esper (it has no {error}); resume "
                "the run with that version, or start a new run."
            ) from error
        except (EsperError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"the checkpoint does not belong to this run: {error}") from error


MAY_CHANGE = ("checkpoints", "telemetry")
"""Sections that may change before a run is resumed, because they do not affect the results."""


def require_saved_config(config: RunConfig, state: State) -> None:
    """Reject settings that differ from those that a run's state was saved with.

    Raises:
        CheckpointError: Naming the first setting that differs.
    """
    now = _leaves(asdict(config))
    then = _leaves(asdict(read_toml(state["config"], source="the checkpoint's settings")))
    for path in sorted(now.keys() | then.keys()):
        if path.partition(".")[0] not in MAY_CHANGE and now.get(path) != then.get(path):
            raise CheckpointError(
                f"{path} is {now.get(path)!r} in config.toml but was {then.get(path)!r} when the "
                "run was saved; restore it, or start a new run (esper train --config)."
            )


def _leaves(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return all settings by their dotted paths."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _leaves(cast("dict[str, Any]", value), f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found

"""The telemetry records of runs, rounds, updates and evaluations."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from esper.config.memory import used_memory
from esper.config.run import RunConfig
from esper.config.toml import write_toml
from esper.environment.rewards import REWARD_TERMS
from esper.growth.host_slots import slots
from esper.growth.modules import named_modules
from esper.growth.seed_slot import SeedSlot
from esper.lifecycle.factored_actions import HEAD_NAMES, HEADS_READ_BY, Op, choice_names
from esper.lifecycle.slot_config import SlotConfig
from esper.simic.rollout.collector import CollectedStep
from esper.telemetry.records import EvaluationRecord, RoundRecord, RunRecord, UpdateRecord
from esper.training.host_runs import HostRuns
from esper.training.ppo_recording import BY_HEAD, STATISTICS
from esper.training.worker_pool import PoolStatus
from esper.version import __version__

SUMMED = ("ep_rew", "ep_len", "flops", "host_parameters", "seed_parameters")


class RoundTally:
    """Running totals of the current episodes, and sums over those that ended in this round."""

    def __init__(self, n_envs: int) -> None:
        self.episode = np.zeros(n_envs, np.int64)
        """``[E]`` number of episodes that each environment has completed."""
        self.op_counts = np.zeros((n_envs, len(Op)), np.int64)
        """``[E, O]`` op counts of the current episodes."""
        self.terms = np.zeros((n_envs, len(REWARD_TERMS)))
        """``[E, R]`` reward terms of the current episodes."""
        self.begin_round()

    def begin_round(self) -> None:
        """Reset the sums over ended episodes."""
        self.n_episodes = np.zeros((), np.int64)
        self.sums = np.zeros(len(SUMMED))
        self.score_sum = np.zeros(())
        self.n_scores = np.zeros((), np.int64)
        self.ended_ops = np.zeros(len(Op), np.int64)
        self.n_steps = np.zeros((), np.int64)
        self.n_illegal = np.zeros((), np.int64)
        self.n_refused = np.zeros((), np.int64)
        self.n_restored = np.zeros((), np.int64)

    def for_next_round(self) -> RoundTally:
        """Return a tally of the same episodes for the next round; this one stays as it is."""
        tally = copy.deepcopy(self)
        tally.begin_round()
        return tally

    @classmethod
    def join(cls, tallies: Sequence[RoundTally]) -> RoundTally:
        """Return the tally of all environments, given those of some each, in order."""
        joined = cls(sum(len(tally.episode) for tally in tallies))
        for name in vars(joined):
            values = [getattr(tally, name) for tally in tallies]
            is_by_env = name in ("episode", "op_counts", "terms")
            setattr(joined, name, np.concatenate(values) if is_by_env else sum(values))
        return joined

    def add(self, step: CollectedStep) -> None:
        """Add a step; :meth:`end_episodes` then resets the episodes that ended in it."""
        info = step.info
        np.add.at(self.op_counts, (np.arange(len(self.episode)), info["op"]), 1)
        self.terms += np.stack([info["reward_terms"][name] for name in REWARD_TERMS], axis=1)
        self.n_steps += len(self.episode)
        self.n_illegal += int(info["illegal_action"].sum())
        self.n_refused += int(info["was_refused"].sum())
        self.n_restored += int(info["was_restored"].sum())
        if step.dones.any():
            self._add_ends(step, np.flatnonzero(step.dones))

    def end_episodes(self, dones: NDArray[np.bool_]) -> None:
        """Reset the totals of the episodes that ended."""
        self.episode += dones
        self.op_counts[dones] = 0
        self.terms[dones] = 0.0

    def mean(self, name: str) -> float | None:
        """Return the mean of a quantity over the ended episodes; None if none ended."""
        if not self.n_episodes:
            return None
        return float(self.sums[SUMMED.index(name)] / self.n_episodes)

    @property
    def mean_score(self) -> float | None:
        """Mean final score of the terminated episodes; None if none terminated."""
        return float(self.score_sum / self.n_scores) if self.n_scores else None

    def ops_per_episode(self) -> dict[Op, float | None]:
        """Return the mean count of each op over the ended episodes."""
        n = int(self.n_episodes)
        return {op: int(self.ended_ops[op]) / n if n else None for op in Op}

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of all totals."""
        return {name: torch.from_numpy(np.array(value)) for name, value in vars(self).items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` returned."""
        for name in vars(self):
            setattr(self, name, state[name].numpy().copy())

    def _add_ends(self, step: CollectedStep, ended: NDArray[np.int64]) -> None:
        final: dict[str, Any] = step.info["final_info"]
        columns = {
            "ep_rew": step.episode_returns,
            "ep_len": step.episode_lengths,
            **{name: final[name] for name in ("flops", "host_parameters", "seed_parameters")},
        }
        self.n_episodes += len(ended)
        self.sums += [float(columns[name][ended].sum()) for name in SUMMED]
        scores = final["final_score"][ended]
        scores = scores[np.isfinite(scores)]
        self.score_sum += scores.sum()
        self.n_scores += len(scores)
        self.ended_ops += self.op_counts[ended].sum(0)


@dataclass(frozen=True, kw_only=True)
class HostPart:
    """A layer with parameters, or a slot."""

    name: str
    kind: str
    """The layer's class, or ``"slot"``."""
    parameters: int
    """Parameters of the layer itself."""
    slot: str | None
    """The slot's name; None if it is a layer."""


def host_parts(host: nn.Module) -> list[HostPart]:
    """Return the layers of a host that have parameters, each slot after the block it wraps.

    Layers are in the order of registration, which in most models is the order of computation. A
    slot comes after the last layer of its block, or after the producer of its pair.
    """
    grown = {
        id(module)
        for slot in slots(host).values()
        if isinstance(slot, SeedSlot)
        for part in (*slot.absorbed, slot)
        if part.seed is not None
        for module in part.seed.modules()
    }
    parts = [
        HostPart(name=name, kind=type(module).__name__, parameters=n_own, slot=None)
        for name, module in named_modules(host).items()
        if id(module) not in grown
        and (n_own := sum(p.numel() for p in module.parameters(recurse=False)))
    ]
    for slot, place in slots(host).items():
        block = place.site.modules[0]
        wrapped = [i for i, part in enumerate(parts) if f"{part.name}.".startswith(f"{block}.")]
        index = wrapped[-1] + 1 if wrapped else len(parts)
        parts.insert(index, HostPart(name=slot, kind="slot", parameters=0, slot=slot))
    return parts


def run_record(
    config: RunConfig, slot_config: SlotConfig, host: nn.Module | None, name: str
) -> RunRecord:
    """Return the record that describes a run.

    Args:
        config: The run's settings.
        slot_config: The slots of its hosts.
        host: One of them; None if they are of several designs.
        name: The run's name.
    """
    reads = {
        op.name.lower(): sorted(heads, key=HEAD_NAMES.index) for op, heads in HEADS_READ_BY.items()
    }
    return RunRecord(
        name=name,
        task=config.task,
        config=write_toml(config),
        slots=json.dumps(list(slot_config.slot_ids)),
        blueprints=json.dumps(list(slot_config.blueprints)),
        heads=json.dumps(list(HEAD_NAMES)),
        ops=json.dumps([op.name.lower() for op in Op]),
        esper_version=__version__,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        choices=json.dumps(choice_names(slot_config)),
        reads=json.dumps(reads),
        host=json.dumps([asdict(part) for part in (host_parts(host) if host else ())]),
    )


def refused_record(round_number: int, n_updates: int, refusal: str) -> UpdateRecord:
    """Return the record of a rejected update, with the reason."""
    columns: dict[str, Any] = dict.fromkeys(STATISTICS)
    columns.update(dict.fromkeys(BY_HEAD, "{}"))
    return UpdateRecord(
        round=round_number,
        n_updates=n_updates,
        **columns,
        epochs_run=0,
        gradient_steps=0,
        stopped_early=False,
        was_refused=True,
        refusal=refusal,
    )


def evaluation_record(
    runs: HostRuns,
    *,
    round_number: int,
    arm: str,
    purpose: Literal["tuning", "final"] = "tuning",
    is_best: bool = False,
    fixed_reward: float | None = None,
    seconds: float,
) -> EvaluationRecord:
    """Return the record of an evaluation; the final one is on the test split."""
    ops = runs.op_counts.mean(0)
    return EvaluationRecord(
        round=round_number,
        arm=arm,
        purpose=purpose,
        split="test" if purpose == "final" else "validation",
        n_episodes=len(runs.returns),
        ep_rew_mean=float(runs.returns.mean()),
        score_mean=float(runs.score.mean()),
        flops_mean=float(runs.flops.mean()),
        n_epochs_mean=float(runs.n_epochs.mean()),
        host_parameters_mean=float(runs.host_parameters.mean()),
        seed_parameters_mean=float(runs.grown_parameters.mean()),
        ops=json.dumps({op.name.lower(): float(ops[op]) for op in Op}),
        is_best=is_best,
        fixed_reward=fixed_reward,
        seconds=seconds,
    )


def round_record(
    tally: RoundTally,
    *,
    round_number: int,
    env_steps: int,
    no_growth_score: float | None,
    rates: dict[str, float],
    seconds: float,
    seconds_by_part: Mapping[str, float],
    n_steps: int,
    workers: PoolStatus | None,
) -> RoundRecord:
    """Return the record of a completed round.

    Args:
        tally: Its episodes.
        round_number: The round.
        env_steps: Environment steps of the run so far.
        no_growth_score: Mean score with no growth, on the hosts of evaluations.
        rates: The ``learning_rate`` and ``ent_coef`` of its update.
        seconds: The time that this process worked on it.
        seconds_by_part: The time that each part of the work took.
        n_steps: Environment steps that this process took; an interrupted one may have taken others.
        workers: The state of the worker processes; None without any.
    """
    ops: dict[str, Any] = {f"op_{op.name.lower()}": n for op, n in tally.ops_per_episode().items()}
    parts = {part: round(spent, 6) for part, spent in seconds_by_part.items()}
    return RoundRecord(
        round=round_number,
        env_steps=env_steps,
        n_episodes=int(tally.n_episodes),
        ep_rew_mean=tally.mean("ep_rew"),
        ep_len_mean=tally.mean("ep_len"),
        score_mean=tally.mean_score,
        no_growth_score=no_growth_score,
        flops_mean=tally.mean("flops"),
        host_parameters_mean=tally.mean("host_parameters"),
        seed_parameters_mean=tally.mean("seed_parameters"),
        **ops,
        n_illegal=int(tally.n_illegal),
        n_refused=int(tally.n_refused),
        n_restored=int(tally.n_restored),
        **rates,
        seconds=seconds,
        steps_per_second=n_steps / max(seconds, 1e-9),
        seconds_by_part=json.dumps(parts),
        rss_bytes=used_memory(),
        workers=None if workers is None else workers.alive,
        workers_restarted=None if workers is None else workers.restarted,
        seconds_waited=None if workers is None else workers.waited,
    )

"""The telemetry records of steps. Shapes: E = environments, S = slots, H = heads.

K = choices of the widest head, P = choices of all heads together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from esper.arrays import Integers
from esper.environment import GrowthVectorEnv
from esper.environment.episodes import StepResult
from esper.environment.rewards import REWARD_TERMS
from esper.lifecycle.factored_actions import HEAD_NAMES, HEADS_READ_BY, Op
from esper.lifecycle.slot_arrays import SlotArrays
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.simic.policy.recurrent import RecurrentTrunk
from esper.simic.rollout.collector import CollectedStep
from esper.telemetry.records import (
    EpisodeRecord,
    GovernorRecord,
    Record,
    RecordColumns,
    SeedEventRecord,
    StepRecord,
)
from esper.telemetry.schema import ILLEGAL, SCALE
from esper.training.records import RoundTally


class StepRecorder:
    """Turns the steps of a run into records."""

    def __init__(
        self,
        envs: GrowthVectorEnv,
        policy: RecurrentTrunk,
        *,
        record_steps: bool,
        first_env: int = 0,
    ) -> None:
        """Prepare to record.

        Args:
            envs: The environments.
            policy: The policy that acts in them.
            record_steps: Whether to record every step, or only what happened to seeds and episodes.
            first_env: Number of the first environment in records.
        """
        self._first_env = first_env
        self._envs, self._policy, self._spec = envs, policy, policy.spec
        self._record_steps = record_steps

    def records(
        self, position: dict[str, int], step: CollectedStep, tally: RoundTally
    ) -> list[RecordColumns]:
        """Return the records of a step, in the order in which they are written.

        Args:
            position: The ``round`` and the ``step`` of the run.
            step: The step.
            tally: The tally with the step added, before :meth:`RoundTally.end_episodes`.
        """
        result = self._envs.last_step
        assert result is not None, "the environments have taken a step"
        episodes: list[int] = tally.episode.tolist()
        found: list[RecordColumns] = []
        if self._record_steps:
            found.append(self._step_records(position, step, result, episodes))

        def host(env: int) -> dict[str, Any]:
            place = {"env": self._first_env + env, "episode": episodes[env]}
            return {**position, **place, "draw_seed": int(result.draw_seed[env])}

        events: dict[type[Record], list[dict[str, Any]]] = {
            SeedEventRecord: [
                host(env) | event
                for env, event in seed_events(
                    result.epoch, result.slot_configs, result.slots_before, result.slots
                )
            ],
            GovernorRecord: [
                {**host(env), "epoch": int(result.epoch[env]), "reason": reason}
                for env, reason in sorted(result.interventions.items())
            ],
            EpisodeRecord: [
                {**host(env), **_episode_values(env, step, tally)}
                for env in np.flatnonzero(step.dones).tolist()
            ],
        }
        return found + [
            RecordColumns.from_rows(kind, rows) for kind, rows in events.items() if rows
        ]

    def _step_records(
        self,
        position: dict[str, int],
        step: CollectedStep,
        result: StepResult,
        episodes: list[int],
    ) -> RecordColumns:
        n_envs = len(episodes)
        columns: dict[str, Sequence[Any]] = {
            **{name: [value] * n_envs for name, value in position.items()},
            "env": range(self._first_env, self._first_env + n_envs),
            "episode": episodes,
            **dict(zip(HEAD_NAMES, step.actions.T.tolist(), strict=True)),
            **result.columns(),
            "reward": step.rewards.tolist(),
            "value": step.decision.values.tolist(),
            "log_prob": self._joint_log_probs(step).tolist(),
            "probabilities": self._probabilities(step),
        }
        return RecordColumns(StepRecord, columns)

    def _probabilities(self, step: CollectedStep) -> list[bytes]:
        """Return the packed probabilities of all choices, ``[E]``."""
        values = self._policy.probabilities(step.decision)
        # Masks are padded to the widest head, and probabilities are not.
        heads = [step.decision.legal[:, k, :size] for k, size in enumerate(self._spec.sizes)]
        legal = torch.cat(heads, dim=1)
        return pack_probabilities(values.cpu().numpy(), legal.cpu().numpy())

    def _joint_log_probs(self, step: CollectedStep) -> NDArray[np.float64]:
        """Return the log-probability ``[E]`` of each action, over the heads that its op reads."""
        decision, spec = step.decision, self._spec
        relevant = spec.relevant_heads(decision.actions[:, spec.op_index])
        return decision.log_probs.double().masked_fill(~relevant, 0.0).sum(1).cpu().numpy()


def seed_events(
    epochs: Integers, slot_configs: Sequence[SlotConfig], before: SlotArrays, after: SlotArrays
) -> list[tuple[int, dict[str, Any]]]:
    """Return the environment and the values of each slot whose stage changed in a step.

    Args:
        epochs: ``[E]`` epochs that each host has trained after the step.
        slot_configs: ``[E]`` the slots of each host.
        before: The slots before the step.
        after: The slots after the step.
    """
    found: list[tuple[int, dict[str, Any]]] = []
    for env, slot in np.argwhere(before.stage != after.stage).tolist():
        at, config = (env, slot), slot_configs[env]
        # A removed seed is -1 after the step, so take its blueprint from before.
        blueprint = int(max(after.blueprint[at], before.blueprint[at]))
        stages = [Stage(before.stage[at]), Stage(after.stage[at])]
        moments = [after]
        if after.n_fossils[at] > before.n_fossils[at] and stages[0] != Stage.FOSSILIZED:
            # The seed was fossilized and its slot freed in the same step.
            stages.insert(1, Stage.FOSSILIZED)
            moments.insert(0, before)
        for (source, target), moment in zip(pairwise(stages), moments, strict=True):
            values = {
                "epoch": int(epochs[env]),
                "slot": config.slot_ids[slot],
                "blueprint": "" if blueprint < 0 else config.blueprints[blueprint],
                "from_stage": source.name.lower(),
                "to_stage": target.name.lower(),
                "alpha": float(moment.alpha[at]),
                "contribution": float(moment.contribution[at]),
            }
            found.append((env, values))
    return found


def pack_probabilities(values: NDArray[np.float32], legal: NDArray[np.bool_]) -> list[bytes]:
    """Return the probabilities ``[E, P]`` of each row as telemetry stores them."""
    numbers = np.where(legal, np.rint(values * SCALE), ILLEGAL).astype("<u2")
    return [row.tobytes() for row in numbers]


def pack_choices(
    probabilities: Mapping[str, Sequence[float | None]], sizes: Mapping[str, int]
) -> bytes | None:
    """Return the probabilities of one decision by head, None for masked choices, packed.

    None if they do not fit heads of these sizes.
    """
    if any(len(probabilities.get(head, ())) != size for head, size in sizes.items()):
        return None
    row = [value for head in HEAD_NAMES for value in probabilities[head]]
    legal = np.array([[value is not None for value in row]])
    values = np.array([[value or 0.0 for value in row]], np.float32)
    return pack_probabilities(values, legal)[0]


def log_probability(
    probabilities: Mapping[str, Sequence[float | None]], choices: Mapping[str, int]
) -> float:
    """Return the log-probability of one action, over the heads that its op reads."""
    heads = HEADS_READ_BY[Op(choices["op"])]
    shares = [probabilities[head][choices[head]] or 0.0 for head in heads]
    logs = (math.log(share) if share > 0.0 else -math.inf for share in shares)
    return math.fsum(logs)  # whatever order a set has


def _episode_values(env: int, step: CollectedStep, tally: RoundTally) -> dict[str, Any]:
    """Return what an episode came to, by column."""
    final: dict[str, Any] = step.info["final_info"]
    score = float(final["final_score"][env])
    return {
        **dict(zip(REWARD_TERMS, tally.terms[env].tolist(), strict=True)),
        "ep_rew": float(step.episode_returns[env]),
        "ep_len": int(step.episode_lengths[env]),
        "final_score": score if math.isfinite(score) else None,
        "flops": float(final["flops"][env]),
        "n_epochs": int(final["n_epochs"][env]),
        "host_parameters": int(final["host_parameters"][env]),
        "seed_parameters": int(final["seed_parameters"][env]),
        "was_truncated": bool(step.truncated[env]),
        **final["description"][env],
    }

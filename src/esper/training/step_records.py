"""The telemetry records of steps. Shapes: E = environments, S = slots, H = heads.

K = choices of the widest head, P = choices of all heads together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.arrays import Floats, Integers
from esper.config.growth import RewardForm
from esper.environment import GrowthVectorEnv
from esper.environment.episodes import SlotOutcome, StepResult
from esper.environment.rewards import REWARD_TERMS
from esper.lifecycle.factored_actions import HEAD_NAMES, HEADS_READ_BY, Op
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.simic.policy.recurrent import RecurrentTrunk
from esper.simic.rollout.collector import CollectedStep
from esper.tasks import TaskDraw
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

TERM_COLUMNS = {name: "flops_cost" if name == "flops" else name for name in REWARD_TERMS}
"""The column of each reward term; the column ``flops`` holds the FLOPs themselves."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HostsBefore:
    """The hosts before a step, which replaces those whose episode ends."""

    slots: SlotOutcome
    slot_configs: list[SlotConfig]
    n_slots: Integers
    """``[E]`` slots that each host has; it lacks the others of its configuration."""
    draw_seeds: Integers
    draws: list[TaskDraw]
    n_epochs: Integers
    """``[E]`` epochs of the budget."""
    flop_prices: Floats
    reward: RewardForm
    rival_scores: Floats
    """``[E, T]`` as in :class:`EpisodeRecords`."""
    rival_final_scores: Floats

    def describe(self, env: int) -> dict[str, Any]:
        """Return what was drawn for a host and how its rival does, by column."""
        draw, n_epochs = self.draws[env], int(self.n_epochs[env])
        return {
            "title": draw.title or None,
            "facts": json.dumps(dict(draw.facts), default=float) if draw.facts else None,
            "slot_names": json.dumps(self.slot_configs[env].slot_ids[: int(self.n_slots[env])]),
            "budget_epochs": n_epochs,
            "flop_price": float(self.flop_prices[env]),
            **self._describe_rival(env, n_epochs),
        }

    def _describe_rival(self, env: int, n_epochs: int) -> dict[str, Any]:
        """Return the scores of a host's rival; columns of the other kind of rival are None."""
        scores: list[float] = self.rival_scores[env, : n_epochs + 1].round(6).tolist()
        columns: dict[str, Any] = {}
        for name, form in (("alone", "paired"), ("schedule", "scheduled")):
            is_rival = self.reward == form
            columns[f"{name}_scores"] = json.dumps(scores) if is_rival else None
            final = float(self.rival_final_scores[env]) if is_rival else None
            columns[f"{name}_final_score"] = final
        return columns


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

    def before(self) -> HostsBefore:
        """Return the hosts before a step, for :meth:`records`."""
        growth = self._envs.growth
        records = growth.records
        return HostsBefore(
            slots=growth.slot_outcome(),
            slot_configs=growth.hosts.slot_configs(),
            n_slots=(records.slot_kind >= 0).sum(1),
            draw_seeds=records.draw_seed.copy(),
            draws=growth.draws,
            n_epochs=records.n_epochs.copy(),
            flop_prices=records.flop_price.copy(),
            reward=growth.rewards.reward,
            rival_scores=records.rival_scores.copy(),
            rival_final_scores=records.rival_final_score.copy(),
        )

    def records(
        self,
        position: dict[str, int],
        step: CollectedStep,
        before: HostsBefore,
        tally: RoundTally,
    ) -> list[RecordColumns]:
        """Return the records of a step, in the order in which they are written.

        Args:
            position: The ``round`` and the ``step`` of the run.
            step: The step.
            before: What :meth:`before` returned.
            tally: The tally with the step added, before :meth:`RoundTally.end_episodes`.
        """
        result = self._envs.last_step
        assert result is not None, "the environments have taken a step"
        episodes: list[int] = tally.episode.tolist()
        epochs = self._epochs(step)
        found: list[RecordColumns] = []
        if self._record_steps:
            found.append(self._step_records(position, step, result, episodes, epochs))

        def host(env: int) -> dict[str, Any]:
            place = {"env": self._first_env + env, "episode": episodes[env]}
            return {**position, **place, "draw_seed": int(before.draw_seeds[env])}

        events: dict[type[Record], list[dict[str, Any]]] = {
            SeedEventRecord: seed_events(
                host, epochs, before.slot_configs, before.slots, result.slots
            ),
            GovernorRecord: [
                {**host(env), "epoch": epochs[env], "reason": reason}
                for env, reason in sorted(result.interventions.items())
            ],
            EpisodeRecord: [
                {**host(env), **_episode_values(env, step, tally), **before.describe(env)}
                for env in np.flatnonzero(step.dones).tolist()
            ],
        }
        return found + [
            RecordColumns.from_rows(kind, rows) for kind, rows in events.items() if rows
        ]

    def _epochs(self, step: CollectedStep) -> list[int]:
        """Return the epochs that each host has trained after the step, ``[E]``."""
        epochs = self._envs.growth.records.epoch.copy()
        if step.dones.any():
            epochs = np.where(step.dones, step.info["final_info"]["n_epochs"], epochs)
        return epochs.tolist()

    def _step_records(
        self,
        position: dict[str, int],
        step: CollectedStep,
        result: StepResult,
        episodes: list[int],
        epochs: list[int],
    ) -> RecordColumns:
        info: dict[str, Any] = step.info
        log_probs = self._joint_log_probs(step)
        n_envs = len(episodes)
        columns: dict[str, Sequence[Any]] = {
            **{name: [value] * n_envs for name, value in position.items()},
            "env": range(self._first_env, self._first_env + n_envs),
            "episode": episodes,
            "epoch": epochs,
            "op_done": info["op"].tolist(),
            "is_illegal": info["illegal_action"].tolist(),
            "refusal": [reason or None for reason in info["refusal"].tolist()],
            "reward": step.rewards.tolist(),
            "score": info["score"].tolist(),
            "flops": info["flops"].tolist(),
            "value": step.decision.values.tolist(),
            "log_prob": log_probs.tolist(),
            "slots": slots_as_text(result.slots),
            "probabilities": self._probabilities(step),
        }
        for head, choices in zip(HEAD_NAMES, step.actions.T.tolist(), strict=True):
            columns[head] = choices
        for term, column in TERM_COLUMNS.items():
            columns[column] = info["reward_terms"][term].tolist()
        return RecordColumns(StepRecord, columns)

    def _probabilities(self, step: CollectedStep) -> list[bytes]:
        """Return the packed probabilities of all choices, ``[E]``."""
        values = self._policy.probabilities(step.decision)
        legal = self._concatenate_heads(step.decision.legal)
        return pack_probabilities(values.cpu().numpy(), legal.cpu().numpy())

    def _concatenate_heads(self, legal: Tensor) -> Tensor:
        """Return padded masks ``[E, H, K]`` without padding, ``[E, P]``."""
        heads = [legal[:, head, :size] for head, size in enumerate(self._spec.sizes)]
        return torch.cat(heads, dim=1)

    def _joint_log_probs(self, step: CollectedStep) -> NDArray[np.float64]:
        """Return the log-probability ``[E]`` of each action, over the heads that its op reads."""
        decision, spec = step.decision, self._spec
        relevant = spec.relevant_heads(decision.actions[:, spec.op_index])
        return decision.log_probs.double().masked_fill(~relevant, 0.0).sum(1).cpu().numpy()


def seed_events(
    host: Callable[[int], Mapping[str, int]],
    epochs: Sequence[int],
    slot_configs: Sequence[SlotConfig],
    before: SlotOutcome,
    after: SlotOutcome,
) -> list[dict[str, Any]]:
    """Return the values of a record for each slot whose stage changed in a step.

    Args:
        host: Returns the columns that tell where a host is.
        epochs: ``[E]`` epochs that each host has trained after the step.
        slot_configs: ``[E]`` the slots of each host.
        before: The slots before the step.
        after: The slots after the step.
    """
    found: list[dict[str, Any]] = []
    for env, slot in np.argwhere(before.stage != after.stage).tolist():
        at, config = (env, slot), slot_configs[env]
        # A removed seed is -1 after the step, so take its blueprint from before.
        blueprint = int(max(after.blueprint[at], before.blueprint[at]))
        stages = [Stage(before.stage[at]), Stage(after.stage[at])]
        outcomes = [after]
        if after.n_fossils[at] > before.n_fossils[at] and stages[0] != Stage.FOSSILIZED:
            # The seed was fossilized and its slot freed in the same step.
            stages.insert(1, Stage.FOSSILIZED)
            outcomes.insert(0, before)
        for (source, target), outcome in zip(pairwise(stages), outcomes, strict=True):
            found.append(
                {
                    **host(env),
                    "epoch": epochs[env],
                    "slot": config.slot_ids[slot],
                    "blueprint": "" if blueprint < 0 else config.blueprints[blueprint],
                    "from_stage": source.name.lower(),
                    "to_stage": target.name.lower(),
                    "alpha": float(outcome.alpha[at]),
                    "contribution": float(outcome.contribution[at]),
                }
            )
    return found


def slots_as_text(slots: SlotOutcome) -> list[str]:
    """Return the slots of each host as JSON: a list of seven numbers for each slot."""
    contributions = slots.contribution.round(6).astype(object)
    contributions[np.isnan(slots.contribution)] = None  # JSON has no NaN
    columns: tuple[NDArray[Any], ...] = (
        slots.stage,
        slots.blueprint,
        slots.alpha.round(6),
        contributions,
        slots.parameters,
        slots.n_fossils,
        slots.fossil_parameters,
    )
    values: list[list[Any]] = [column.ravel().tolist() for column in columns]
    flat = zip(*values, strict=True)
    rows = zip(*[flat] * slots.stage.shape[1], strict=True)
    # Encoded at once and cut apart, which is faster than host by host.
    text = json.dumps(list(rows), separators=(",", ":"))
    return [f"[[{part}]]" for part in text[3:-3].split("]],[[")]


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
    return sum(math.log(share) if share > 0.0 else -math.inf for share in shares)


def _episode_values(env: int, step: CollectedStep, tally: RoundTally) -> dict[str, Any]:
    """Return what an episode came to, by column."""
    final: dict[str, Any] = step.info["final_info"]
    score = float(final["final_score"][env])
    return {
        **dict(zip(TERM_COLUMNS.values(), tally.terms[env].tolist(), strict=True)),
        "ep_rew": float(step.episode_returns[env]),
        "ep_len": int(step.episode_lengths[env]),
        "final_score": score if math.isfinite(score) else None,
        "flops": float(final["flops"][env]),
        "n_epochs": int(final["n_epochs"][env]),
        "host_parameters": int(final["host_parameters"][env]),
        "seed_parameters": int(final["seed_parameters"][env]),
        "was_truncated": bool(step.truncated[env]),
    }

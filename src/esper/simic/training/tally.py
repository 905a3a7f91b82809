"""Sums over the episodes of a round. Shapes: E = environments, O = ops, R = reward terms."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.lifecycle.factored_actions import Op
from esper.simic.environment.rewards import REWARD_TERMS
from esper.simic.rollout.collector import CollectedStep

SUMMED = ("ep_rew", "ep_len", "flops", "host_parameters", "seed_parameters")


class RoundTally:
    """What episodes have come to so far, and those that ended in this round together."""

    def __init__(self, n_envs: int) -> None:
        self.episode = np.zeros(n_envs, np.int64)
        """``[E]`` episodes that each environment has ended."""
        self.op_counts = np.zeros((n_envs, len(Op)), np.int64)
        """``[E, O]`` ops of the episodes that are under way."""
        self.terms = np.zeros((n_envs, len(REWARD_TERMS)))
        """``[E, R]`` reward terms of the episodes that are under way."""
        self.begin_round()

    def begin_round(self) -> None:
        """Forget the episodes that ended."""
        self.n_episodes = np.zeros((), np.int64)
        self.sums = np.zeros(len(SUMMED))
        self.score_sum = np.zeros(())
        self.n_scores = np.zeros((), np.int64)
        self.ended_ops = np.zeros(len(Op), np.int64)
        self.n_steps = np.zeros((), np.int64)
        self.n_illegal = np.zeros((), np.int64)
        self.n_refused = np.zeros((), np.int64)
        self.n_restored = np.zeros((), np.int64)

    def add(self, step: CollectedStep) -> None:
        """Enter a step, ends of episodes included, except that they stay under way."""
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
        """Begin anew the episodes that ended."""
        self.episode += dones
        self.op_counts[dones] = 0
        self.terms[dones] = 0.0

    def mean(self, name: str) -> float | None:
        """Return the mean of something over the episodes that ended; None if none did."""
        if not self.n_episodes:
            return None
        return float(self.sums[SUMMED.index(name)] / self.n_episodes)

    @property
    def mean_score(self) -> float | None:
        """Mean final score of the episodes that ended by themselves."""
        return float(self.score_sum / self.n_scores) if self.n_scores else None

    def ops_per_episode(self) -> dict[Op, float | None]:
        """Return how often each op was carried out in an episode that ended."""
        n = int(self.n_episodes)
        return {op: int(self.ended_ops[op]) / n if n else None for op in Op}

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of all sums."""
        return {name: torch.from_numpy(np.array(value)) for name, value in vars(self).items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what :meth:`state_dict` gave."""
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

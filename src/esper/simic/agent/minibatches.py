"""A rollout as the update reads it: prepared once, then handed out in minibatches of sequences.

Shapes: ``E`` environments, ``T`` steps, ``N`` steps of a minibatch, ``H`` heads. Numbers for each
head of each step are laid out with the steps contiguous, as the policy's own are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from esper.config import PPOConfig
from esper.errors import ConfigError, NonFiniteError, RolloutError
from esper.simic.agent.losses import explained_variance, normalize_advantages
from esper.simic.agent.rollout_buffer import TamiyoRolloutBuffer
from esper.simic.agent.update_report import count_heads
from esper.simic.policy.normalizers import ReturnNormalizer
from esper.simic.policy.protocol import Policy
from esper.simic.policy.sequences import SequenceGrid, Sequences, lay_out, split_into_sequences


@dataclass(frozen=True)
class Minibatch:
    """Everything that one gradient step reads."""

    grid: SequenceGrid
    observations: Tensor
    """``[L, R, observation size]``, the sequences of the grid."""
    state: Tensor
    """``[R, state size]`` before each sequence."""
    legal: Any
    """The masks of the N steps, in the form that the policy reads."""
    actions: Tensor
    """``[N, H]``."""
    old_log_probs: Tensor
    """``[N, H]``."""
    old_values: Tensor
    """``[N]`` normalised as the critic learns."""
    returns: Tensor
    """``[N]`` normalised as the critic learns."""
    advantages: Tensor
    """``[N]``."""
    relevant: Tensor
    """``[N, H]`` 1 where the op that was taken reads the head."""
    available: Tensor
    """``[N, H]`` 1 where some legal op reads the head."""
    weight: Tensor
    """``[N]`` 0 where only one action was legal."""
    counts: Tensor
    """``[2 * H]`` sums of ``relevant`` and of ``available`` over the steps."""


class PreparedRollout:
    """The steps of a buffer with everything derived from them that stays the same in an update."""

    @torch.no_grad()
    def __init__(
        self,
        buffer: TamiyoRolloutBuffer,
        policy: Policy,
        normalizer: ReturnNormalizer,
        config: PPOConfig,
    ) -> None:
        self._buffer, self._policy = buffer, policy
        self._starts_episode = buffer.episode_starts()
        self._sequences = split_into_sequences(buffer.lengths, config.sequence_length)
        self._n_minibatches = config.n_minibatches
        if self._n_minibatches > len(self._sequences):
            raise ConfigError(
                f"n_minibatches is {self._n_minibatches} but the rollout has "
                f"{len(self._sequences)} sequences; use fewer minibatches, or a sequence_length."
            )
        everything = self._lay_out(self._sequences)
        take = everything.take
        if not bool(torch.isfinite(take(buffer.flat("observations")).sum())):
            raise NonFiniteError(
                "the stored observations hold NaN or infinity; the policy is left as it was."
            )
        self._require_legal_actions(everything)
        values, returns = buffer.flat("values"), buffer.flat("returns")
        self.explained_variance = explained_variance(take(values), take(returns))
        if config.normalize_returns:
            policy.rescale_value(*normalizer.update(take(returns)))
        self._old_values = normalizer.normalize(values)
        self._returns = normalizer.normalize(returns)
        self._advantages = buffer.flat("advantages").clone()
        if config.normalize_advantage:
            self._advantages[everything.steps] = normalize_advantages(take(self._advantages))
        self._weigh_heads()
        self._whole = self._build(everything) if self._n_minibatches == 1 else None

    def minibatches(self, shuffler: torch.Generator) -> Iterator[tuple[Minibatch, bool]]:
        """Yield the minibatches of one epoch, each with whether it is the last."""
        if self._whole is not None:
            yield self._whole, True
            return
        order = torch.randperm(len(self._sequences), generator=shuffler).numpy()
        parts = np.array_split(order, self._n_minibatches)
        for number, rows in enumerate(parts, start=1):
            grid = self._lay_out(self._sequences.take(rows))
            yield self._build(grid), number == len(parts)

    def _lay_out(self, sequences: Sequences) -> SequenceGrid:
        return lay_out(sequences, self._starts_episode, self._buffer.device)

    def _require_legal_actions(self, everything: SequenceGrid) -> None:
        """Refuse stored actions that their own masks forbid, naming environment and step."""
        buffer, take = self._buffer, everything.take
        actions, legal = take(buffer.flat("actions")), take(buffer.flat("masks"))
        exists = (actions >= 0) & (actions < buffer.spec.n_choices)
        is_legal = exists & legal.gather(-1, (actions * exists).unsqueeze(-1)).squeeze(-1)
        if bool(is_legal.all()):
            return
        place, head = (int(index) for index in (~is_legal).nonzero()[0])
        step, env = divmod(int(everything.steps[place]), buffer.n_envs)
        raise RolloutError(
            f"environment {env} took choice {int(actions[place, head])} of head "
            f"{buffer.spec.names[head]!r} at step {step}, which its mask does not allow."
        )

    def _weigh_heads(self) -> None:
        """Find out which heads mattered, which could have, and where there was a choice at all."""
        buffer, spec = self._buffer, self._buffer.spec
        legal, actions = buffer.flat("masks"), buffer.flat("actions")
        op = spec.op_index
        relevant = spec.relevant_heads(actions[:, op])
        available = spec.available_heads(legal[:, op, : spec.sizes[op]])
        has_choice = (legal.sum(dim=-1) > 1) & relevant
        self._weight = has_choice.any(dim=-1).float()
        self._relevant = relevant.t().float().contiguous()
        self._available = available.t().float().contiguous()
        self._actions = actions.t().contiguous()
        self._log_probs = buffer.flat("log_probs").t().contiguous()

    def _build(self, grid: SequenceGrid) -> Minibatch:
        buffer, take = self._buffer, grid.take

        def by_head(stored: Tensor) -> Tensor:
            return take(stored, dim=1).t()

        relevant, available = by_head(self._relevant), by_head(self._available)
        observations = buffer.flat("observations")
        if not grid.is_storage_order:
            observations = observations.index_select(0, grid.source)
        return Minibatch(
            grid=grid,
            observations=observations.view(*grid.shape, -1),
            state=buffer.flat("hidden_states").index_select(0, grid.starts),
            legal=self._policy.lay_out_masks(take(buffer.flat("masks"))),
            actions=by_head(self._actions),
            old_log_probs=by_head(self._log_probs),
            old_values=take(self._old_values),
            returns=take(self._returns),
            advantages=take(self._advantages),
            relevant=relevant,
            available=available,
            weight=take(self._weight),
            counts=count_heads(relevant, available),
        )

"""A rollout as the update reads it: prepared once, then split into minibatches.

Shapes: ``E`` environments, ``T`` steps, ``N`` steps of a minibatch, ``H`` heads, ``D`` discrete
heads, ``K`` choices of the widest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from esper.config import PPOConfig
from esper.errors import NonFiniteError, RolloutError
from esper.simic import tensors
from esper.simic.agent.losses import (
    explained_variance,
    normalize_advantages,
    relevant_log_ratio,
)
from esper.simic.agent.rollout_buffer import TamiyoRolloutBuffer
from esper.simic.policy.action_spec import all_choices, relevance_table
from esper.simic.policy.heads import ActionDistribution
from esper.simic.policy.normalizers import ReturnNormalizer
from esper.simic.policy.observations import Observations, leaves_of, map_leaves
from esper.simic.policy.policy import Policy
from esper.simic.policy.sequences import (
    Indices,
    SequenceGrid,
    Sequences,
    lay_out,
    split_into_sequences,
)


@dataclass(eq=False, kw_only=True)
class Minibatch:
    """Everything that one gradient step reads."""

    inputs: Observations
    """``[L, R, ...]``, the observations of a grid of sequences; ``[N, ...]`` without memory."""
    resets: Tensor | None
    """``[L, R]`` bool, cells that only set the state to zero; None for none."""
    state: Tensor
    """``[R, state size]`` before each sequence."""
    cells: Tensor | None
    """``[N]`` the cells of the grid that are steps; None for all."""
    actions: Tensor
    """``[N, D]``."""
    old_log_probs: Tensor
    """``[N, H]``."""
    old_values: Tensor
    """``[N]`` normalised as the critic learns."""
    returns: Tensor
    """``[N]`` normalised as the critic learns."""
    advantages: Tensor
    """``[N]``."""
    relevant: Tensor
    """``[N, H]`` 1 where the step is free and the op that was taken reads the head."""
    available: Tensor
    """``[N, H]`` 1 where the step is free and some legal op reads the head."""
    n_free: Tensor
    """Number of free steps, which have more than one legal action; at least 1."""
    legal: Tensor | None = None
    """``[N, D, K]`` bool, the choices that were legal; None if all were."""
    numbers: Tensor | None = None
    """``[N, C]`` drawn by continuous heads."""

    def evaluate(self, policy: Policy) -> EvaluatedMinibatch:
        """Return the minibatch with what a policy says about its steps."""
        outputs, values, features = policy.evaluate(
            self.inputs, self.resets, self.state, self.cells
        )
        distribution = policy.heads.distribution(outputs, self.legal)
        log_probs = distribution.log_probs(self.actions, self.numbers)
        return EvaluatedMinibatch(
            **vars(self),
            distribution=distribution,
            log_probs=log_probs,
            values=values,
            features=features,
        )


@dataclass(eq=False, kw_only=True)
class EvaluatedMinibatch(Minibatch):
    """What a loss is computed from. Gradients flow through what is declared here."""

    distribution: ActionDistribution
    """How likely the current policy makes each action."""
    log_probs: Tensor
    """``[N, H]`` of the actions that were taken."""
    values: Tensor
    """``[N]`` normalised as the critic learns."""
    features: Tensor
    """``[N, F]`` that the policy's heads read."""

    @cached_property
    def observations(self) -> Observations:
        """``[N, ...]`` of the steps, in the order of ``features``; found when first asked for."""
        if not self.state.shape[-1]:
            return self.inputs
        cells = self.cells

        def take(leaf: Tensor) -> Tensor:
            flat = leaf.flatten(0, 1)
            return flat if cells is None else flat.index_select(0, cells)

        return map_leaves(take, self.inputs)

    @cached_property
    def entropies(self) -> Tensor:
        """``[N, H]`` of the current policy; computed when it is first asked for."""
        return self.distribution.entropies()

    @cached_property
    def log_ratio(self) -> Tensor:
        """``[N, H]`` log(new probability / old probability); 0 where a head did not matter."""
        return relevant_log_ratio(self.log_probs, self.old_log_probs, self.relevant)


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
        self._buffer, self._observations = buffer, buffer.flat("observations")
        self._starts_episode = buffer.episode_starts()
        self._has_memory = policy.state_size > 0
        length = config.sequence_length if self._has_memory else 1
        self._is_skipped = buffer.skipped_steps()
        self._sequences = split_into_sequences(buffer.lengths, length)
        everything = self._lay_out(self._sequences)
        if self._has_memory and config.n_minibatches is None:
            # Episodes are sequences of their own, so that short ones run side by side.
            self._sequences = split_into_sequences(
                buffer.lengths, config.sequence_length, self._starts_episode
            )
        n_steps = len(everything.steps)
        self._n_minibatches = config.count_minibatches(
            n_steps, len(self._sequences) if self._has_memory else n_steps
        )
        take = everything.take
        is_everything_legal = self._check(everything)
        values, returns = buffer.flat("values"), buffer.flat("returns")
        self.explained_variance = explained_variance(take(values), take(returns))
        if config.normalize_returns and policy.is_value_trained:
            policy.rescale_value(*normalizer.update(take(returns)))
        advantages = buffer.flat("advantages").clone()
        if config.normalize_advantage:
            advantages[everything.steps] = normalize_advantages(take(advantages))
        self._everything = everything
        self._steps = {
            "actions": buffer.flat("actions"),
            "old_log_probs": buffer.flat("log_probs"),
            "old_values": normalizer.normalize(values),
            "returns": normalizer.normalize(returns),
            "advantages": advantages,
            "state": buffer.flat("hidden_states"),
            **self._weigh_heads(),
        }
        if not is_everything_legal:
            self._steps["legal"] = buffer.flat("masks")
        if buffer.spec.dims:
            self._steps["numbers"] = buffer.flat("numbers")
        self._whole = None
        if self._n_minibatches == 1:
            is_packed = self._sequences.is_fresh is not None
            self._whole = self._build(self._lay_out(self._sequences) if is_packed else everything)

    def minibatches(self, shuffler: torch.Generator) -> Iterator[tuple[Minibatch, bool]]:
        """Yield the minibatches of one epoch, each with whether it is the last."""
        if self._whole is not None:
            yield self._whole, True
            return
        if self._has_memory:
            order = torch.randperm(len(self._sequences), generator=shuffler).numpy()
            grids = [self._lay_out(self._sequences.take(rows)) for rows in self._split(order)]
            parts: Iterable[Minibatch] = map(self._build, grids)
            n_parts = len(grids)
        else:
            parts, n_parts = self._shuffle_steps(shuffler), self._n_minibatches
        for number, part in enumerate(parts, start=1):
            yield part, number == n_parts

    def _shuffle_steps(self, shuffler: torch.Generator) -> Iterator[Minibatch]:
        """Yield minibatches of a policy without memory: any steps, shuffled all at once."""
        steps = self._everything.steps
        order = steps[torch.randperm(len(steps), generator=shuffler).to(steps.device)]
        sizes = [len(part) for part in np.array_split(np.arange(len(steps)), self._n_minibatches)]
        # One call for all parts of a tensor: taking slices one by one would take a tenth of an
        # update.
        parts = [
            torch.split(stored.index_select(0, order), sizes)
            for stored in (*self._steps.values(), *leaves_of(self._observations).values())
        ]
        n_fields = len(self._steps)
        for part in zip(*parts, strict=True):
            leaves = dict(zip(leaves_of(self._observations), part[n_fields:], strict=True))
            yield _minibatch(
                dict(zip(self._steps, part[:n_fields], strict=True)), leaves.get("", leaves)
            )

    def _split(self, order: Indices) -> list[Indices]:
        """Split sequences, in an order, into minibatches of about as many steps."""
        if self._sequences.is_fresh is None:
            return np.array_split(order, self._n_minibatches)
        sizes = (self._sequences.stop - self._sequences.start)[order]
        share = (np.cumsum(sizes) - sizes / 2) / sizes.sum()
        part = (share * self._n_minibatches).astype(np.int64)
        return [rows for i in range(self._n_minibatches) if len(rows := order[part == i])]

    def _lay_out(self, sequences: Sequences) -> SequenceGrid:
        skipped = self._is_skipped if self._is_skipped.any() else None
        return lay_out(sequences, self._starts_episode, self._buffer.device, skipped)

    def _check(self, everything: SequenceGrid) -> bool:
        """Reject what cannot be learned from; return whether every choice was legal, always.

        Raises:
            NonFiniteError: If an observation is not finite.
            RolloutError: If an action is one that its mask forbids.
        """
        buffer, take = self._buffer, everything.take
        legal, actions = take(buffer.flat("masks")), take(buffer.flat("actions"))
        exists = (actions >= 0) & (actions < buffer.spec.n_choices)
        is_legal = exists
        if buffer.spec.sizes:
            is_legal = exists & legal.gather(-1, (actions * exists).unsqueeze(-1)).squeeze(-1)
        leaves = leaves_of(self._observations).values()
        # Bytes and categories are always finite.
        sums = [take(leaf).sum() for leaf in leaves if leaf.is_floating_point()]
        is_finite = torch.isfinite(torch.stack(sums)).all() if sums else exists.new_ones(())
        is_everything = (legal == all_choices(buffer.spec, buffer.device)).all()
        answers = torch.stack([is_finite, is_legal.all(), is_everything])
        are_finite, are_legal, are_all_legal = map(bool, tensors.read_numbers(answers))
        if not are_finite:
            raise NonFiniteError(
                "the stored observations hold NaN or infinity; the policy is left as it was."
            )
        if not are_legal:
            place, head = (int(index) for index in (~is_legal).nonzero()[0])
            step, env = divmod(int(everything.steps[place]), buffer.n_envs)
            raise RolloutError(
                f"environment {env} took choice {int(actions[place, head])} of head "
                f"{buffer.spec.names[head]!r} at step {step}, which its mask does not allow."
            )
        return are_all_legal

    def _weigh_heads(self) -> dict[str, Tensor]:
        """Return which heads mattered and could have, ``[T * E, H]``, and which steps are free."""
        buffer, spec = self._buffer, self._buffer.spec
        legal, actions = buffer.flat("masks"), buffer.flat("actions")
        table = relevance_table(spec, buffer.device)
        if spec.op_head is None:  # then every head always matters
            relevant = available = table.expand(len(actions), -1)
        else:
            relevant = table[actions[:, spec.op_index]]
            available = spec.available_heads(legal[:, spec.op_index, : len(table)])
        # A continuous head always has more than one value to choose from.
        has_choice = torch.ones_like(relevant)
        has_choice[:, : spec.n_discrete] = legal.sum(dim=-1) > 1
        is_free = (has_choice & relevant).any(dim=-1)
        return {
            "is_free": is_free.float(),
            "relevant": (relevant & is_free.unsqueeze(1)).float(),
            "available": (available & is_free.unsqueeze(1)).float(),
        }

    def _build(self, grid: SequenceGrid) -> Minibatch:
        fields = {name: grid.take(stored) for name, stored in self._steps.items()}
        if not self._has_memory:
            return _minibatch(fields, map_leaves(grid.take, self._observations))

        def observe(stored: Tensor) -> Tensor:
            if not grid.is_storage_order:
                stored = stored.index_select(0, grid.source)
            return stored.view(*grid.shape, *stored.shape[1:])

        fields["state"] = self._steps["state"].index_select(0, grid.starts)
        inputs = map_leaves(observe, self._observations)
        return _minibatch(fields, inputs, resets=grid.resets, cells=grid.cells)


def _minibatch(
    fields: dict[str, Tensor],
    inputs: Observations,
    resets: Tensor | None = None,
    cells: Tensor | None = None,
) -> Minibatch:
    """Return a minibatch of what is stored of its steps, by name."""
    n_free = fields.pop("is_free").sum().clamp(min=1.0)
    return Minibatch(inputs=inputs, resets=resets, cells=cells, n_free=n_free, **fields)

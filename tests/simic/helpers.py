"""Small agents and filled buffers that several tests share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from esper.config import PPOConfig
from esper.config.learning import NetworkConfig
from esper.simic.agent import PPOAgent, TamiyoRolloutBuffer
from esper.simic.policy import RecurrentPolicy
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.mask_reader import MaskReader

OBSERVATION_SIZE = 5
SPEC = ActionSpec(
    names=("door", "force", "op"),
    sizes=(4, 2, 3),
    op_head="op",
    relevance=((False, False, True), (True, False, True), (True, True, True)),
)


def make_agent(seed: int = 0, *, spec: ActionSpec = SPEC, **settings: object) -> PPOAgent:
    policy = RecurrentPolicy(
        spec,
        OBSERVATION_SIZE,
        NetworkConfig(feature_size=12, lstm_size=8),
        generator=torch.Generator().manual_seed(seed),
    )
    # Far from uniform, so that every choice and every step of memory shows in the numbers.
    torch.nn.init.normal_(policy.outputs.weight, generator=torch.Generator().manual_seed(seed))
    return PPOAgent(spec, policy, PPOConfig(**settings), seed=seed)  # type: ignore[arg-type]


def pad_masks(spec: ActionSpec, heads: Sequence[torch.Tensor]) -> torch.Tensor:
    """Masks ``[B, size]`` of each head as the policy reads them, ``[B, D, K]``."""
    named = dict(zip(spec.names, heads, strict=False))
    return MaskReader(spec, torch.device("cpu")).read_batch(named).legal


def random_masks(spec: ActionSpec, n: int, generator: torch.Generator) -> torch.Tensor:
    heads = []
    for size in spec.sizes:
        legal = torch.rand(n, size, generator=generator) < 0.6
        legal[torch.arange(n), torch.randint(size, (n,), generator=generator)] = True
        heads.append(legal)
    return pad_masks(spec, heads)


def fill(
    agent: PPOAgent,
    n_envs: int = 4,
    n_steps: int = 11,
    *,
    ends: float = 0.2,
    lengths: np.ndarray | None = None,
    seed: int = 1,
) -> TamiyoRolloutBuffer:
    """Fill a buffer with random observations, masks, rewards and ends of both kinds."""
    generator = torch.Generator().manual_seed(seed)
    buffer = agent.make_buffer(n_envs, n_steps)
    state = torch.randn(n_envs, agent.policy.state_size, generator=generator)
    starts = torch.zeros(n_envs, dtype=torch.bool)
    for t in range(n_steps):
        observations = torch.randn(n_envs, OBSERVATION_SIZE, generator=generator)
        masks = random_masks(agent.spec, n_envs, generator)
        decision = agent.act(observations, masks, state, starts)
        state = decision.next_state
        starts = torch.rand(n_envs, generator=generator) < ends
        truncated = starts & (torch.rand(n_envs, generator=generator) < 0.5)
        buffer.add(
            observations,
            decision,
            rewards=torch.randn(n_envs, generator=generator),
            dones=starts,
            truncated=truncated,
            bootstrap_values=torch.randn(n_envs, generator=generator),
            active=None if lengths is None else t < lengths,
        )
        if lengths is not None and t + 1 >= lengths.max():
            break
    buffer.finish(torch.randn(n_envs, generator=generator))
    return buffer

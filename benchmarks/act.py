"""``PPOAgent.act`` for 16 environments with growth masks, against the bare network step."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from esper.simic.policy import RecurrentPolicy
from esper.tamiyo.policy.action_masks import compute_array_masks
from masks import SLOTS, random_slot_states
from rows import Ratio, Row, compare
from timing import Effort, time_side_by_side
from update import OBSERVATION_SIZE, make_agent

GROUP = "act"
N_ENVS = 16

ACT = "act, 16 environments"
ACT_WITH_STARTS = "act, 16 environments, with episode_starts"
CELL = "network's own step (lstm_cell)"
FUSED = "the same with nn.LSTM"


def run(effort: Effort) -> list[Row]:
    """Measure acting with and without episode starts."""
    agent = make_agent()
    policy = agent.policy
    assert isinstance(policy, RecurrentPolicy)
    generator = torch.Generator().manual_seed(0)
    observations = torch.randn(N_ENVS, OBSERVATION_SIZE, generator=generator)
    masks = compute_array_masks(*random_slot_states(N_ENVS, generator), SLOTS)
    state = agent.act(observations, masks, agent.initial_state(N_ENVS)).next_state
    starts = torch.zeros(N_ENVS, dtype=torch.bool)
    with torch.no_grad():
        timings = time_side_by_side(
            {
                ACT: partial(agent.act, observations, masks, state),
                ACT_WITH_STARTS: partial(agent.act, observations, masks, state, starts),
                CELL: partial(policy._step, observations, state),
                FUSED: partial(_fused_step, policy, observations, state),
            },
            effort,
        )
    cost = partial(compare, timings, group=GROUP, kind=Ratio.COST)
    return [
        cost(ACT, CELL, limit=1.25),
        cost(ACT, FUSED),
        cost(ACT_WITH_STARTS, CELL),
    ]


def _fused_step(
    policy: RecurrentPolicy, observations: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the policy's step with ``nn.LSTM`` on sequences of length one."""
    features = torch.relu_(policy.features(observations)).unsqueeze(0)
    hidden, cell = state.unsqueeze(0).chunk(2, dim=-1)
    _, (hidden, cell) = policy.lstm(features, (hidden.contiguous(), cell.contiguous()))
    return policy.outputs(hidden[0]), torch.cat([hidden[0], cell[0]], dim=-1)

"""``PPOAgent.update``, 16 environments x 150 steps x 4 epochs, against a peer and a bare LSTM."""

from __future__ import annotations

from enum import Enum
from functools import partial

import torch
from torch import nn

from esper.config import PPOConfig
from esper.config.learning import NetworkConfig
from esper.lifecycle.factored_actions import growth_action_spec
from esper.simic.agent import PPOAgent, TamiyoRolloutBuffer
from esper.simic.policy import RecurrentPolicy
from esper.tamiyo.policy.action_masks import compute_array_masks
from masks import SLOTS, random_slot_states
from rows import Ratio, Row, compare, missing_row
from timing import Call, Effort, Timings, time_side_by_side

GROUP = "update"
N_ENVS, N_STEPS, N_EPOCHS = 16, 150, 4
OBSERVATION_SIZE = FEATURE_SIZE = LSTM_SIZE = 128
P_DONE = 0.04

# So small that thousands of updates from one rollout hardly change the policy; the amount of
# arithmetic is the same.
LEARNING_RATE = 1e-7

BARE_LSTM = f"bare nn.LSTM, {N_EPOCHS} x (forward + backward)"
PEERS = {False: "sb3-contrib, a second LSTM for the critic", True: "sb3-contrib, one LSTM"}
"""Configurations of the peer, by whether the critic shares the actor's LSTM."""


class Episodes(Enum):
    """Where the episodes of a rollout start and end."""

    WHOLE = "one episode per environment"
    ENDING_INSIDE = "episodes ending inside"
    ONGOING = "middle of long episodes"

    def is_done(self, t: int, generator: torch.Generator) -> torch.Tensor:
        """Return ``[E]`` bool, whether each environment's episode ends with step t."""
        if self is Episodes.ENDING_INSIDE:
            return torch.rand(N_ENVS, generator=generator) < P_DONE
        return torch.full((N_ENVS,), self is Episodes.WHOLE and t == N_STEPS - 1)


def run(effort: Effort) -> list[Row]:
    """Measure all kinds of rollouts together."""
    calls: dict[str, Call] = {BARE_LSTM: bare_lstm()}
    for kind in Episodes:
        agent = make_agent()
        calls[_ours(kind)] = partial(agent.update, fill_buffer(agent, kind))
    missing = ""
    try:
        from recurrent_ppo import make_trainer
    except ImportError as error:
        missing = f"not installed ({error.name})"
    else:
        for kind in Episodes:
            for shares_lstm in PEERS:
                trainer = make_trainer(kind, shares_lstm=shares_lstm)
                calls[_peer(kind, shares_lstm)] = trainer
    timings = time_side_by_side(calls, effort)
    return [row for kind in Episodes for row in _rows(timings, kind, missing)]


def _rows(timings: Timings, kind: Episodes, missing: str) -> list[Row]:
    ours = _ours(kind)
    faster = partial(compare, timings, group=GROUP, kind=Ratio.SPEEDUP)
    rows: list[Row] = []
    for shares_lstm, label in PEERS.items():
        if missing:
            gone = partial(missing_row, timings, group=GROUP, kind=Ratio.SPEEDUP, limit=8.0)
            rows.append(gone(ours, label, note=missing))
        else:
            rows.append(faster(ours, _peer(kind, shares_lstm), limit=8.0, label=label))
    cost = partial(compare, timings, group=GROUP, kind=Ratio.COST)
    rows.append(cost(ours, BARE_LSTM, limit=1.15))
    if not missing:
        rows += [
            faster(BARE_LSTM, _peer(kind, shares), is_detail=True, label=f"{label}, {kind.value}")
            for shares, label in PEERS.items()
        ]
    return rows


def _ours(kind: Episodes) -> str:
    return f"update, {kind.value}"


def _peer(kind: Episodes, shares_lstm: bool) -> str:
    return f"{PEERS[shares_lstm]}, {kind.value}"


def make_agent() -> PPOAgent:
    """Return an agent for growth actions on three slots."""
    spec = growth_action_spec(SLOTS)
    sizes = NetworkConfig(feature_size=FEATURE_SIZE, lstm_size=LSTM_SIZE)
    generator = torch.Generator().manual_seed(0)
    policy = RecurrentPolicy(spec, OBSERVATION_SIZE, sizes, generator=generator)
    config = PPOConfig(
        learning_rate=LEARNING_RATE, n_epochs=N_EPOCHS, batch_size=N_ENVS * N_STEPS, ent_coef=0.01
    )
    return PPOAgent(spec, policy, config)


def fill_buffer(agent: PPOAgent, kind: Episodes) -> TamiyoRolloutBuffer:
    """Return a full buffer of steps the agent took on random observations, masks and rewards."""
    generator = torch.Generator().manual_seed(1)
    buffer = agent.make_buffer(N_ENVS, N_STEPS)
    state, starts = agent.initial_state(N_ENVS), torch.ones(N_ENVS, dtype=torch.bool)
    for t in range(N_STEPS):
        observations = torch.randn(N_ENVS, OBSERVATION_SIZE, generator=generator)
        masks = compute_array_masks(*random_slot_states(N_ENVS, generator), SLOTS)
        decision = agent.act(observations, masks, state, starts)
        done = kind.is_done(t, generator)
        buffer.add(
            observations,
            decision,
            rewards=torch.randn(N_ENVS, generator=generator),
            dones=done,
            truncated=torch.zeros_like(done),
        )
        state, starts = decision.next_state, done
    observations = torch.randn(N_ENVS, OBSERVATION_SIZE, generator=generator)
    buffer.finish(agent.value(observations, state))
    return buffer


def bare_lstm() -> Call:
    """Return the lower bound of an update: the LSTM's forward and backward pass."""
    lstm = nn.LSTM(FEATURE_SIZE, LSTM_SIZE)
    inputs = torch.randn(N_STEPS, N_ENVS, FEATURE_SIZE, requires_grad=True)
    gradient = torch.randn(N_STEPS, N_ENVS, LSTM_SIZE)

    def run_epochs() -> None:
        for _ in range(N_EPOCHS):
            lstm.zero_grad(set_to_none=True)
            inputs.grad = None
            lstm(inputs)[0].backward(gradient)

    return run_epochs

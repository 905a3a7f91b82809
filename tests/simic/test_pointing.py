"""PPO learns which slot to point at, and what it learned holds for other numbers of slots."""

from __future__ import annotations

import torch
from torch import Tensor

from esper.config import PolicyConfig, PPOConfig
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.lifecycle.slot_config import SlotConfig
from esper.simic.agent import PPOAgent
from esper.tamiyo.policy.observations import TENSOR_KINDS, ObservationLayout
from esper.tamiyo.policy.slot_network import SlotPolicy
from tests.simic.helpers import pad_masks

SLOT = HEAD_NAMES.index("slot")
SIZES = PolicyConfig(feature_size=16, lstm_size=8, slot_size=8)
MARK = "contribution"


def make_slots(n_slots: int) -> SlotConfig:
    return SlotConfig(tuple(f"blocks.{index}" for index in range(n_slots)))


def draw_marked(n_slots: int, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return observations of noise in which one slot is marked, and which it is."""
    layout = ObservationLayout(make_slots(n_slots))
    observations = 2 * torch.rand(n, layout.size, generator=generator) - 1
    for column in layout.categories:
        observations[:, column] = 0.0
    for kind in TENSOR_KINDS:  # a slot without kind is absent
        layout.slot(observations.numpy(), f"on_{kind}")[...] = float(kind == "vector")
    marked = torch.randint(n_slots, (n,), generator=generator)
    marks = torch.nn.functional.one_hot(marked, n_slots).float()
    layout.slot(observations.numpy(), MARK)[...] = 2 * marks.numpy() - 1
    return observations, marked


def advance_only(policy: SlotPolicy, n: int) -> Tensor:
    """Return masks of hosts that may do nothing but advance the seed of any slot."""
    heads = [torch.ones(n, size, dtype=torch.bool) for size in policy.spec.sizes]
    heads[policy.spec.op_index][:] = False
    heads[policy.spec.op_index][:, Op.ADVANCE] = True
    return pad_masks(policy.spec, heads)


def share_found(policy: SlotPolicy, n_slots: int) -> float:
    """Return how often the likeliest slot of fresh observations is the marked one."""
    other = SlotPolicy(make_slots(n_slots), SIZES)
    other.load_state_dict(policy.state_dict())
    observations, marked = draw_marked(n_slots, 500, torch.Generator().manual_seed(99))
    masks, state = advance_only(other, 500), torch.zeros(500, other.state_size)
    with torch.no_grad():
        actions = other.act(observations, masks, state, None).actions
    return float((actions[:, SLOT] == marked).float().mean())


def test_a_marked_slot_is_pointed_at_among_other_numbers_of_slots_than_were_learned_with() -> None:
    n_slots, n_envs, n_steps = 3, 32, 8
    generator = torch.Generator().manual_seed(0)
    policy = SlotPolicy(make_slots(n_slots), SIZES, generator=torch.Generator().manual_seed(1))
    config = PPOConfig(learning_rate=0.01, gamma=1.0, n_epochs=4, n_minibatches=1)
    agent = PPOAgent(policy.spec, policy, config, seed=2)
    masks, always = advance_only(policy, n_envs), torch.ones(n_envs, dtype=torch.bool)
    assert share_found(policy, n_slots) < 0.6
    for _ in range(20):
        buffer = agent.make_buffer(n_envs, n_steps)
        for _ in range(n_steps):
            observations, marked = draw_marked(n_slots, n_envs, generator)
            decision = agent.act(observations, masks, agent.initial_state(n_envs), always)
            rewards = (decision.actions[:, SLOT] == marked).float()
            buffer.add(observations, decision, rewards=rewards, dones=always, truncated=~always)
        buffer.finish(torch.zeros(n_envs))
        agent.update(buffer)
    assert share_found(policy, n_slots) > 0.95
    assert share_found(policy, 2) > 0.95
    assert share_found(policy, 7) > 0.9
    assert share_found(policy, 12) > 0.85

"""Slot policies and random observations for several tests."""

from __future__ import annotations

import torch
from torch import Tensor

from esper.config import PolicyConfig
from esper.lifecycle.slot_config import SlotConfig
from esper.simic.policy import RecurrentPolicy
from esper.tamiyo.policy.observations import (
    HOST_FEATURES,
    KIND_NAMES,
    SLOT_FEATURES,
    ObservationLayout,
)
from esper.tamiyo.policy.slot_network import SlotPolicy
from tests.simic.helpers import pad_masks

SIZES = PolicyConfig(feature_size=9, lstm_size=6, slot_size=5)
BLUEPRINTS = ("norm", "mlp_small", "widen_large")
N_HOST, N_SLOT = len(HOST_FEATURES), len(SLOT_FEATURES)
BLUEPRINT = list(SLOT_FEATURES).index("blueprint")
KINDS = slice(*(list(SLOT_FEATURES).index(KIND_NAMES[end]) + (end < 0) for end in (0, -1)))


def make_slots(n_slots: int) -> SlotConfig:
    return SlotConfig(tuple(f"blocks.{index}" for index in range(n_slots)), blueprints=BLUEPRINTS)


def make_policy(n_slots: int, seed: int = 0, config: PolicyConfig = SIZES) -> SlotPolicy:
    """Return a policy with large weights, unlike a fresh one, whose outputs hardly vary."""
    generator = torch.Generator().manual_seed(seed)
    policy = SlotPolicy(make_slots(n_slots), config, generator=generator)
    for tensor in (policy.outputs.weight, policy.outputs.bias, policy.encode.bias):
        torch.nn.init.normal_(tensor, generator=generator)
    return policy


def draw_observations(n_slots: int, *shape: int, seed: int = 1) -> Tensor:
    """Return random observations with valid blueprint categories and kinds."""
    generator = torch.Generator().manual_seed(seed)
    layout = ObservationLayout(make_slots(n_slots))
    observations = 2 * torch.rand(*shape, layout.size, generator=generator) - 1
    for column, n in layout.categories.items():
        observations[..., column] = torch.randint(n + 1, shape, generator=generator) / n
    kinds = torch.randint(len(KIND_NAMES), (*shape, n_slots), generator=generator)
    slots = observations[..., N_HOST:].unflatten(-1, (n_slots, N_SLOT))
    slots[..., KINDS] = torch.nn.functional.one_hot(kinds, len(KIND_NAMES)).float()
    return observations


def permute_slots(observations: Tensor, order: list[int]) -> Tensor:
    """Return observations ``[..., D]`` with permuted slots."""
    host, slots = observations[..., :N_HOST], observations[..., N_HOST:]
    slots = slots.unflatten(-1, (len(order), N_SLOT))[..., order, :]
    return torch.cat([host, slots.flatten(-2)], dim=-1)


def run_step_by_step(
    policy: SlotPolicy | RecurrentPolicy, observations: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Act on ``[T, E, D]`` with the state zeroed where an episode starts."""
    state, taken = torch.zeros(observations.shape[1], policy.state_size), []
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for seen, is_start in zip(observations, starts, strict=True):
            state = state.masked_fill(is_start.unsqueeze(-1), 0.0)
            decision = policy.act(seen, None, state, generator)
            state = decision.next_state
            taken.append((decision.actions, decision.log_probs, decision.values))
    actions, log_probs, values = (torch.stack(column) for column in zip(*taken, strict=True))
    return actions, log_probs, values


def lay_out_all(policy: SlotPolicy, n_steps: int) -> object:
    """Return masks that allow every choice."""
    return pad_masks(
        policy.spec, [torch.ones(n_steps, size, dtype=torch.bool) for size in policy.spec.sizes]
    )

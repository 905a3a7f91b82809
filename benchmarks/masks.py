"""Action masks of 128 hosts, as one batch and from arrays, against one host at a time."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from esper.lifecycle.stages import Stage
from esper.tamiyo.policy.action_masks import (
    SlotConfig,
    SlotMaskState,
    compute_action_masks,
    compute_array_masks,
    compute_batch_masks,
)
from rows import Ratio, Row, compare
from timing import Effort, time_side_by_side

GROUP = "masks"
SLOTS = SlotConfig(("a", "b", "c"))
N_HOSTS = 128

BATCH = "128 hosts, from SlotMaskState lists"
ARRAYS = "128 hosts, from arrays"
ONE_BY_ONE = "one by one, then stacked"


def random_slot_states(
    n_hosts: int, generator: torch.Generator, slots: SlotConfig = SLOTS
) -> tuple[Tensor, Tensor, Tensor]:
    """Return stage and age (int64) and whether alpha is at rest (bool), all ``[hosts, slots]``."""
    shape = (n_hosts, slots.max_slots)
    stage = torch.randint(len(Stage), shape, generator=generator)
    age = torch.randint(4, shape, generator=generator)
    at_rest = torch.rand(shape, generator=generator) < 0.5
    # An empty slot has age 0 and alpha at rest, the state that None stands for.
    is_empty = stage == Stage.DORMANT
    return stage, age.masked_fill(is_empty, 0), at_rest | is_empty


def run(effort: Effort) -> list[Row]:
    """Measure both batched forms."""
    arrays = random_slot_states(N_HOSTS, torch.Generator().manual_seed(0))
    states = as_lists(*arrays)

    def one_by_one() -> dict[str, Tensor]:
        hosts = [compute_action_masks(slots, SLOTS) for slots in states]
        return {name: torch.stack([host[name] for host in hosts]) for name in hosts[0]}

    expected = one_by_one()
    for masks in (compute_batch_masks(states, SLOTS), compute_array_masks(*arrays, SLOTS)):
        for name, mask in expected.items():
            assert torch.equal(masks[name], mask), f"the masks of {name!r} differ"
    timings = time_side_by_side(
        {
            BATCH: partial(compute_batch_masks, states, SLOTS),
            ARRAYS: partial(compute_array_masks, *arrays, SLOTS),
            ONE_BY_ONE: one_by_one,
        },
        effort,
    )
    faster = partial(compare, timings, other=ONE_BY_ONE, group=GROUP, kind=Ratio.SPEEDUP)
    return [faster(BATCH, limit=50.0), faster(ARRAYS, limit=300.0)]


def as_lists(stage: Tensor, age: Tensor, at_rest: Tensor) -> list[list[SlotMaskState | None]]:
    """Return the same states as objects, None for an empty slot."""
    return [
        [
            None if kind == Stage.DORMANT else SlotMaskState(Stage(kind), epochs, is_still)
            for kind, epochs, is_still in zip(*host, strict=True)
        ]
        for host in zip(stage.tolist(), age.tolist(), at_rest.tolist(), strict=True)
    ]

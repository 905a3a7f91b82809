"""The default optimizer is PyTorch's Adam, in less time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Adam

from esper.simic.agent.optimizers import FusedAdam


def train(make: type[Adam], frozen_from: int, weight_decay: float) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    parameters = [nn.Parameter(torch.randn(size, generator=generator)) for size in (3, 40)]
    optimizer = make(parameters, lr=0.1, weight_decay=weight_decay, fused=True)
    seen = list[torch.Tensor]()
    for step in range(6):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        if step >= frozen_from:
            parameters[0].grad = None
        optimizer.step()
        seen += [parameter.detach().clone() for parameter in parameters]
    state: dict[int, dict[str, torch.Tensor]] = optimizer.state_dict()["state"]
    return seen + [moment for one in state.values() for moment in one.values()]


@pytest.mark.parametrize("frozen_from", [0, 3, 9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_and_state_are_those_of_adam(frozen_from: int, weight_decay: float) -> None:
    ours = train(FusedAdam, frozen_from, weight_decay)
    theirs = train(Adam, frozen_from, weight_decay)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_hooks_of_steps_are_called() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.ones(2)
    optimizer = FusedAdam([parameter], fused=True)
    called = list[str]()

    def note_start(*_: Any) -> None:
        called.append("before")

    def note_end(*_: Any) -> None:
        called.append("after")

    optimizer.register_step_pre_hook(note_start)
    optimizer.register_step_post_hook(note_end)
    optimizer.step()
    assert called == ["before", "after"]

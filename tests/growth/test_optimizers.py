"""An optimizer follows a model's growth: no state is lost, no parameter is left behind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from esper.config.growth import MLPHostConfig
from esper.errors import SlotError
from esper.growth.host_slots import slots
from esper.growth.hosts import build_host, make_host
from esper.growth.optimizers import OptimizerKeeper, reset_state
from esper.growth.saved_models import load, save
from esper.lifecycle.factored_actions import BlendStyle
from tests.growth.helpers import find_leftovers

SIZES = MLPHostConfig(n_features=6, n_classes=3, width=5, hidden=4)
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: SGD(p, 0.1, momentum=0.9),
    "adam": lambda p: Adam(p, 0.01),
    "adamw": lambda p: AdamW(p, 0.01),
    "rmsprop": lambda p: RMSprop(p, 0.01),
}


def step(model: nn.Module, optimizer: Optimizer) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 6, generator=generator), torch.arange(8) % 3
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def members(optimizer: Optimizer) -> list[int]:
    return [id(p) for group in optimizer.param_groups for p in group["params"]]


def blend(model: nn.Module, optimizer: Optimizer, slot: str = "blocks.0") -> None:
    """Bring a seed beside a block to blending at alpha 1, with training on the way."""
    host_slots = slots(model)
    host_slots.germinate(slot, "low_rank")
    host_slots.advance(slot)
    step(model, optimizer)
    host_slots.tick()
    host_slots.advance(slot)
    for _ in range(3):
        step(model, optimizer)
        host_slots.tick()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_new_parameters_join_and_are_trained(name: str) -> None:
    model = make_host(SIZES)
    optimizer = OPTIMIZERS[name](model.parameters())
    OptimizerKeeper(model, optimizer)
    blend(model, optimizer)
    assert sorted(members(optimizer)) == sorted(id(p) for p in model.parameters())
    seed = slots(model)["blocks.0"].seed
    assert seed is not None
    before = [p.detach().clone() for p in seed.parameters()]
    step(model, optimizer)
    assert all(not torch.equal(p, q) for p, q in zip(seed.parameters(), before, strict=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_pruned_parameters_leave_with_their_state(name: str) -> None:
    model = make_host(SIZES)
    optimizer = OPTIMIZERS[name](model.parameters())
    OptimizerKeeper(model, optimizer)
    n_before = len(members(optimizer))
    blend(model, optimizer)
    assert len(optimizer.state) > n_before
    slots(model).prune("blocks.0")
    assert len(members(optimizer)) == len(optimizer.state) == n_before
    assert not find_leftovers(model, optimizer)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fossilized_parameters_keep_their_moments_exactly(name: str) -> None:
    model = make_host(SIZES)
    optimizer = OPTIMIZERS[name](model.parameters())
    OptimizerKeeper(model, optimizer)
    blend(model, optimizer)
    slots(model).advance("blocks.0")
    slots(model).tick()
    parameters = slots(model)["blocks.0"].seed_parameters()
    before = [copy.deepcopy(optimizer.state[p]) for p in parameters]
    assert slots(model).fossilize("blocks.0").was_done
    for parameter, state in zip(parameters, before, strict=True):
        assert state.keys() == optimizer.state[parameter].keys()
        for key, value in state.items():
            now = optimizer.state[parameter][key]
            assert torch.equal(now, value) if isinstance(value, torch.Tensor) else now == value
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert {rates[id(p)] for p in parameters} == {optimizer.param_groups[0]["lr"]}


def test_a_host_whose_isolated_seed_was_pruned_trains_as_if_it_never_grew() -> None:
    grown, plain = make_host(SIZES), make_host(SIZES)
    pair = [(model, AdamW(model.parameters(), 0.01)) for model in (grown, plain)]
    OptimizerKeeper(grown, pair[0][1])
    host_slots = slots(grown)
    host_slots.germinate("blocks.1", "mlp_large")
    host_slots.advance("blocks.1")  # it trains in isolation, so the host is not affected
    for model, optimizer in pair:
        step(model, optimizer)
    host_slots.tick()
    host_slots.prune("blocks.1")
    for model, optimizer in pair:
        step(model, optimizer)
    for p, q in zip(grown.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_seed_joins_the_group_of_its_block_with_that_groups_settings() -> None:
    model = make_host(SIZES)
    block = list(model.blocks[1].parameters())  # type: ignore[index]
    rest = [p for p in model.parameters() if all(p is not q for q in block)]
    optimizer = AdamW([{"params": rest}, {"params": block, "weight_decay": 0.5, "lr": 0.2}])
    OptimizerKeeper(model, optimizer)
    slots(model).germinate("blocks.1", "low_rank")
    group = next(
        group
        for group in optimizer.param_groups
        if any(p is slots(model)["blocks.1"].seed_parameters()[0] for p in group["params"])
    )
    assert (group["lr"], group["weight_decay"]) == (0.2, 0.5)


def test_a_gate_joins_when_its_style_is_chosen_and_leaves_with_it() -> None:
    model = make_host(SIZES)
    optimizer = AdamW(model.parameters())
    OptimizerKeeper(model, optimizer)
    blend(model, optimizer)
    slots(model).set_alpha_target("blocks.0", 1.0, style=BlendStyle.LEARNED_GATE)
    step(model, optimizer)
    gate = slots(model)["blocks.0"].gate
    assert gate is not None
    assert all(p in optimizer.state for p in gate.parameters())
    slots(model).set_alpha_target("blocks.0", 1.0, style=BlendStyle.ADD_LINEAR)
    assert not find_leftovers(model, optimizer)
    assert len(members(optimizer)) == len(list(model.parameters()))


def test_an_optimizer_of_another_model_is_rejected() -> None:
    with pytest.raises(SlotError, match=r"SGD .*MLPHost"):
        OptimizerKeeper(make_host(SIZES), SGD(nn.Linear(2, 2).parameters(), 0.1))


def test_lbfgs_is_rejected_by_name() -> None:
    model = make_host(SIZES)
    with pytest.raises(SlotError, match="LBFGS"):
        OptimizerKeeper(model, torch.optim.LBFGS(model.parameters()))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_state_continues_in_a_loaded_model(name: str, tmp_path: Path) -> None:
    model = make_host(SIZES)
    optimizer = OPTIMIZERS[name](model.parameters())
    keeper = OptimizerKeeper(model, optimizer)
    blend(model, optimizer)
    save(model, tmp_path)
    loaded = load(tmp_path, lambda: build_host(SIZES))
    other = OPTIMIZERS[name](build_order(loaded))
    OptimizerKeeper(loaded, other).load_state_dict(keeper.state_dict())
    for _ in range(3):
        step(model, optimizer)
        step(loaded, other)
    for p, q in zip(model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(p, q)
    fresh = make_host(SIZES)
    stranger = OptimizerKeeper(fresh, OPTIMIZERS[name](fresh.parameters()))
    with pytest.raises(SlotError, match=r"another optimizer.*blocks\.0\.seed"):
        stranger.load_state_dict(keeper.state_dict())


def build_order(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters in another order than the first optimizer's."""
    return list(model.parameters())[::-1]


@pytest.mark.parametrize("make", [SGD, Adam, RMSprop, torch.optim.Adagrad, torch.optim.Adafactor])
def test_an_optimizer_whose_state_is_reset_steps_like_a_new_one(make: Any) -> None:
    model = nn.Linear(4, 3)
    own, new = model.weight, copy.deepcopy(model.weight)
    options = {"momentum": 0.9} if make is SGD else {}
    used, fresh = make([own], lr=0.1, **options), make([new], lr=0.1, **options)
    own.grad = torch.full_like(own, 1e12)
    used.step()
    reset_state([used])
    with torch.no_grad():
        own.copy_(new)
    own.grad = new.grad = torch.ones_like(own)
    used.step()
    fresh.step()
    assert torch.equal(own, new)

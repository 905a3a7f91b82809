"""Models grow in their own layers without a change of what they compute, and shrink exactly."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import esper
from esper.config.growth import GrowthConfig
from esper.errors import SlotError
from esper.growth.block_slot import BlockSlot
from esper.growth.governor import Governor
from esper.growth.host_slots import HostSlots, remove_slots, slots
from esper.growth.modules import count_parameters, named_tensors
from esper.growth.optimizers import OptimizerKeeper
from esper.growth.placement import attach_slots, find_slots
from esper.growth.saved_models import describe_slots, restore_slots
from esper.growth.sites import SlotSite
from esper.growth.surgery_slots import SurgerySlot, UnitSlot
from esper.lifecycle.stages import Stage
from tests.growth.surgery.networks import Encoder, Gated, Mobile, Recurrent, ResNet, mlp

BLENDED = GrowthConfig(commits_at_once=False)

NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: mlp(6), (4, 5)),
    "gated": (lambda: Gated(6), (4, 5)),
    "lstm": (lambda: Recurrent(6), (4, 7, 5)),
    "resnet": (lambda: ResNet(4), (3, 3, 8, 8)),
    "mobile": (lambda: Mobile(4), (3, 3, 8, 8)),
    "encoder": (lambda: Encoder(2, 12), (2, 5, 5)),
    "host": (lambda: _plain_host(), (4, 8)),
}


def _plain_host() -> nn.Module:
    host = esper.make_host(esper.MLPHostConfig(n_features=8, n_blocks=2), seed=1)
    remove_slots(host)
    return host


def _build(name: str, config: GrowthConfig | None = None) -> tuple[nn.Module, Tensor]:
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    model, x = build().double(), torch.randn(shape).double()
    model.train()
    for _ in range(3):  # statistics of norms that are not their initial ones
        model(torch.randn(shape).double())
    model.eval()
    attach_slots(model, list(_find_sites(name)), growth_config=config)
    return model, x


@lru_cache
def _find_sites(name: str) -> tuple[SlotSite, ...]:
    build, shape = NETWORKS[name]
    found = find_slots(build().double(), torch.randn(shape).double())
    return tuple(proposal.site for proposal in found if proposal.site.what != "module")


def _wake(model: nn.Module) -> None:
    """Give every parameter that is zero, such as the columns of new units, some effect."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            parameter.add_(0.1 * noise)


def _grow_randomly(host_slots: HostSlots, rng: np.random.Generator) -> None:
    name = list(host_slots)[rng.integers(len(host_slots))]
    if host_slots[name].stage == Stage.FOSSILIZED:
        host_slots.absorb(name)
    blueprints = [b for b in esper.blueprint_names() if host_slots.slot_config.does_fit(b, name)]
    host_slots.germinate(name, str(rng.choice(blueprints)))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("seed", [0, 1])
def test_any_growth_keeps_the_function_and_is_replayed_on_a_fresh_model(
    name: str, seed: int
) -> None:
    model, x = _build(name)
    given = {key: list(tensor.shape) for key, tensor in named_tensors(model).items()}
    rng = np.random.default_rng(seed)
    for _ in range(5):
        before = model(x)
        _grow_randomly(slots(model), rng)
        torch.testing.assert_close(model(x), before, rtol=1e-9, atol=1e-9)
        _wake(model)
    assert {type(m).__module__.partition(".")[0] for m in model.modules()} <= {"torch", "tests"} | (
        {"esper"} if name == "host" else set()
    )
    fresh, _ = _build(name)
    remove_slots(fresh)
    assert {key: list(t.shape) for key, t in named_tensors(fresh).items()} == given
    restore_slots(fresh, json.loads(json.dumps(describe_slots(slots(model)))))
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh(x), model(x), rtol=0.0, atol=0.0)
    # The two go on alike.
    rng, other = np.random.default_rng(9), np.random.default_rng(9)
    for _ in range(2):
        _grow_randomly(slots(model), rng)
        _grow_randomly(slots(fresh), other)
    torch.testing.assert_close(fresh(x), model(x), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "lstm"])
@pytest.mark.parametrize("blueprint", ["widen_large", "deepen"])
def test_alpha_scales_what_is_read_of_a_seed_and_pruning_cuts_it_out(
    name: str, blueprint: str
) -> None:
    model, x = _build(name, BLENDED)
    host_slots = slots(model)
    able = [s for s in host_slots if host_slots.slot_config.does_fit(blueprint, s)]
    able = [s for s in able if host_slots[s].can_blend]
    if not able:
        pytest.skip("nothing of this network grows so")
    slot = able[-1]
    structure = {key: tensor.shape for key, tensor in named_tensors(model).items()}
    host_slots.germinate(slot, blueprint, tempo_epochs=4)
    assert host_slots[slot].stage == Stage.BLENDING
    assert host_slots[slot].alpha == 0.25
    _wake(model)
    whole = model(x)
    for alpha in (0.25, 0.5, 0.75):
        assert host_slots[slot].alpha == alpha
        folded = copy.deepcopy(model)
        plain = esper.export(folded)
        assert not any(module._forward_pre_hooks for module in plain.modules())
        torch.testing.assert_close(plain(x), model(x), rtol=1e-9, atol=1e-9)
        with host_slots[slot].switched_off():
            without = model(x)
        host_slots.tick()
    assert not torch.allclose(whole, model(x))
    assert host_slots[slot].alpha == 1.0
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    host_slots.prune(slot)
    assert {key: tensor.shape for key, tensor in named_tensors(model).items()} == structure
    torch.testing.assert_close(model(x), without, rtol=1e-9, atol=1e-9)


def test_a_committed_seed_keeps_the_alpha_that_it_had() -> None:
    model, x = _build("mlp", GrowthConfig(commits_at_once=False, min_holding_epochs=0))
    (slot,) = slots(model)
    slots(model).germinate(slot, "widen_large", tempo_epochs=1, alpha_target=0.5)
    _wake(model)
    slots(model).advance(slot)
    before = model(x)
    slots(model).fossilize(slot)
    torch.testing.assert_close(model(x), before, rtol=1e-9, atol=1e-9)
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_units_that_read_one_another_are_committed_at_once() -> None:
    model, _ = _build("lstm", BLENDED)
    (slot,) = (name for name, each in slots(model).items() if not each.can_blend)
    slots(model).germinate(slot, "widen_large")
    assert slots(model)[slot].stage == Stage.FOSSILIZED


def test_places_follow_when_a_list_gets_longer() -> None:
    model, x = _build("encoder")
    host_slots = slots(model)
    (units,) = (s for s in host_slots.values() if isinstance(s, UnitSlot) and s.group.heads is None)
    (blocks,) = (s for s in host_slots.values() if isinstance(s, BlockSlot))
    n_places, size = len(units.places), units.size
    host_slots.germinate(blocks.name, "deepen")
    assert len(units.places) == n_places + 1
    before = model(x)
    host_slots.germinate(units.name, "widen_large")
    torch.testing.assert_close(model(x), before, rtol=1e-9, atol=1e-9)
    for place in units.places:
        assert place.units == 2 * size
        shapes = [model.get_submodule(writer).weight.shape for writer in place.writers]
        assert all(shape[0] == 2 * size for shape in shapes)


def test_copies_are_shared_out_over_the_blocks() -> None:
    model, _ = _build("host")
    (name,) = (n for n, slot in slots(model).items() if isinstance(slot, BlockSlot))
    for origins in ((0, 0, 1), (0, 0, 1, 1), (0, 0, 0, 1, 1)):
        slots(model).germinate(name, "deepen")
        slots(model).absorb(name)
        assert slots(model)[name].origins == origins


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_an_optimizer_keeps_the_moments_of_what_was_there(kind: type) -> None:
    model, x = _build("resnet")
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(model.parameters(), lr=0.01, **options)
    OptimizerKeeper(model, optimizer)
    moment = "momentum_buffer" if kind is torch.optim.SGD else "exp_avg"
    model.train()
    model(x).square().sum().backward()
    optimizer.step()
    before = {name: optimizer.state[p][moment].clone() for name, p in model.named_parameters()}
    for name, slot in slots(model).items():
        slots(model).germinate(name, "deepen" if isinstance(slot, BlockSlot) else "widen_large")
    grown = dict(model.named_parameters())
    assert {id(p) for g in optimizer.param_groups for p in g["params"]} == {
        id(p) for p in grown.values()
    }
    n_carried = 0
    for name, own in before.items():
        if name not in grown:
            continue
        new = optimizer.state.get(grown[name], {}).get(moment)
        if new is None:
            continue
        # The moments of old entries stand where their values stand; others are zero.
        n_carried += 1
        assert torch.count_nonzero(new) == torch.count_nonzero(own)
        torch.testing.assert_close(new.sum(), own.sum())
    assert n_carried > 5
    optimizer.zero_grad()
    model(x).square().sum().backward()
    optimizer.step()


def test_a_rollback_undoes_surgery_to_the_bit() -> None:
    model, x = _build("encoder")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    OptimizerKeeper(model, optimizer)
    governor = Governor(model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        assert governor.step(model(x).square().mean()) is None
    assert governor.end_epoch() is None
    kept = {name: (each, each.detach().clone()) for name, each in named_tensors(model).items()}
    state = copy.deepcopy(optimizer.state_dict())
    for name in list(slots(model)):
        is_list = isinstance(slots(model)[name], BlockSlot)
        slots(model).germinate(name, "deepen" if is_list else "widen_large")
    assert count_parameters(model) > sum(v.numel() for _, v in kept.values())
    # The state after the epoch was never seen to be good, so growth since is undone with it.
    assert governor.step(model(x).sum() * float("nan")) is not None
    assert named_tensors(model).keys() == kept.keys()
    assert all(slot.stage == Stage.DORMANT for slot in slots(model).values())
    restored = copy.deepcopy(optimizer.state_dict())
    assert restored["param_groups"] == state["param_groups"]
    slots(model).germinate(next(iter(slots(model))), "widen_large")
    optimizer.zero_grad()
    assert governor.step(model(x).square().mean()) is None


def test_growth_that_is_known_to_be_good_survives_a_rollback() -> None:
    model, x = _build("mlp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    OptimizerKeeper(model, optimizer)
    governor = Governor(model, optimizer)
    (slot,) = slots(model)
    slots(model).germinate(slot, "widen_large")
    model.train()
    assert governor.step(model(x).square().mean()) is None
    kept = {name: tensor.detach().clone() for name, tensor in named_tensors(model).items()}
    governor.end_epoch(loss=model(x).square().mean().item())
    kept = {name: tensor.detach().clone() for name, tensor in named_tensors(model).items()}
    assert governor.step(model(x).sum() * float("nan")) is not None
    assert isinstance(slots(model)[slot], SurgerySlot)
    assert slots(model)[slot].size == 12
    for name, tensor in named_tensors(model).items():
        torch.testing.assert_close(tensor, kept[name], rtol=0.0, atol=0.0)


def test_a_copy_of_a_model_grows_apart() -> None:
    model, x = _build("mlp", BLENDED)
    (slot,) = slots(model)
    slots(model).germinate(slot, "widen_large", tempo_epochs=5)
    _wake(model)
    twin = copy.deepcopy(model)
    torch.testing.assert_close(twin(x), model(x))
    before = model(x)
    for _ in range(5):
        slots(twin).tick()
    assert not torch.allclose(twin(x), before)
    torch.testing.assert_close(model(x), before)


def test_a_model_that_was_changed_by_hand_is_refused() -> None:
    model, _ = _build("mlp")
    (slot,) = slots(model)
    model[0] = nn.Linear(5, 3).double()
    with pytest.raises(SlotError, match=r"0\.weight.*changed by hand"):
        slots(model).germinate(slot, "widen_large")
    assert slots(model)[slot].stage == Stage.DORMANT


def test_a_limit_closes_the_slot() -> None:
    model, _ = _build("mlp", GrowthConfig(max_widening=2.5))
    (slot,) = slots(model)
    wanted = count_of_wider_mlp(15) - count_of_wider_mlp(6)
    assert slots(model)[slot].count_new("widen_huge") == wanted
    slots(model).germinate(slot, "widen_huge")
    assert slots(model)[slot].size == 15
    for _ in range(5):
        slots(model).tick()
    assert slots(model)[slot].stage == Stage.FOSSILIZED


def count_of_wider_mlp(width: int) -> int:
    return count_parameters(mlp(width))


def test_counts_agree_with_models_built_by_hand() -> None:
    model, _ = _build("mlp", GrowthConfig(embargo_epochs=1))
    (slot,) = slots(model)
    slots(model).germinate(slot, "widen_large")
    place = slots(model)[slot]
    assert count_parameters(model) == count_of_wider_mlp(12)
    assert place.count_live() == count_of_wider_mlp(12) - count_of_wider_mlp(6)
    slots(model).absorb(slot)
    assert (place.count_live(), place.count_fossils()) == (
        0,
        count_of_wider_mlp(12) - count_of_wider_mlp(6),
    )


def test_printed_slots_have_their_present_size() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    host = slots(esper.add_slots(model, ["0>2"], torch.randn(2, 4)))
    assert str(host) == "0>2: dormant; 8 units"
    host.germinate("0>2", "widen_large")
    assert str(host) == "0>2: fossilized; 16 units"

"""A slot grows again: fossils are part of the block that later seeds see."""

from __future__ import annotations

import copy
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW

from esper.config.growth import GrowthConfig
from esper.growth.blending import blend, effective_change
from esper.growth.blueprints import SeedForm
from esper.growth.export import export
from esper.growth.footprint import footprint
from esper.growth.governor import Governor
from esper.growth.host_slots import HostSlots, slot_size, slots
from esper.growth.optimizers import OptimizerKeeper
from esper.growth.placement import add_slots
from esper.growth.saved_models import load, save
from esper.growth.seed_slot import SeedSlot
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage
from tests.growth.helpers import (
    HOSTS,
    ResidualMLP,
    hooks_of,
    lead_to,
    loss_of,
    make_host,
    randomize,
    same_bits,
)


def grow(
    host: HostSlots,
    slot: str,
    blueprint: str,
    *,
    style: BlendStyle = BlendStyle.ADD_LINEAR,
    alpha: float = 1.0,
) -> None:
    """Grow a seed with random weights until it is part of its block."""
    place = lead_to(host, slot, Stage.HOLDING, blueprint=blueprint, style=style, alpha_target=alpha)
    randomize(place.seed, seed=len(place.absorbed))
    if place.gate is not None:
        randomize(place.gate, seed=len(place.absorbed))
    host.tick()
    assert host.fossilize(slot).was_done
    while host[slot].stage != Stage.DORMANT:
        host.tick()


def expected_output(slot: SeedSlot, x: Tensor) -> Tensor:
    """Return the output of a block with one argument and of its fossils, from their definition."""
    y = slot.block(x)
    for part, fossil in zip(slot.absorbed, slot.life.fossils, strict=True):
        delta = part.seed(x if part.form == SeedForm.PARALLEL else y)
        gate = None if part.gate is None else part.gate(y)
        y = blend(y, effective_change(fossil.style, y, delta, gate), fossil.alpha)
    return y


@pytest.mark.parametrize("name", HOSTS)
def test_each_seed_reads_what_the_seeds_before_it_made_of_the_block(name: str) -> None:
    model, host, x = make_host(name)
    model.eval()
    slot = HOSTS[name][1][0]
    fitting = host.slot_config.fits[slot]
    serial = "conv_small" if "conv_small" in fitting else "mlp_small"
    others = [each for each in ("low_rank", "lora_small", "bottleneck") if each in fitting]
    grow(host, slot, serial, style=BlendStyle.MULTIPLY_LINEAR, alpha=0.7)
    grow(host, slot, others[0], style=BlendStyle.LEARNED_GATE)
    grow(host, slot, "norm", alpha=0.5)
    inputs: list[Tensor] = []

    def record(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        inputs.extend([*args, output.clone()])  # the model changes it in place

    handle = host[slot].register_forward_hook(record)
    output = model(x)
    handle.remove()
    assert same_bits(inputs[1], expected_output(host[slot], inputs[0]))
    with host[slot].switched_off():
        assert same_bits(model(x), output)
    plain = export(model)
    assert not any(type(module).__module__.startswith("esper") for module in plain.modules())
    torch.testing.assert_close(plain(x), output, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "slot", "first", "second"),
    [
        ("mlp", "blocks.*.up>down", "blocks.1.up", "blocks.1.down"),
        ("conv", "block_1.conv_1>block_1.conv_2", "block_1.conv_1", "block_1.conv_2"),
    ],
)
def test_width_doubles_repeatedly(name: str, slot: str, first: str, second: str) -> None:
    build, _, sample = HOSTS[name]
    config = GrowthConfig(commits_at_once=True, embargo_epochs=1)
    model = add_slots(build(), [slot], sample(0), growth_config=config).eval()
    host, x = slots(model), sample(1)
    hidden, before = slot_size(host[slot]).hidden, model(x)
    for n_grown in range(1, 4):
        host.germinate(slot, "widen_large")
        host.tick()
        assert host[slot].stage == Stage.DORMANT
        assert slot_size(host[slot]).hidden == hidden * 2**n_grown
        assert [fossil.units for fossil in host[slot].life.fossils] == [
            hidden * 2**number for number in range(n_grown)
        ]
        for grown in (model, export(model)):
            assert grown.get_submodule(first).weight.shape[0] == hidden * 2**n_grown
            assert grown.get_submodule(second).weight.shape[1] == hidden * 2**n_grown
            torch.testing.assert_close(grown(x), before, rtol=1e-5, atol=1e-6)


def test_units_grow_in_a_block_that_modules_have_grown_beside() -> None:
    build, _, sample = HOSTS["mlp"]
    at = ["blocks.*.up>down", "blocks.*", "blocks.0"]
    config = GrowthConfig(commits_at_once=True)
    model = add_slots(build(), at, sample(0), growth_config=config).eval()
    host, x = slots(model), sample(1)
    grow(host, "blocks.0", "mlp_small")
    before = model(x)
    host.germinate("blocks.*", "deepen")
    torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-6)
    # The copy is that of the block alone, and what grew beside the block stays there.
    kinds = [type(block).__name__ for block in model.blocks]
    assert kinds == ["SeedSlot", "ResidualBlock", "ResidualBlock"]
    host.germinate("blocks.*.up>down", "widen_large")
    torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-6)
    assert [block.up.out_features for block in model.blocks] == [16, 16, 16]
    torch.testing.assert_close(export(model)(x), before, rtol=1e-5, atol=1e-6)


def test_blocks_are_copied_while_units_are_blended_in() -> None:
    build, _, sample = HOSTS["mlp"]
    units, blocks = at = ["blocks.*.up>down", "blocks.*"]
    config = GrowthConfig(commits_at_once=False, embargo_epochs=1)
    model = add_slots(build(), at, sample(0), growth_config=config).eval()
    host, x = slots(model), sample(1)
    host.germinate(units, "widen_large", tempo_epochs=8)
    for block in model.blocks:
        randomize(block.down)  # as if the new units had been trained
    before = model(x)
    host.germinate(blocks, "deepen")
    torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-6)
    while min(host[units].alpha, host[blocks].alpha) < 1.0:
        host.tick()
    assert hooks_of(model) == 0
    for slot in (units, blocks):
        host.advance(slot)
    host.tick()
    for slot in (units, blocks):
        assert host.fossilize(slot).was_done
    host.tick()
    before = model(x)
    host.germinate(units, "widen_large")
    assert [block.up.out_features for block in model.blocks] == [32, 32, 32]
    torch.testing.assert_close(model(x), before, rtol=1e-5, atol=1e-6)


def test_seeds_are_composed_in_the_order_in_which_they_grew() -> None:
    model, host, x = make_host("mlp")
    model.eval()
    for blueprint in ("low_rank", "mlp_small", "norm", "low_rank"):
        grow(host, "blocks.0", blueprint)
    plain = export(model)
    torch.testing.assert_close(plain(x), model(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", HOSTS)
def test_a_new_seed_changes_nothing_and_trains_without_touching_the_grown_block(name: str) -> None:
    model, host, x = make_host(name)
    slot = HOSTS[name][1][0]
    fitting = host.slot_config.fits[slot]
    grow(host, slot, "conv_small" if "conv_small" in fitting else "mlp_small")
    model.eval()
    before = model(x)
    host.germinate(slot, "norm")
    assert same_bits(model(x), before)
    host.advance(slot)
    assert same_bits(model(x), before)
    twin = copy.deepcopy(model)
    slots(twin).lives.abandon_growing(slots(twin))
    loss_of(model, x).backward()
    loss_of(twin, x).backward()
    own, others = (
        [*place.block.parameters(), *place.absorbed[0].parameters()]
        for place in (host[slot], slots(twin)[slot])
    )
    for one, other in zip(own, others, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert same_bits(one.grad, other.grad)
    assert any(p.grad is not None for p in host[slot].seed_parameters())


def test_a_pruned_seed_leaves_the_grown_block_as_it_was() -> None:
    model, host, x = make_host("mlp")
    model.eval()
    grow(host, "blocks.0", "low_rank")
    before, parameters = model(x), [id(p) for p in model.parameters()]
    place = lead_to(host, "blocks.0", Stage.HOLDING, blueprint="mlp_small")
    randomize(place.seed)
    assert not same_bits(model(x), before)
    host.tick()
    host.prune("blocks.0")
    while host["blocks.0"].stage != Stage.DORMANT:
        host.tick()
    assert same_bits(model(x), before)
    assert [id(p) for p in model.parameters()] == parameters
    assert len(host["blocks.0"].life.fossils) == 1


def test_moments_stay_when_a_seed_becomes_part_of_its_block() -> None:
    model, host, x = make_host("mlp")
    optimizer = AdamW(model.parameters(), 0.01)
    keeper = OptimizerKeeper(model, optimizer)
    lead_to(host, "blocks.0", Stage.HOLDING, blueprint="mlp_large")
    loss_of(model, x).backward()
    optimizer.step()
    own = host["blocks.0"].seed_parameters()
    host.tick()
    host.fossilize("blocks.0")
    moments = [optimizer.state[p]["exp_avg"].clone() for p in own]
    host.tick()
    host.tick()
    assert host["blocks.0"].stage == Stage.DORMANT
    assert [id(p) for p in host["blocks.0"].grown_parameters()] == [id(p) for p in own]
    for parameter, moment in zip(own, moments, strict=True):
        assert same_bits(optimizer.state[parameter]["exp_avg"], moment)
    host.germinate("blocks.0", "mlp_small")
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert {rates[id(p)] for p in own} == {0.01}
    assert sorted(rates) == sorted(id(p) for p in model.parameters())
    state = keeper.state_dict()
    keeper.load_state_dict(state)


@pytest.mark.parametrize(
    ("name", "n_fossils", "has_seed"), [*product(HOSTS, (1, 2, 3), (False, True))]
)
def test_a_saved_model_is_restored_with_its_fossils(
    name: str, n_fossils: int, has_seed: bool, tmp_path: Path
) -> None:
    model, host, x = make_host(name)
    slot = HOSTS[name][1][0]
    rich = "conv_small" if "conv_small" in host.slot_config.fits[slot] else "mlp_small"
    for number in range(n_fossils):
        style = BlendStyle.LEARNED_GATE if number == 1 else BlendStyle.ADD_LINEAR
        grow(host, slot, (rich, "norm", rich)[number], style=style, alpha=0.7)
    if has_seed:
        randomize(lead_to(host, slot, Stage.HOLDING, blueprint=rich).seed)
    model.eval()
    save(model, tmp_path)
    twin = load(tmp_path, HOSTS[name][0])
    twin.eval()
    assert same_bits(twin(x), model(x))
    assert slots(twin).lives.items() == host.lives.items()
    for each in (model, twin):
        slots(each).tick()
        assert slots(each).n_germinated == n_fossils + has_seed
    assert same_bits(twin(x), model(x))


def test_a_rollback_takes_a_fossil_back_to_the_seed_it_was() -> None:
    model, host, x = make_host("mlp")
    optimizer = AdamW(model.parameters(), 0.01)
    OptimizerKeeper(model, optimizer)
    governor = Governor(model, optimizer)
    randomize(lead_to(host, "blocks.0", Stage.HOLDING, blueprint="mlp_large").seed)
    host.tick()
    host.fossilize("blocks.0")
    host.tick()
    assert governor.end_epoch() is None
    before, parameters = model(x), [id(p) for p in model.parameters()]
    host.tick()
    assert host["blocks.0"].stage == Stage.DORMANT
    governor.restore("a test")
    assert host["blocks.0"].stage == Stage.FOSSILIZED
    assert host["blocks.0"].absorbed == []
    assert same_bits(model(x), before)
    assert [id(p) for p in model.parameters()] == parameters


def test_footprint_counts_fossils_as_the_host() -> None:
    model, host, x = make_host("mlp")
    before = footprint(model, x)
    # 12 units between widths of 6: two matrices and two biases.
    grow(host, "blocks.0", "mlp_large")
    grown = footprint(model, x)
    assert grown.host_parameters - before.host_parameters == 2 * 12 * 6 + 12 + 6
    assert grown.forward_flops - before.forward_flops == 2 * len(x) * 2 * 12 * 6
    assert grown.seed_parameters == {}
    lead_to(host, "blocks.0", Stage.HOLDING, blueprint="mlp_small")
    again = footprint(model, x)
    assert again.host_parameters == grown.host_parameters
    assert again.seed_parameters == {"blocks.0": 2 * 3 * 6 + 3 + 6}
    assert again.forward_flops - grown.forward_flops == 2 * len(x) * 2 * 3 * 6


def test_a_model_is_deep_copied_with_its_fossils() -> None:
    model, host, x = make_host("mlp")
    grow(host, "blocks.0", "low_rank")
    twin = copy.deepcopy(model)
    assert same_bits(twin(x), model(x))
    grow(slots(twin), "blocks.0", "mlp_small")
    assert len(host["blocks.0"].absorbed) == len(host["blocks.0"].life.fossils) == 1
    assert isinstance(model, ResidualMLP)
    assert not isinstance(export(model), nn.ModuleList)


def test_a_new_seed_can_be_committed_and_absorbed_at_once() -> None:
    model, host, x = make_host("mlp")
    before = model(x)
    host.germinate("blocks.0", "mlp_small", alpha_target=0.5)
    host.commit("blocks.0")
    assert (host["blocks.0"].stage, host["blocks.0"].alpha) == (Stage.FOSSILIZED, 0.5)
    host.absorb("blocks.0")
    assert [fossil.blueprint for fossil in host["blocks.0"].life.fossils] == ["mlp_small"]
    torch.testing.assert_close(model(x), before, rtol=0.0, atol=1e-6)


def test_a_place_grows_up_to_its_limit_and_then_its_slot_is_closed(tmp_path: Path) -> None:
    build, _, sample = HOSTS["conv"]
    place = "block_1.conv_1>block_1.conv_2"
    config = GrowthConfig(commits_at_once=True, embargo_epochs=1, max_widening=5.0)
    model = add_slots(build(), [place], sample(0), growth_config=config)
    slot, host = slots(model)[place], slots(model)
    host.germinate(place, "widen_huge")  # 4 units become 16, and 20 are allowed
    host.tick()
    assert slot.count_new("widen_large") == slot.count_new("widen_huge") == 4 * slot.count_next()
    host.germinate(place, "widen_huge")
    for _ in range(4):
        host.tick()
        assert slot.stage == Stage.FOSSILIZED
    save(model, tmp_path)
    for grown in (model, load(tmp_path, build)):
        assert export(grown).block_1.conv_1.weight.shape == (20, 4, 3, 3)

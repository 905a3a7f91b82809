"""A slot on a pair of layers adds hidden units, and export merges them into the layers."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

import esper
from esper.config.growth import GrowthConfig
from esper.growth.host_slots import HostSlots, slots
from esper.growth.modules import count_parameters
from esper.growth.optimizers import OptimizerKeeper
from esper.growth.pair_slot import PairSlot
from esper.growth.seed_slot import slot_size
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage
from tests.growth.helpers import (
    ResidualMLP,
    find_leftovers,
    lead_to,
    randomize,
    same_bits,
    state_of,
)
from tests.growth.pair_models import CASES, GROWABLE, VECTORS, build, flat_mlp
from tests.growth.test_walks import draw_legal

EXACT = ("flat", "lenet", "fixed", "vgg", "resnet", "unet", "tied")
"""Models whose functions between layers give the same bits wherever an element lies."""


def make(name: str, config: GrowthConfig | None = None) -> tuple[nn.Module, HostSlots, Tensor]:
    """Return a model with slots on all of its pairs, its slots and an input."""
    model, case = build(name), CASES[name]
    esper.add_slots(model, list(case.pairs), case.sample(0), growth_config=config)
    return model, slots(model), case.sample(1)


def assert_close(given: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-5)


def evaluate(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x)


def host_gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return the gradients of the host's own parameters, by their names without slots."""
    model.zero_grad()
    model(x).square().sum().backward()
    return {
        name.replace("block.", ""): p.grad.clone()
        for name, p in model.named_parameters()
        if p.grad is not None and ".seed." not in name
    }


def grow(host: HostSlots, slot: str, blueprint: str, alpha: float = 1.0, seed: int = 0) -> None:
    """Grow units with random weights and statistics until they are part of their pair."""
    place = lead_to(host, slot, Stage.HOLDING, blueprint=blueprint, alpha_target=alpha)
    assert place.seed is not None
    randomize(place.seed, seed)
    for buffer in place.seed.buffers():
        if buffer.is_floating_point():
            buffer.add_(torch.rand(buffer.shape, generator=torch.Generator().manual_seed(seed)))
    host.tick()
    assert host.fossilize(slot).was_done
    while host[slot].stage != Stage.DORMANT:
        host.tick()


@pytest.mark.parametrize("name", GROWABLE)
def test_germinated_units_change_no_bit(name: str) -> None:
    model, host, x = make(name)
    evaluated, (learned, gradients) = evaluate(model, x), (model(x), host_gradients(model, x))
    for slot in host:
        lead_to(host, slot, Stage.GERMINATED, blueprint="widen_large")
        assert same_bits(evaluate(model, x), evaluated)
        assert same_bits(model(x), learned)
        found = host_gradients(model, x)
        assert all(same_bits(found[key], value) for key, value in gradients.items())
        host.abandon_growing()
        while host[slot].stage != Stage.DORMANT:
            host.tick()


@pytest.mark.parametrize("name", GROWABLE)
def test_isolated_units_learn_and_change_nothing(name: str) -> None:
    model, host, x = make(name)
    evaluated, learned, gradients = evaluate(model, x), model(x), host_gradients(model, x)
    for slot in host:
        place = lead_to(host, slot, Stage.TRAINING, blueprint="widen_large")
        assert place.seed is not None
        for is_new in (True, False):
            if not is_new:
                randomize(place.seed)
            assert same_bits(evaluate(model, x), evaluated)
            found = host_gradients(model, x)
            if name in EXACT:
                assert same_bits(model(x), learned)
                assert all(same_bits(found[key], value) for key, value in gradients.items())
            assert_close(model(x), learned)
            for key, value in gradients.items():
                assert_close(found[key], value)
            if is_new:
                assert all(
                    p.grad is not None and bool(p.grad.any())
                    for key, p in place.seed.named_parameters()
                    if key.startswith("columns")
                )
            else:
                assert any(p.grad.any() for p in place.seed.rows.parameters())
        host.abandon_growing()
        while host[slot].stage != Stage.DORMANT:
            host.tick()
    assert same_bits(evaluate(model, x), evaluated)


@pytest.mark.parametrize("name", GROWABLE)
def test_new_units_cancel_until_they_are_trained(name: str) -> None:
    model, host, x = make(name)
    before = evaluate(model, x)
    for slot in host:
        lead_to(host, slot, Stage.HOLDING, blueprint="widen_medium")
    assert all(place.alpha == 1.0 for place in host.values())
    assert_close(evaluate(model, x), before)


@pytest.mark.parametrize(
    "order", [pytest.param(1, marks=pytest.mark.slow), -1], ids=["forward", "backward"]
)
@pytest.mark.parametrize("name", GROWABLE)
def test_grown_pairs_are_merged_into_their_layers(name: str, order: int) -> None:
    model, host, x = make(name)
    plain = build(name)
    for number, slot in enumerate(list(host)[::order]):
        alpha = (1.0, 0.5)[number % 2]
        grow(host, slot, "widen_large", alpha, seed=number)
        grow(host, slot, "widen_small", 0.7, seed=number + 9)
        merged = esper.export(model)
        assert_close(evaluate(merged, x), evaluate(model, x))
        assert not torch.allclose(evaluate(merged, x), evaluate(plain, x), atol=1e-3)
    assert [type(m) for m in merged.modules()] == [type(m) for m in plain.modules()]
    assert list(merged.state_dict()) == list(plain.state_dict())
    for place in host.values():
        producer = place.site.modules[0]
        n_units = merged.get_submodule(producer).weight.shape[0]
        if not isinstance(merged.get_submodule(producer), nn.ConvTranspose2d):
            before = plain.get_submodule(producer).weight.shape[0]
            assert n_units == 2 * before + max(1, round(0.25 * 2 * before))
        assert slot_size(place).hidden == place.site.pair.units + place.life.units
    merged.train()
    assert merged(x).requires_grad


def test_doubled_units_of_a_flat_network() -> None:
    model, host, x = make("flat")
    place = lead_to(host, "0>2", Stage.HOLDING, blueprint="widen_large")
    randomize(place.seed)
    merged = esper.export(model)
    assert (merged[0].out_features, merged[2].in_features) == (16, 16)
    assert esper.export(model, committed_only=True)[0].out_features == 8
    rows, columns = place.seed.rows, place.seed.columns[0]
    hidden = torch.cat([model[0].block(x), rows(x)], 1).relu()
    after = hidden[:, :8] @ model[2].block.weight.T + model[2].block.bias
    after = after + hidden[:, 8:] @ columns.weight.T
    torch.testing.assert_close(model(x), model[4](after.relu()))
    torch.testing.assert_close(merged(x), model(x))


@pytest.mark.parametrize("name", ["flat", "vgg", "lenet"])
def test_grown_units_train_like_those_of_a_wide_network(name: str) -> None:
    model, host, x = make(name)
    model.train()
    for slot in host:
        grow(host, slot, "widen_large")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    target = torch.randn(model(x).shape, generator=torch.Generator().manual_seed(3))
    wide = esper.export(model)
    model.double(), wide.double()
    for each in (model, wide):
        optimizer = SGD(each.parameters(), 0.01)
        for _ in range(5):
            optimizer.zero_grad()
            (each(x.double()) - target).square().mean().backward()
            optimizer.step()
    merged = esper.export(model)
    for key, value in wide.state_dict().items():
        if "num_batches" not in key:
            torch.testing.assert_close(merged.state_dict()[key], value)


def test_pruned_units_leave_the_model_as_it_was() -> None:
    for name in GROWABLE:
        model, host, x = make(name)
        before, wanted, modules = state_of(model), evaluate(model, x), list(model.modules())
        for slot in host:
            lead_to(host, slot, Stage.HOLDING, blueprint="widen_small")
        host.abandon_growing()
        assert list(model.modules()) == modules
        assert list(state_of(model)) == list(before)
        assert same_bits(evaluate(model, x), wanted)


@pytest.mark.parametrize("name", GROWABLE)
def test_units_that_are_switched_off_are_left_out(name: str) -> None:
    model, host, x = make(name, GrowthConfig(embargo_epochs=1000))
    for number, slot in enumerate(host):
        place = lead_to(host, slot, Stage.HOLDING, blueprint="widen_large", alpha_target=0.5)
        randomize(place.seed, number)
        host.tick()
        host.fossilize(slot)
    on = evaluate(model, x)
    for slot in host:
        with host[slot].switched_off():
            off = evaluate(model, x)
            assert not torch.allclose(off, on, atol=1e-4)
            assert_close(evaluate(esper.export(model), x), off)
    assert same_bits(evaluate(model, x), on)


def test_styles_that_do_not_add_are_carried_out_as_addition() -> None:
    _, host, _ = make("flat")
    wanted = {
        BlendStyle.ADD_LINEAR: BlendStyle.ADD_LINEAR,
        BlendStyle.ADD_SIGMOID: BlendStyle.ADD_SIGMOID,
        BlendStyle.MULTIPLY_LINEAR: BlendStyle.ADD_LINEAR,
        BlendStyle.LEARNED_GATE: BlendStyle.ADD_LINEAR,
    }
    for style, effective in wanted.items():
        place = lead_to(host, "0>2", Stage.HOLDING, blueprint="widen_small", style=style)
        assert (place.life.style, place.gate) == (effective, None)
        host.set_alpha_target("0>2", 0.5, style=style)
        assert (place.life.style, place.gate) == (effective, None)
        host.abandon_growing()
        while place.stage != Stage.DORMANT:
            host.tick()


def test_only_widening_blueprints_fit() -> None:
    _, host, _ = make("flat")
    fitting = {"widen_small", "widen_medium", "widen_large", "widen_huge"}
    assert host.slot_config.fits == {"0>2": fitting, "2>4": fitting}


@pytest.mark.parametrize("name", ["flat", "vgg", "unet"])
def test_saved_models_have_their_new_units(name: str, tmp_path: Path) -> None:
    model, host, x = make(name)
    for number, slot in enumerate(list(host)[::-1]):
        grow(host, slot, "widen_small", seed=number)
    for number, slot in enumerate(host):
        place = lead_to(host, slot, Stage.BLENDING, blueprint="widen_medium")
        randomize(place.seed, number)
    esper.save(model, tmp_path)
    loaded = esper.load(tmp_path, lambda: build(name))
    assert same_bits(evaluate(loaded, x), evaluate(model, x))
    for twin in (loaded, copy.deepcopy(model)):
        slots(twin).tick()
        assert_close(evaluate(esper.export(twin), x), evaluate(twin, x))
        assert not torch.equal(evaluate(twin, x), evaluate(model, x))


def test_the_governor_rolls_new_units_back() -> None:
    model, host, x = make("vgg")
    optimizer = Adam(model.parameters(), 1e-2)
    OptimizerKeeper(model, optimizer)
    governor = esper.Governor(model, optimizer)
    grow(host, "0>4", "widen_large")
    lead_to(host, "4>10", Stage.BLENDING, blueprint="widen_small")
    governor.keep()
    before = evaluate(model, x)
    committed = evaluate(esper.export(model, committed_only=True), x)
    assert_close(before, evaluate(esper.export(model), x))
    governor.step(model(x).square().sum() * float("nan"))
    assert host["4>10"].stage == Stage.PRUNED
    assert_close(evaluate(model, x), committed)
    assert not find_leftovers(model, optimizer)


def test_new_units_join_the_parameter_groups_of_their_layers() -> None:
    model = flat_mlp()
    esper.add_slots(model, ["0>2"], VECTORS(0))
    groups = [{"params": model[i].parameters(), "lr": lr} for i, lr in ((0, 0.1), (2, 0.2))]
    optimizer = SGD([*groups, {"params": model[4].parameters()}], 0.3, momentum=0.9)
    OptimizerKeeper(model, optimizer, seed_lr_factor=0.5)
    host, x = slots(model), VECTORS(1)
    place = lead_to(host, "0>2", Stage.HOLDING, blueprint="widen_large")
    seed = place.seed
    assert seed is not None

    def rate_of(parameter: nn.Parameter) -> float:
        found = [
            g["lr"] for g in optimizer.param_groups if any(p is parameter for p in g["params"])
        ]
        assert len(found) == 1
        return found[0]

    assert [rate_of(p) for p in seed.parameters()] == pytest.approx([0.05, 0.05, 0.1])
    model(x).square().sum().backward()
    optimizer.step()
    kept = {p: optimizer.state[p]["momentum_buffer"] for p in model.parameters()}
    host.tick()
    host.fossilize("0>2")
    assert [rate_of(p) for p in seed.parameters()] == pytest.approx([0.1, 0.1, 0.2])
    while place.stage != Stage.DORMANT:
        host.tick()
    assert all(optimizer.state[p]["momentum_buffer"] is kept[p] for p in seed.parameters())
    assert [rate_of(p) for p in seed.parameters()] == pytest.approx([0.1, 0.1, 0.2])


def test_the_fast_path_of_torchs_encoder_is_used_only_without_new_units() -> None:
    model, host, x = make("encoder")
    slow = model(x).detach()
    fast = evaluate(model, x)
    assert not same_bits(slow, fast)  # otherwise this test shows nothing
    for stage in (Stage.GERMINATED, Stage.TRAINING):
        lead_to(host, "1.linear1>1.linear2", stage, blueprint="widen_large")
        randomize(host["1.linear1>1.linear2"].seed)
        assert same_bits(evaluate(model, x), fast)
        host.abandon_growing()
        while host["1.linear1>1.linear2"].stage != Stage.DORMANT:
            host.tick()
    place = lead_to(host, "1.linear1>1.linear2", Stage.HOLDING, blueprint="widen_large")
    randomize(place.seed)
    assert_close(evaluate(model, x), model(x).detach())
    assert not torch.allclose(evaluate(model, x), fast, atol=1e-3)
    merged = esper.export(model)
    assert merged[1].linear1.out_features == 12
    assert not any(m._forward_hooks for m in merged.modules())
    assert_close(evaluate(merged, x), evaluate(model, x))


def test_costs_are_counted() -> None:
    model, host, x = make("lenet")
    before = count_parameters(model)
    grow(host, "conv_1>conv_2", "widen_large")
    lead_to(host, "conv_2>full_1", Stage.BLENDING, blueprint="widen_large")
    found = esper.footprint(model, x)
    merged = esper.export(model)
    assert found.parameters == count_parameters(merged)
    assert found.forward_flops == esper.footprint(merged, x).forward_flops
    # conv_1 4 * 10, conv_2 6 * 4 * 9, then conv_2 6 * (8 * 9 + 1), full_1 10 * 6 * 9
    assert found.host_parameters == before + 40 + 216
    assert found.seed_parameters == {"conv_2>full_1": 438 + 540}


def test_half_precision_and_frozen_layers() -> None:
    model = build("lenet").double()
    model.conv_1.requires_grad_(False)
    x = CASES["lenet"].sample(0).double()
    esper.add_slots(model, ["conv_1>conv_2"], x)
    place = lead_to(slots(model), "conv_1>conv_2", Stage.HOLDING, blueprint="widen_large")
    randomize(place.seed)
    assert all(p.dtype == torch.float64 and p.requires_grad for p in place.seed_parameters())
    merged = esper.export(model)
    torch.testing.assert_close(merged(x), model(x))
    assert not merged.conv_1.weight.requires_grad
    assert isinstance(place, PairSlot)


def test_replaced_layers_keep_their_attributes() -> None:
    for name in ("vgg", "unet"):
        model, host, _ = make(name)
        plain = build(name)
        for slot in host:
            lead_to(host, slot, Stage.BLENDING, blueprint="widen_small")
        for slot, place in host.items():
            for layer in place.site.modules:
                own, wanted = model.get_submodule(layer), plain.get_submodule(layer)
                assert type(own) is not type(wanted), slot
                for key, value in vars(wanted).items():
                    if not key.startswith("_"):
                        assert getattr(own, key) == value
                assert own.weight is None or same_bits(own.weight, wanted.weight)


@pytest.mark.parametrize(
    ("name", "seed", "n_epochs"),
    [("flat", 0, 30), ("vgg", 0, 16), ("unet", 0, 12)],
)
def test_random_legal_walks_export_what_they_compute(name: str, seed: int, n_epochs: int) -> None:
    quick = GrowthConfig(
        min_training_epochs=1, min_holding_epochs=0, embargo_epochs=1, advances_alone=True
    )
    model, host, x = make(name, quick)
    rng, plain = random.Random(seed), evaluate(build(name), x)
    for epoch in range(n_epochs):
        host.apply(draw_legal(host, rng))
        for place in host.values():
            if place.stage == Stage.TRAINING:
                randomize(place.seed, epoch)
        evaluated, learned = evaluate(model, x), model(x)
        assert_close(learned.detach(), evaluated)
        assert_close(evaluate(esper.export(model), x), evaluated)
        learned.square().sum().backward()
        host.tick()
    assert sum(len(life.fossils) for _, life in host.lives.items()) > 1
    assert not torch.allclose(evaluate(model, x), plain)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_a_block_is_deepened_and_the_pair_inside_it_is_widened(order: tuple[int, ...]) -> None:
    pairs = ["blocks.0.up>blocks.0.down", "blocks.1.up>blocks.1.down"]
    model, x = ResidualMLP().eval(), VECTORS(1)
    esper.add_slots(model, ["blocks.0", *pairs], VECTORS(0))
    growth = [("blocks.0", "deepen"), (pairs[0], "widen_large"), (pairs[1], "widen_large")]
    host = slots(model)
    for index in order:
        slot, blueprint = growth[index]
        before = evaluate(model, x)
        place = lead_to(host, slot, Stage.HOLDING, blueprint=blueprint)
        assert_close(evaluate(model, x), before)
        randomize(place.seed, index)
        assert_close(evaluate(esper.export(model), x), evaluate(model, x))
        host.tick()
        host.fossilize(slot)
        while place.stage != Stage.DORMANT:
            host.tick()
    merged = esper.export(model)
    assert_close(evaluate(merged, x), evaluate(model, x))
    assert [block.up.out_features for block in merged.blocks] == [16, 8, 16]

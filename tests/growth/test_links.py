"""Seeds of neighbouring pairs that grow at the same time are linked when they are committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise, permutations
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.swa_utils import AveragedModel

import esper
from esper.config.growth import GrowthConfig
from esper.growing.averages import AverageKeeper
from esper.growth.blueprints.widening import PairSeed
from esper.growth.footprint import forward_flops
from esper.growth.host_slots import HostSlots, SlotSnapshot, slots
from esper.growth.modules import count_parameters
from esper.growth.optimizers import OptimizerKeeper
from esper.lifecycle.stages import Stage
from tests.growth.helpers import find_leftovers, lead_to, randomize, same_bits, same_state, state_of
from tests.growth.pair_models import CASES, build

LINKABLE = ["flat", "lenet", "vgg", "resnet", "unet"]
"""Models with neighbouring pairs: flat, through flatten, with norms, in a row, concatenated."""


def make(name: str, alpha: float = 1.0) -> tuple[nn.Module, HostSlots, Tensor]:
    """Return a model that holds a trained seed in the slot of each of its pairs, and an input."""
    model, case = build(name).double(), CASES[name]
    esper.add_slots(model, list(case.pairs), case.sample(0).double())
    host = slots(model)
    for number, slot in enumerate(host):
        place = lead_to(host, slot, Stage.HOLDING, blueprint="widen_large", alpha_target=alpha)
        randomize(place.seed, number)
    host.tick()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model, host, case.sample(1).double()


def fossilize(host: HostSlots, order: Sequence[str]) -> None:
    for slot in order:
        assert host.fossilize(slot).was_done


def train(model: nn.Module, optimizer: Optimizer, x: Tensor, n_steps: int = 3) -> None:
    generator = torch.Generator().manual_seed(3)
    for _ in range(n_steps):
        optimizer.zero_grad()
        y = model(x)
        target = torch.randn(y.shape, generator=generator, dtype=y.dtype)
        (y - target).square().mean().backward()
        optimizer.step()


def links_of(host: HostSlots) -> dict[str, dict[str, nn.Parameter]]:
    """Return the weights of the links of each committed seed."""
    seeds = {name: place.seed or place.absorbed[-1].seed for name, place in host.items()}
    return {
        name: dict(seed.links.named_parameters())
        for name, seed in seeds.items()
        if isinstance(seed, PairSeed) and len(seed.links)
    }


@pytest.mark.parametrize("order", [1, -1], ids=["forward", "backward"])
@pytest.mark.parametrize("name", LINKABLE)
def test_links_change_no_bit_and_train(name: str, order: int) -> None:
    model, host, x = make(name, alpha=0.5)
    before, plain = model(x), esper.export(model)
    fossilize(host, list(host)[::order])
    assert same_bits(model(x), before)
    found = links_of(host)
    assert found
    assert not any(weight.any() for links in found.values() for weight in links.values())
    assert count_parameters(model) == count_parameters(plain)
    assert forward_flops(model, x) == forward_flops(plain, x)
    model.train()
    train(model, SGD(model.parameters(), 0.01), x)
    model.eval()
    assert all(weight.any() for links in found.values() for weight in links.values())
    merged = esper.export(model)
    torch.testing.assert_close(merged(x), model(x), rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_the_block_between_new_units_is_not_zero_in_the_exported_layers(
    order: Sequence[int],
) -> None:
    torch.manual_seed(0)
    widths = list(pairwise([5, 6, 6, 6, 3]))
    layers = [part for n_in, n_out in widths for part in (nn.Linear(n_in, n_out), nn.Tanh())]
    model = nn.Sequential(*layers[:-1]).double()
    x = torch.randn(8, 5, dtype=torch.float64)
    esper.add_slots(model, ["0>2", "2>4", "4>6"], x)
    host = slots(model)
    for slot in host:
        lead_to(host, slot, Stage.HOLDING, blueprint="widen_large")
    host.tick()
    optimizer = Adam(model.parameters(), 1e-3)
    OptimizerKeeper(model, optimizer)
    fossilize(host, [list(host)[index] for index in order])
    merged = esper.export(model)
    for layer in (2, 4):
        assert merged[layer].weight.shape == (12, 12)
        assert not merged[layer].weight[6:, 6:].any()
    train(model, optimizer, x)
    merged = esper.export(model)
    for layer in (2, 4):
        assert merged[layer].weight[6:, 6:].all()
    torch.testing.assert_close(merged(x), model(x), rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("name", LINKABLE)
def test_linked_units_train_like_those_of_a_wide_network(name: str) -> None:
    model, host, x = make(name)
    fossilize(host, list(host))
    wide = esper.export(model)
    for each in (model, wide):
        each.train()
        train(each, SGD(each.parameters(), 0.01), x, n_steps=5)
    merged = esper.export(model)
    for key, value in wide.state_dict().items():
        if "num_batches" not in key:
            torch.testing.assert_close(merged.state_dict()[key], value)


def test_slots_that_grow_again_are_linked_to_all_that_is_committed() -> None:
    model, host, x = make("flat")
    for number in range(3):
        fossilize(host, list(host)[:: (-1) ** number])
        for links in links_of(host).values():
            for weight in links.values():
                nn.init.normal_(weight)
        while any(place.stage != Stage.DORMANT for place in host.values()):
            host.tick()
        merged = esper.export(model)
        torch.testing.assert_close(merged(x), model(x), rtol=0.0, atol=1e-12)
        assert count_parameters(merged) == count_parameters(model)
        assert merged[2].weight.all()
        for slot in host:
            place = lead_to(host, slot, Stage.HOLDING, blueprint="widen_small")
            randomize(place.seed, number)
        host.tick()


@pytest.mark.parametrize("optimizer", [Adam, lambda p, lr: SGD(p, lr, momentum=0.9)])
def test_moments_and_groups_of_other_parameters_stay(
    optimizer: Callable[[list[nn.Parameter], float], Optimizer],
) -> None:
    model, host, x = make("flat")
    used = optimizer([*model.parameters()], 1e-2)
    OptimizerKeeper(model, used, seed_lr_factor=0.5)
    train(model, used, x)
    state = {p: dict(used.state[p]) for p in model.parameters()}
    values = {p: p.detach().clone() for p in model.parameters()}
    fossilize(host, ["0>2", "2>4"])
    assert all(used.state[p] == held for p, held in state.items())
    assert all(torch.equal(p, value) for p, value in values.items())
    (weight,) = links_of(host)["2>4"].values()
    assert weight not in used.state
    assert [any(p is weight for p in g["params"]) for g in used.param_groups] == [True, False]
    assert not find_leftovers(model, used)
    train(model, used, x, n_steps=1)
    assert weight.any()


def test_a_rollback_after_the_commitment_keeps_it_with_the_values_of_before() -> None:
    model, host, x = make("flat")
    optimizer = Adam(model.parameters(), 1e-2)
    OptimizerKeeper(model, optimizer)
    governor = esper.Governor(model, optimizer)
    fossilize(host, ["0>2"])
    governor.step(model(x).square().mean())
    good = state_of(model)
    governor.end_epoch(1.0)
    governor.step(model(x).square().mean())  # an update that no loss has proved good
    governor.keep()
    fossilize(host, ["2>4"])
    wanted = state_of(model)
    governor.step(model(x).square().mean() * float("nan"))
    assert host["2>4"].life.links
    found = state_of(model)
    assert found.keys() == wanted.keys() == good.keys() | {"2.seed.links.rows.weight"}
    assert same_state({key: found[key] for key in good}, good)
    assert not find_leftovers(model, optimizer)
    governor.step(model(x).square().mean())
    assert host["2>4"].seed.links["rows"].weight.any()


def test_an_earlier_state_of_a_slot_has_no_links() -> None:
    model, host, x = make("flat")
    fossilize(host, ["0>2"])
    state, before, modules = SlotSnapshot.of(host["2>4"]), model(x), list(model.modules())
    fossilize(host, ["2>4"])
    host.restore_slot("2>4", state)
    assert list(model.modules()) == modules
    assert host["2>4"].life.links == ()
    assert same_bits(model(x), before)
    assert count_parameters(model) < count_parameters(esper.export(model))


@pytest.mark.parametrize("is_absorbed", [False, True])
@pytest.mark.parametrize("name", LINKABLE)
def test_saved_models_have_their_links(name: str, is_absorbed: bool, tmp_path: Path) -> None:
    model, host, x = make(name)
    fossilize(host, list(host)[::-1])
    for links in links_of(host).values():
        for weight in links.values():
            nn.init.normal_(weight, std=0.1)
    while is_absorbed and any(place.stage != Stage.DORMANT for place in host.values()):
        host.tick()
    esper.save(model, tmp_path)
    loaded = esper.load(tmp_path, lambda: build(name).double())
    assert same_bits(loaded(x), model(x))
    assert list(loaded.state_dict()) == list(model.state_dict())
    torch.testing.assert_close(esper.export(loaded)(x), model(x), rtol=0.0, atol=1e-12)


def test_averages_get_the_links_and_stay_averages() -> None:
    model, host, x = make("flat")
    average = AveragedModel(model)
    keeper = AverageKeeper(average, model)
    keeper.follow(host)
    optimizer = SGD(model.parameters(), 0.05)
    OptimizerKeeper(model, optimizer)
    for _ in range(2):
        average.update_parameters(model)
        train(model, optimizer, x, n_steps=1)
    before = average.module(x)
    fossilize(host, list(host))
    assert same_bits(average.module(x), before)
    train(model, optimizer, x)
    average.update_parameters(model)
    assert average.module.state_dict().keys() == model.state_dict().keys()
    assert links_of(slots(average.module))["2>4"]["rows.weight"].any()


def test_committing_everything_at_the_end_counts_what_is_exported() -> None:
    model, host, x = make("unet", alpha=0.7)
    before = model(x)
    host.end_growth(keep=True)
    assert same_bits(model(x), before)
    assert count_parameters(model) == count_parameters(esper.export(model, committed_only=True))


def test_seeds_without_growing_neighbours_are_not_linked() -> None:
    model = build("flat")
    config = GrowthConfig(embargo_epochs=1)
    esper.add_slots(model, ["0>2", "2>4"], CASES["flat"].sample(0), growth_config=config)
    host = slots(model)
    for slot in ("0>2", "2>4", "0>2"):
        place = lead_to(host, slot, Stage.HOLDING, blueprint="widen_large")
        host.tick()
        modules = list(model.modules())
        fossilize(host, [slot])
        assert place.life.links == ()
        assert list(model.modules()) == modules
        while place.stage != Stage.DORMANT:
            host.tick()

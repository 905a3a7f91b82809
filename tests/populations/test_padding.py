"""Smaller hosts and seeds are computed exactly when padded to the size of larger ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.config.growth import HostConfig, MLPHostConfig, PopulationConfig
from esper.errors import ConfigError, UnsupportedHostError
from esper.growth.blueprints import SeedForm
from esper.growth.blueprints import registry as blueprint
from esper.growth.footprint import forward_flops, training_step_flops
from esper.growth.host_slots import slots
from esper.growth.hosts import make_host, slot_names
from esper.growth.modules import count_parameters
from esper.growth.placement import add_slots, attach_slots
from esper.growth.sites import TensorKind
from esper.populations import (
    HostSpec,
    Population,
    SequentialPopulation,
    StackedPopulation,
    make_population,
)
from esper.populations.host_models import CostTable
from esper.populations.rows import Row, RowStore
from tests.populations.test_forms_agree import (
    assert_same_state,
    draw_action,
    life_script,
    run_together,
)
from tests.populations.worlds import (
    CONFIGS,
    MLP,
    Builder,
    apply_all,
    make_data,
    make_specs,
    to_double,
)

FORMS = [SequentialPopulation, StackedPopulation]
SIZES = (40, 40, 24, 7)
HIDDEN = (1, 4, 2, 3)


class SmallBuilder:
    """Builds hosts with fewer hidden units than a design, in one dtype."""

    def __init__(self, design: HostConfig, hidden: int, dtype: torch.dtype) -> None:
        self.design, self.hidden, self.dtype = design, hidden, dtype

    def __call__(self, seed: int) -> nn.Module:
        config = replace(self.design, hidden=self.hidden)
        return make_host(config, seed=seed, design=self.design).to(self.dtype)


def mixed_specs(config: HostConfig, dtype: torch.dtype = torch.float64) -> list[HostSpec]:
    """Return hosts of which all but one have another number of hidden units than the design."""
    specs = make_specs(config, SIZES)
    specs = to_double(specs) if dtype == torch.float64 else specs
    return [
        replace(
            spec, build=None if hidden == config.hidden else SmallBuilder(config, hidden, dtype)
        )
        for spec, hidden in zip(specs, HIDDEN, strict=True)
    ]


def mixed_pair(
    design: str, config: PopulationConfig
) -> tuple[SequentialPopulation, StackedPopulation]:
    host, build = CONFIGS[design], Builder(CONFIGS[design], torch.float64)
    specs = mixed_specs(host)
    return SequentialPopulation(build, specs, config), StackedPopulation(build, specs, config)


def padding_of(store: RowStore, host: int) -> list[Tensor]:
    """Return the padding of a host's row."""
    row = store.get(host)
    inside = store.flatten({n: torch.ones_like(row.tensors[n]) for n in store.shapes}) != 0
    return [data[store.hosts.index(host)][~inside] for data in store.data]


def assert_padding_is_zero(population: StackedPopulation) -> int:
    """Check that all padding is exactly zero and return its size."""
    count = 0
    for store in population.state.stores():
        for host in store.hosts:
            for padding in padding_of(store, host):
                assert not padding.any()
                count += padding.numel()
    return count


BLUEPRINTS = {
    "mlp": ("widen_small", "mlp_small"),
    "cnn": ("widen_small", "conv_small"),
    "gpt": ("widen_small", "lora_small"),
}


@pytest.mark.parametrize(
    ("design", "optimizer"),
    [
        ("mlp", "adamw"),
        pytest.param("mlp", "sgd", marks=pytest.mark.slow),
        pytest.param("cnn", "adamw", marks=pytest.mark.slow),
        pytest.param("gpt", "adamw", marks=pytest.mark.slow),
    ],
)
def test_both_forms_agree_for_hosts_of_several_widths(design: str, optimizer: str) -> None:
    config = PopulationConfig(
        optimizer=optimizer,  # type: ignore[arg-type]
        batch_size=8,
        weight_decay=0.01,
        seed_lr_factor=0.5,
    )
    pair = mixed_pair(design, config)
    script = life_script(slot_names(CONFIGS[design]), BLUEPRINTS[design])
    run_together(pair, script, tolerance=1e-9)
    assert len(set(pair[1].train_epoch().flops / pair[1].state.watch.count)) > 1
    assert assert_padding_is_zero(pair[1]) > 0
    for host, hidden in enumerate(HIDDEN):
        sizes = [p.shape for n, p in pair[1].model(host).named_parameters() if n.endswith("weight")]
        assert any(hidden in size for size in sizes)


@pytest.mark.parametrize(
    "design", ["mlp", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cnn", "gpt"))]
)
def test_both_forms_agree_on_random_walks_with_restarts_to_other_widths(design: str) -> None:
    rng = np.random.default_rng(3)
    config = PopulationConfig(batch_size=8, learning_rate=0.01, weight_decay=0.01)
    pair, host_config = mixed_pair(design, config), CONFIGS[design]
    n_done = 0
    for epoch in range(14):
        for host in range(4):
            for _ in range(4):
                action = draw_action(pair[0], rng)
                if pair[0].lives(host).is_legal(action):
                    outcomes = [population.apply(host, action) for population in pair]
                    assert outcomes[0] == outcomes[1]
                    n_done += 1
        if epoch % 3 == 2:
            hidden = int(rng.integers(1, 5))
            (spec,) = to_double([HostSpec(seed=epoch, data=make_data(host_config, 17, epoch))])
            spec = replace(spec, build=SmallBuilder(host_config, hidden, torch.float64))
            for population in pair:
                population.restart(epoch % 4, spec)
        reports = [population.train_epoch() for population in pair]
        np.testing.assert_allclose(reports[0].losses, reports[1].losses, atol=1e-7)
        np.testing.assert_array_equal(reports[0].flops, reports[1].flops)
        assert_same_state(*pair, tolerance=1e-6)
        assert_padding_is_zero(pair[1])
    assert n_done > 30


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (SequentialPopulation, StackedPopulation),
        pytest.param(StackedPopulation, SequentialPopulation, marks=pytest.mark.slow),
        pytest.param(SequentialPopulation, SequentialPopulation, marks=pytest.mark.slow),
        pytest.param(StackedPopulation, StackedPopulation, marks=pytest.mark.slow),
    ],
)
def test_a_state_of_small_hosts_continues_in_either_form(
    source: type[Population], target: type[Population]
) -> None:
    config, specs = PopulationConfig(batch_size=8), mixed_specs(CONFIGS["cnn"])
    build = Builder(CONFIGS["cnn"], torch.float64)
    script = life_script(slot_names(CONFIGS["cnn"]), BLUEPRINTS["cnn"])
    first = source(build, specs, config)
    for actions in script[:4]:
        apply_all(first, actions)
        first.train_epoch()
    second = target(build, specs, config)
    second.load_state_dict(first.state_dict())
    for actions in script[4:]:
        assert apply_all(first, actions) == apply_all(second, actions)
        for population in (first, second):
            population.train_epoch()
    assert_same_state(first, second, tolerance=0.0 if source is target else 1e-8)


@pytest.mark.parametrize("form", FORMS)
def test_a_small_host_has_the_costs_of_its_own_size(form: type[Population]) -> None:
    specs = mixed_specs(MLP, torch.float32)
    population = form(Builder(MLP), specs, PopulationConfig(batch_size=8))
    report, judged = population.train_epoch(), population.evaluate()
    for host, spec in enumerate(specs):
        model, sample = (spec.build or Builder(MLP))(0), spec.data.train_inputs[:2]
        table = population.costs_of(host)
        assert table.host_parameters == count_parameters(model)
        steps = len(spec.data.train_inputs) // min(8, SIZES[host]) * min(8, SIZES[host])
        assert report.flops[host] == steps * training_step_flops(model, sample) / 2
        assert judged.flops[host] == 12 * forward_flops(model, sample) / 2
    assert population.costs_of(1) is population.costs
    assert population.costs.host_training > population.costs_of(0).host_training


def test_the_parameters_of_a_seed_include_its_gate() -> None:
    costs = StackedPopulation(Builder(MLP), make_specs(MLP, (8, 8))).costs
    # Half of four hidden units on a stream of five: 2 * 5 + 2 + 5 * 2; a gate reads five.
    assert costs.seed_work("blocks.0", "widen_medium", False).parameters == 22
    assert costs.seed_work("blocks.0", "widen_medium", True).parameters == 28
    assert costs.seed_work("blocks.0", "noop", False).parameters == 0


def test_a_rolled_back_host_keeps_its_own_size() -> None:
    specs = mixed_specs(MLP, torch.float32)
    population = StackedPopulation(Builder(MLP), specs, PopulationConfig(batch_size=8))
    population.train_epoch()
    good = population.get_state(0).tensors
    specs[0].data.train_inputs.data[:] = torch.nan
    assert population.train_epoch().interventions.keys() == {0}
    for name, tensor in population.get_state(0).tensors.items():
        assert torch.equal(tensor, good[name])
    assert_padding_is_zero(population)


class _Block(nn.Module):
    def __init__(self, hidden: int, middle: Callable[[int], nn.Module], width: int) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(width, hidden), middle(hidden)
        self.second = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(self.middle(self.first(x)))


class _Model(nn.Module):
    def __init__(self, hidden: int, middle: Callable[[int], nn.Module], width: int = 5) -> None:
        super().__init__()
        self.stem = nn.Linear(MLP.n_features, width)
        self.block = _Block(hidden, middle, width)
        self.head = nn.Linear(width, MLP.n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.stem(x)))


def build_model(
    middle: Callable[[int], nn.Module], hidden: int, *, design: int = 4, width: int = 5
) -> Callable[[int], nn.Module]:
    """Return a builder of hosts with the slots of a design with more hidden units."""

    def build(seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            sample = torch.zeros(2, MLP.n_features)
            large = add_slots(_Model(design, middle), ["block"], sample)
            small = _Model(hidden, middle, width)
        attach_slots(small, slots(large).sites)
        return small

    return build


def rejection_of(middle: Callable[[int], nn.Module], hidden: int = 2, **sizes: int) -> str:
    specs = make_specs(MLP, (8, 8))
    specs[1] = replace(specs[1], build=build_model(middle, hidden, **sizes))
    with pytest.raises(UnsupportedHostError, match="host 1 does not fit") as e:
        StackedPopulation(build_model(middle, 4), specs)
    auto = make_population(build_model(middle, 4), specs)
    assert isinstance(auto, SequentialPopulation)
    auto.train_epoch()
    return str(e.value)


def test_designs_for_which_padding_is_not_exact_are_rejected_by_name() -> None:
    assert "padding would get a gradient" in rejection_of(lambda n: nn.Sigmoid())
    assert "output differs by" in rejection_of(nn.LayerNorm)
    larger = rejection_of(lambda n: nn.ReLU(), hidden=6)
    assert "block.first.weight has shape [6, 5]" in larger
    narrow = rejection_of(lambda n: nn.ReLU(), width=3)
    assert "its slot 'block' sees tensors of other shapes" in narrow


def test_a_small_host_must_use_the_slots_of_the_design() -> None:
    specs = make_specs(MLP, (8, 8))
    own = replace(specs[1], build=Builder(replace(MLP, hidden=2)))
    with pytest.raises(UnsupportedHostError, match=r"host 1 .*slots .*make_host"):
        StackedPopulation(Builder(MLP), [specs[0], own])
    population = StackedPopulation(Builder(MLP), specs)
    before = population.get_state(1).tensors
    with pytest.raises(UnsupportedHostError, match="host 1 "):
        population.restart(1, own)
    assert population.specs[1] is specs[1]
    for name, tensor in population.get_state(1).tensors.items():
        assert torch.equal(tensor, before[name])
    other = replace(MLP, n_blocks=1)
    for form in FORMS:
        with pytest.raises((ConfigError, UnsupportedHostError), match=r"slots blocks\.0"):
            form(Builder(MLP), [specs[0], replace(specs[1], build=Builder(other))])


def test_a_different_activation_in_a_host_is_detected() -> None:
    specs = make_specs(MLP, (8, 8))
    specs[1] = replace(specs[1], build=build_model(lambda n: nn.LeakyReLU(0.3), 4))
    with pytest.raises(UnsupportedHostError, match="output"):
        StackedPopulation(build_model(lambda n: nn.LeakyReLU(0.1), 4), specs)


def test_rows_of_one_store_can_have_different_sizes() -> None:
    torch.manual_seed(0)
    design = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    small = [nn.Sequential(nn.Linear(3, n), nn.BatchNorm1d(n)) for n in (2, 4, 2)]
    store = RowStore(design, ("exp_avg",))
    rows = {host: Row.of_module(module) for host, module in enumerate(small)}
    for row in rows.values():
        row.moments = {"exp_avg": {"0.weight": torch.randn(row.tensors["0.weight"].shape)}}
        row.tensors["1.running_var"].uniform_(1.0, 2.0)
    store.put(rows)
    store.reorder([2, 0, 1])
    assert store.own_shapes[0] is store.own_shapes[1]
    for host, row in rows.items():
        found = store.get(host)
        for name, tensor in row.tensors.items():
            assert torch.equal(found.tensors[name], tensor)
        expected = row.moments["exp_avg"]["0.weight"]
        assert torch.equal(found.moments["exp_avg"]["0.weight"], expected)
        assert found.moments["exp_avg"]["0.bias"].shape == row.tensors["0.bias"].shape
    flat = torch.cat([small[0][0].weight.flatten(), torch.zeros(6), small[0][0].bias])
    assert torch.equal(store.values[1, : len(flat)], flat)


def _two_layers(width: int, hidden: int, *, is_frozen: bool = False) -> nn.Module:
    first, last = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)
    nn.init.zeros_(last.weight)
    first.weight.requires_grad_(not is_frozen)
    return nn.Sequential(first, nn.ReLU(), last)


def test_cost_tables_share_seed_counts_only_for_equal_sites() -> None:
    sample = torch.zeros(2, MLP.n_features)
    own, wide = (CostTable(make_host(replace(MLP, width=width)), sample) for width in (5, 9))
    wide.seed_work("blocks.0", "mlp_small", False)
    other = CostTable(make_host(MLP), sample, like=wide)
    for gated in (False, True):
        given = other.seed_work("blocks.0", "mlp_small", gated)
        assert given == own.seed_work("blocks.0", "mlp_small", gated)
        assert given != wide.seed_work("blocks.0", "mlp_small", gated)
    assert CostTable(make_host(MLP), sample, like=own)._count is own._count


def test_a_frozen_seed_parameter_costs_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blueprint, "_REGISTRY", dict(blueprint._REGISTRY))
    for name, is_frozen in (("free", False), ("frozen", True)):
        blueprint.register_blueprint(
            blueprint.Blueprint(
                name=name,
                kinds=frozenset({TensorKind.VECTOR}),
                form=SeedForm.SERIAL,
                build=lambda site, is_frozen=is_frozen: _two_layers(
                    site.width, 3, is_frozen=is_frozen
                ),
                summary="two layers",
            )
        )
    costs = CostTable(make_host(MLP), torch.zeros(2, MLP.n_features))
    free, frozen = (costs.seed_work("blocks.0", name, False) for name in ("free", "frozen"))
    # Each layer multiplies 5 by 3 numbers: forward, and for each gradient, 30 FLOPs of a sample.
    assert free.forward == frozen.forward == 60
    assert (free.isolated, free.blended) == (60 + 90, 60 + 120)
    assert (frozen.isolated, frozen.blended) == (60 + 30, 60 + 90)


def test_small_hosts_may_differ_from_their_design_only_in_hidden() -> None:
    with pytest.raises(ConfigError, match="hidden"):
        make_host(MLPHostConfig(width=4), design=MLPHostConfig(width=5))

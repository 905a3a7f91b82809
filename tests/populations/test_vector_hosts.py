"""The compiled kernel gives the same results as tensor operations."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from esper.config.growth import (
    CNNHostConfig,
    GrowthConfig,
    HostConfig,
    MLPHostConfig,
    PopulationConfig,
)
from esper.growth.hosts import HostMaker
from esper.growth.placement import add_slots
from esper.lifecycle.factored_actions import STYLES, BlendStyle, GrowthAction, Op
from esper.lifecycle.stages import Stage
from esper.populations import (
    HostData,
    HostSpec,
    Population,
    SequentialPopulation,
    StackedPopulation,
    vector_hosts,
    vector_programs,
)
from esper.populations.rows import shapes_of
from esper.populations.vector_programs import NoProgramError, RowLayout, write_program
from tests.populations.test_forms_agree import assert_same_state
from tests.populations.worlds import CNN, MLP, Builder, make_specs, to_double

needs_kernel = pytest.mark.skipif(
    not vector_hosts.is_kernel_available(), reason="the kernel was not built"
)
BLUEPRINTS = ("widen_small", "widen_large", "mlp_small", "mlp_large", "low_rank", "norm", "noop")
MAP_BLUEPRINTS = ("widen_large", "conv_heavy", "attention", "depthwise", "norm", "deepen")
STAGES = {Stage.TRAINING: 1, Stage.BLENDING: 2, Stage.HOLDING: 3, Stage.FOSSILIZED: 3}
FREE = GrowthConfig(min_training_epochs=0, min_holding_epochs=0)


@contextmanager
def without_kernel() -> Generator[None]:
    """Make populations created inside the context use tensor operations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vector_hosts, "_kernel", None)
        yield


def make_pair(
    sizes: tuple[int, ...],
    config: PopulationConfig,
    dtype: torch.dtype = torch.float64,
    design: HostConfig = MLP,
) -> tuple[StackedPopulation, StackedPopulation]:
    """Return the same hosts with the kernel and with tensor operations."""
    specs = make_specs(design, sizes)
    specs = to_double(specs) if dtype == torch.float64 else specs
    compiled = StackedPopulation(Builder(design, dtype), specs, config, growth_config=FREE)
    with without_kernel():
        plain = StackedPopulation(Builder(design, dtype), specs, config, growth_config=FREE)
    assert all(compiled.vector_hosts.has_program(host) for host in range(len(sizes)))
    assert not plain.vector_hosts.has_program(0)
    return compiled, plain


def grow(population: Population, host: int, slot: str, blueprint: str, style: BlendStyle) -> None:
    """Bring a seed to the stage that the host's index selects."""
    stage = list(STAGES)[host % len(STAGES)]
    target = (0.5, 0.7, 1.0)[host % 3]
    actions = [
        GrowthAction(
            op=Op.GERMINATE,
            slot=slot,
            blueprint=blueprint,
            style=style,
            tempo_epochs=0,
            alpha_target=target,
        ),
        *[GrowthAction(op=Op.ADVANCE, slot=slot)] * STAGES[stage],
    ]
    if stage == Stage.FOSSILIZED:
        actions.append(GrowthAction(op=Op.FOSSILIZE, slot=slot))
    for action in actions:
        assert population.apply(host, action).was_done


def assert_same_numbers(
    first: StackedPopulation, second: StackedPopulation, tolerance: float
) -> None:
    reports = [population.train_epoch() for population in (first, second)]
    for name in ("losses", "gradient_norms", "seed_gradient_norms", "gradient_noise"):
        numbers = [getattr(report, name) for report in reports]
        np.testing.assert_allclose(*numbers, atol=tolerance, rtol=0, err_msg=name)
    np.testing.assert_array_equal(reports[0].flops, reports[1].flops)
    asked = [{"without_slot": slot} for slot in first.slot_config.slot_ids]
    for options in ({}, {"committed_only": True}, {"split": "train"}, *asked):
        judged = [population.evaluate(**options) for population in (first, second)]  # type: ignore[arg-type]
        np.testing.assert_allclose(judged[0].losses, judged[1].losses, atol=tolerance, rtol=0)
        np.testing.assert_array_equal(judged[0].metrics, judged[1].metrics)
        np.testing.assert_array_equal(judged[0].flops, judged[1].flops)
    assert_same_state(first, second, tolerance)


@needs_kernel
@pytest.mark.parametrize(
    ("design", "blueprint"),
    [
        *(pytest.param(MLP, name, id=f"mlp-{name}") for name in BLUEPRINTS),
        *(pytest.param(CNN, name, id=f"cnn-{name}") for name in MAP_BLUEPRINTS),
        *(
            pytest.param(CNN, name, id=f"cnn-{name}", marks=pytest.mark.slow)
            for name in ("widen_small", "conv_light", "bottleneck")
        ),
    ],
)
def test_every_seed_style_and_stage_matches_tensor_operations(
    design: HostConfig, blueprint: str
) -> None:
    """Hosts 0 to 3 are at the four stages; each blend style is at each stage once."""
    config = PopulationConfig(batch_size=9, weight_decay=0.01, seed_lr_factor=0.5)
    pair = make_pair((19, 20, 9, 27) * 4, config, design=design)
    for population, host in product(pair, range(16)):
        grow(population, host, "blocks.0", blueprint, STYLES[host // 4])
    assert all(pair[0].vector_hosts.has_program(host) for host in range(16))
    for _ in range(2):
        assert_same_numbers(*pair, tolerance=1e-10)


@needs_kernel
@pytest.mark.parametrize(
    ("optimizer", "momentum"), [("sgd", 0.0), ("sgd", 0.9), ("adam", 0.9), ("adamw", 0.9)]
)
def test_every_optimizer_matches_tensor_operations(optimizer: str, momentum: float) -> None:
    config = PopulationConfig(
        optimizer=optimizer,  # type: ignore[arg-type]
        momentum=momentum,
        weight_decay=0.02,
        batch_size=8,
    )
    pair = make_pair((24, 16), config)
    for population in pair:
        grow(population, 0, "blocks.1", "mlp_small", BlendStyle.ADD_LINEAR)
    for _ in range(4):
        assert_same_numbers(*pair, tolerance=1e-10)


@needs_kernel
@pytest.mark.parametrize("design", [MLP, CNN], ids=["mlp", "cnn"])
@pytest.mark.parametrize(
    "batch_size", [2, 33, 300, *(pytest.param(n, marks=pytest.mark.slow) for n in (5, 8, 16))]
)
def test_every_batch_size_matches_tensor_operations(batch_size: int, design: HostConfig) -> None:
    specs = to_double(make_specs(design, (310, 40)))
    config = PopulationConfig(batch_size=batch_size)
    compiled = StackedPopulation(Builder(design, torch.float64), specs, config)
    with without_kernel():
        plain = StackedPopulation(Builder(design, torch.float64), specs, config)
    assert compiled.vector_hosts.has_program(1)
    assert compiled.vector_hosts.has_program(0) == (batch_size < 300)
    assert_same_numbers(compiled, plain, tolerance=1e-10)


@needs_kernel
def test_smaller_hosts_match_tensor_operations() -> None:
    design = MLPHostConfig(n_features=6, n_classes=3, width=5, hidden=9, has_skips=False)
    makers = [HostMaker(replace(design, hidden=n), design=design) for n in (1, 4, 9)]
    data = [spec.data for spec in make_specs(MLP, (30, 30, 30))]
    specs = [
        HostSpec(seed=n, data=own, build=build)
        for n, (own, build) in enumerate(zip(data, makers, strict=True))
    ]
    config = PopulationConfig(batch_size=8, learning_rate=0.01)
    compiled = StackedPopulation(HostMaker(design), specs, config, growth_config=FREE)
    with without_kernel():
        plain = StackedPopulation(HostMaker(design), specs, config, growth_config=FREE)
    for population, host in product((compiled, plain), range(3)):
        grow(population, host, "blocks.0", "widen_small", BlendStyle.ADD_LINEAR)
    assert compiled.vector_hosts.has_program(0)
    for _ in range(3):
        assert_same_numbers(compiled, plain, tolerance=2e-5)


@needs_kernel
@pytest.mark.parametrize("has_skips", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
def test_norms_and_activations_match_tensor_operations(activation: str, has_skips: bool) -> None:
    design = replace(MLP, activation=activation, has_norm=True, has_skips=has_skips)
    config = PopulationConfig(batch_size=8, learning_rate=0.01)
    compiled, plain = make_pair((30, 20, 25), config, design=design)
    slot = compiled.slot_config.slot_ids[1]
    for population, host in product((compiled, plain), range(3)):
        grow(population, host, slot, "widen_large", BlendStyle.ADD_LINEAR)
    assert all(compiled.vector_hosts.has_program(host) for host in range(3))
    for _ in range(3):
        assert_same_numbers(compiled, plain, tolerance=1e-10)


@needs_kernel
def test_smaller_convolutions_match_tensor_operations() -> None:
    design = CNNHostConfig(image_size=5, n_channels=2, n_classes=3, width=5, hidden=9)
    makers = [HostMaker(replace(design, hidden=n), design=design) for n in (1, 4, 9)]
    specs = [
        replace(spec, build=build)
        for spec, build in zip(make_specs(design, (30, 30, 30)), makers, strict=True)
    ]
    config = PopulationConfig(batch_size=8, learning_rate=0.01)
    compiled = StackedPopulation(HostMaker(design), specs, config, growth_config=FREE)
    with without_kernel():
        plain = StackedPopulation(HostMaker(design), specs, config, growth_config=FREE)
    for population, host in product((compiled, plain), range(3)):
        grow(population, host, "blocks.0", "widen_small", BlendStyle.ADD_LINEAR)
    assert all(compiled.vector_hosts.has_program(host) for host in range(3))
    for _ in range(3):
        assert_same_numbers(compiled, plain, tolerance=1e-4)


@needs_kernel
def test_every_instruction_set_matches_tensor_operations_on_feature_maps() -> None:
    kernel = vector_hosts._kernel
    assert kernel is not None
    names = kernel.variants()
    try:
        for index in range(len(names)):
            kernel.choose(index)
            for dtype, tolerance in ((torch.float32, 2e-4), (torch.float64, 1e-10)):
                pair = make_pair((20, 9), PopulationConfig(batch_size=9), dtype, CNN)
                for population, host in product(pair, range(2)):
                    blueprint = ("depthwise", "widen_large")[host]
                    grow(population, host, "blocks.0", blueprint, BlendStyle.MULTIPLY_LINEAR)
                assert_same_numbers(*pair, tolerance=tolerance)
    finally:
        kernel.choose(len(names) - 1)


@needs_kernel
def test_every_instruction_set_matches_tensor_operations() -> None:
    kernel = vector_hosts._kernel
    assert kernel is not None
    names = kernel.variants()
    try:
        for index in range(len(names)):
            kernel.choose(index)
            for dtype, tolerance in ((torch.float32, 2e-5), (torch.float64, 1e-10)):
                pair = make_pair((31, 20, 9, 40), PopulationConfig(batch_size=9), dtype)
                for population, host in product(pair, range(4)):
                    blueprint = ("mlp_large", "widen_large", "norm", "low_rank")[host]
                    grow(population, host, "blocks.0", blueprint, STYLES[host])
                assert_same_numbers(*pair, tolerance=tolerance)
    finally:
        kernel.choose(len(names) - 1)


@needs_kernel
def test_two_threads_give_the_same_result_as_one() -> None:
    specs = make_specs(MLP, (40, 33, 21, 40, 16))
    n_threads = torch.get_num_threads()
    states = []
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            population = StackedPopulation(Builder(MLP), specs, PopulationConfig(batch_size=8))
            for _ in range(3):
                population.train_epoch()
            states.append(population.state_dict()["tensors"])
    finally:
        torch.set_num_threads(n_threads)
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name


@needs_kernel
def test_hosts_with_and_without_a_program_can_be_mixed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = make_pair((31, 20, 9, 40), PopulationConfig(batch_size=9))
    monkeypatch.delitem(vector_programs._LAYERS, nn.GELU)
    for population, host in product(pair, range(4)):
        blueprint = "mlp_small" if host % 2 else "widen_small"
        grow(population, host, "blocks.0", blueprint, BlendStyle.LEARNED_GATE)
    assert [pair[0].vector_hosts.has_program(host) for host in range(4)] == [True, False] * 2
    for _ in range(3):
        assert_same_numbers(*pair, tolerance=1e-10)


@needs_kernel
def test_a_failing_host_is_rolled_back_without_affecting_the_others() -> None:
    pair = make_pair((32, 32, 32), PopulationConfig(batch_size=8))
    for population in pair:
        # The two forms share their data; neither has read them yet.
        population.specs[1].data.train_inputs[3] = torch.inf
        grow(population, 1, "blocks.0", "mlp_small", BlendStyle.ADD_LINEAR)
    reports = [population.train_epoch() for population in pair]
    assert list(reports[0].interventions) == [1]
    assert reports[0].interventions[1].pruned == ("blocks.0",)
    assert reports[0].interventions == reports[1].interventions
    np.testing.assert_array_equal(reports[0].flops, reports[1].flops)
    assert_same_state(*pair, tolerance=1e-10)


@needs_kernel
def test_a_host_with_nan_outputs_is_evaluated_as_predicting_the_first_class() -> None:
    pair = make_pair((32, 32), PopulationConfig(batch_size=8))
    for population in pair:
        population.state.hosts.values[:] = torch.nan
    judged = [population.evaluate() for population in pair]
    assert np.isnan(judged[0].losses).all()
    np.testing.assert_array_equal(judged[0].metrics, judged[1].metrics)


def own_model(activation: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 6))
    model = nn.Sequential(block, activation, nn.LayerNorm(6), nn.Linear(6, 3))
    return add_slots(model, ["0"], torch.randn(2, 6))


@needs_kernel
@pytest.mark.parametrize(
    ("activation", "has_program"),
    [(nn.ReLU, True), (nn.GELU, True), (nn.Identity, True), (nn.Tanh, True), (nn.SiLU, False)],
)
def test_a_custom_model_matches_tensor_operations(
    activation: Callable[[], nn.Module], has_program: bool
) -> None:
    specs = make_specs(MLP, (24, 40))

    def build(seed: int) -> nn.Module:
        return own_model(activation())

    config = PopulationConfig(batch_size=8)
    stacked = StackedPopulation(build, specs, config)
    sequential = SequentialPopulation(build, specs, config)
    assert stacked.vector_hosts.has_program(0) == has_program
    for _ in range(2):
        losses = [population.train_epoch().losses for population in (stacked, sequential)]
        np.testing.assert_allclose(*losses, atol=1e-5)
    assert_same_state(stacked, sequential, tolerance=1e-4)


def own_cnn() -> nn.Module:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.Tanh(), nn.GroupNorm(1, 2))
    model = nn.Sequential(nn.Conv2d(1, 2, 1), block, nn.Flatten(), nn.Linear(50, 3))
    return add_slots(model, ["1"], torch.randn(2, 1, 5, 5))


@needs_kernel
def test_a_custom_cnn_without_a_pool_matches_one_by_one() -> None:
    specs, config = make_specs(CNN, (24, 40)), PopulationConfig(batch_size=8)
    stacked = StackedPopulation(lambda seed: own_cnn(), specs, config)
    sequential = SequentialPopulation(lambda seed: own_cnn(), specs, config)
    assert stacked.vector_hosts.has_program(0)
    for _ in range(2):
        losses = [population.train_epoch().losses for population in (stacked, sequential)]
        np.testing.assert_allclose(*losses, atol=1e-5)
    assert_same_state(stacked, sequential, tolerance=1e-4)


class Doubled(nn.Linear):
    """A layer that computes something else than its base class."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2.0 * super().forward(x)


class Unused(nn.Sequential):
    """A chain with an unused parameter."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 3))
        self.other = nn.Parameter(torch.zeros(2))


def hooked() -> nn.Module:
    layer = nn.Linear(6, 3)
    layer.register_forward_hook(lambda module, inputs, output: output + 1.0)
    return nn.Sequential(layer)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(Doubled(6, 3)),
        Unused(),
        hooked(),
        nn.Sequential(nn.Linear(6, 3), nn.ReLU(inplace=True)),
        nn.Sequential(nn.Linear(6, 3), nn.GELU(approximate="tanh")),
        nn.Sequential(nn.Linear(6, 3), nn.LayerNorm(3, bias=False)),
        nn.Sequential(nn.Linear(6, 3), nn.Softplus()),
        nn.Identity(),
    ],
    ids=["override", "unused", "hook", "inplace", "tanh", "no bias", "unknown", "nothing"],
)
def test_an_unsupported_module_has_no_program(module: nn.Module) -> None:
    shapes = shapes_of(dict(module.named_parameters()))
    with pytest.raises(NoProgramError):
        write_program(module, RowLayout(0, shapes, shapes), (6,), {})


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(2, 3, 3, padding=1, stride=2)],
        [nn.Conv2d(2, 3, 3, padding=2, dilation=2)],
        [nn.Conv2d(2, 3, 5, padding=2)],
        [nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular")],
        [nn.Conv2d(2, 4, 1, groups=2)],
        [nn.Conv2d(2, 3, 3, padding=1), nn.Flatten(2)],
        [nn.Conv2d(2, 3, 3, padding=1), nn.LayerNorm([3, 6, 6])],
        [nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3, momentum=None)],
        [nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3, affine=False)],
        [nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4)],
        [nn.Conv2d(2, 3, 3, padding=1), nn.AdaptiveAvgPool2d(2)],
    ],
    ids=[
        "stride",
        "dilation",
        "5x5",
        "circular",
        "grouped 1x1",
        "flatten positions",
        "layer norm",
        "no momentum",
        "no affine",
        "groups",
        "2x2 pool",
    ],
)
def test_an_unsupported_layer_of_feature_maps_has_no_program(layers: list[nn.Module]) -> None:
    module = nn.Sequential(*layers)
    shapes = shapes_of(dict(module.named_parameters()))
    buffers = [name for name, _ in module.named_buffers()]
    with pytest.raises(NoProgramError):
        write_program(module, RowLayout(0, shapes, shapes, buffers), (2, 6, 6), {})


def test_a_host_that_is_too_large_for_the_cache_has_no_program() -> None:
    module = nn.Sequential(nn.Conv2d(2, 64, 3, padding=1), nn.ReLU())
    shapes = shapes_of(dict(module.named_parameters()))
    write_program(module, RowLayout(0, shapes, shapes), (2, 16, 16), {})
    with pytest.raises(NoProgramError):
        write_program(module, RowLayout(0, shapes, shapes), (2, 128, 128), {})


def test_a_program_lists_each_parameter_at_its_offset() -> None:
    module = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3, bias=False))
    shapes = shapes_of(dict(module.named_parameters()))
    own = {"0.weight": (2, 6), "0.bias": (2,), "2.weight": (3, 2)}
    program = write_program(module, RowLayout(5, shapes, own), (6,), {})
    assert program.parameters.tolist() == [(5, 0, 2, 6, 6), (5, 24, 1, 2, 4), (5, 28, 3, 2, 4)]
    assert program.sizes.tolist() == [6, 2, 2, 3]
    assert program.n_outputs == 3


def test_noncontiguous_samples_can_be_trained_on() -> None:
    specs = make_specs(MLP, (24, 24))
    apart = [
        HostSpec(
            seed=spec.seed,
            data=HostData(
                *(
                    torch.stack([part, part], -1)[..., 0]
                    for split in ("train", "validation")
                    for part in spec.data.split(split)  # type: ignore[arg-type]
                )
            ),
            learning_rate=spec.learning_rate,
        )
        for spec in specs
    ]
    assert not apart[0].data.train_inputs.is_contiguous()
    reports = [
        StackedPopulation(Builder(MLP), own, PopulationConfig(batch_size=8)).train_epoch()
        for own in (specs, apart)
    ]
    np.testing.assert_array_equal(reports[0].losses, reports[1].losses)

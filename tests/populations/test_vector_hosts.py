"""The compiled kernel gives the same results as torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from esper.config.growth import (
    MLP_ACTIVATIONS,
    CNNHostConfig,
    GrowthConfig,
    HostConfig,
    MLPHostConfig,
    PopulationConfig,
)
from esper.errors import UnsupportedHostError
from esper.growth.footprint import forward_flops, training_step_flops
from esper.growth.hosts import HostMaker
from esper.growth.placement import add_slots
from esper.lifecycle.factored_actions import ALPHA_TARGETS, STYLES, BlendStyle, GrowthAction, Op
from esper.lifecycle.stages import Stage
from esper.populations import (
    HostData,
    HostSpec,
    Population,
    SquaredError,
    make_population,
    vector_hosts,
)
from esper.populations.host import Host
from esper.populations.host_data import Ablation
from tests.populations.test_forms_agree import assert_same_state
from tests.populations.worlds import (
    CNN,
    GPT,
    MLP,
    Builder,
    compiled,
    in_torch,
    is_compiled,
    make_specs,
    to_double,
    to_regression,
)

needs_kernel = pytest.mark.skipif(vector_hosts._kernel is None, reason="the kernel was not built")
BLUEPRINTS = ("mlp_small", "mlp_large", "low_rank", "norm", "noop")
MAP_BLUEPRINTS = ("conv_light", "attention", "depthwise", "bottleneck", "norm", "noop")
OWN_LAYERS = ("widen_small", "widen_large", "deepen")
STAGES = {Stage.TRAINING: 1, Stage.BLENDING: 2, Stage.HOLDING: 3, Stage.FOSSILIZED: 3}
FREE = GrowthConfig(min_training_epochs=0, min_holding_epochs=0, embargo_epochs=1)


def make_pair(
    design: HostConfig, specs: list[HostSpec], config: PopulationConfig, **options: Any
) -> tuple[Population, Population]:
    """Return the same hosts, compiled and in torch."""
    dtype = specs[0].data.train_inputs.dtype
    pair = tuple(
        form(Builder(design, dtype), specs, config, growth_config=FREE, **options)
        for form in (compiled, in_torch)
    )
    assert all(is_compiled(pair[0], host) for host in range(len(specs)))
    return pair  # type: ignore[return-value]


def grow(
    population: Population, host: int, slot: str, blueprint: str, style: BlendStyle, stage: Stage
) -> None:
    """Bring a new seed to a stage."""
    target = ALPHA_TARGETS[host % len(ALPHA_TARGETS)]
    act = GrowthAction(op=Op.GERMINATE, slot=slot, blueprint=blueprint)
    actions = [replace(act, style=style, tempo_epochs=0, alpha_target=target)]
    actions += [GrowthAction(op=Op.ADVANCE, slot=slot)] * STAGES[stage]
    if stage == Stage.FOSSILIZED:
        actions.append(GrowthAction(op=Op.FOSSILIZE, slot=slot))
    for action in actions:
        if action.op == Op.GERMINATE or blueprint not in OWN_LAYERS:
            assert population.apply(host, action).was_done


def assert_same_numbers(pair: tuple[Population, Population], tolerance: float) -> None:
    """Train both for an epoch and compare everything that can be asked of them."""
    reports = [population.train_epoch() for population in pair]
    for name in ("losses", "gradient_norms", "seed_gradient_norms", "gradient_noise"):
        numbers = [getattr(report, name) for report in reports]
        np.testing.assert_allclose(*numbers, atol=tolerance, rtol=tolerance, err_msg=name)
    np.testing.assert_array_equal(reports[0].flops, reports[1].flops)
    asked: list[dict[str, Any]] = [{"without_slot": slot} for slot in pair[0].slot_config.slot_ids]
    for options in ({}, {"committed_only": True}, {"split": "train"}, *asked):
        judged = [population.evaluate(**options) for population in pair]
        np.testing.assert_allclose(judged[0].losses, judged[1].losses, atol=tolerance)
        np.testing.assert_allclose(judged[0].metrics, judged[1].metrics, atol=tolerance)
        np.testing.assert_array_equal(judged[0].flops, judged[1].flops)
    assert_same_state(*pair, tolerance)


designs: st.SearchStrategy[HostConfig] = st.one_of(
    st.builds(
        MLPHostConfig,
        n_features=st.integers(1, 9),
        n_classes=st.integers(2, 5),
        width=st.integers(1, 9),
        hidden=st.integers(1, 9),
        n_blocks=st.integers(1, 3),
        activation=st.sampled_from(MLP_ACTIVATIONS),
        has_norm=st.booleans(),
        has_skips=st.booleans(),
    ),
    st.builds(
        CNNHostConfig,
        n_channels=st.integers(1, 3),
        image_size=st.integers(1, 6),
        n_classes=st.integers(2, 4),
        width=st.integers(1, 7),
        hidden=st.integers(1, 7),
        n_blocks=st.integers(1, 2),
    ),
)
configs = st.builds(
    PopulationConfig,
    optimizer=st.sampled_from(["sgd", "adam", "adamw"]),
    momentum=st.sampled_from([0.0, 0.9]),
    weight_decay=st.sampled_from([0.0, 0.02]),
    batch_size=st.integers(2, 20),
    batches_per_epoch=st.one_of(st.none(), st.integers(1, 4)),
)


@needs_kernel
@settings(deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    design=designs,
    config=configs,
    sizes=st.lists(st.integers(4, 30), min_size=1, max_size=3),
    is_regression=st.booleans(),
    data=st.data(),
)
def test_hosts_and_growth_drawn_at_random_match_torch(
    design: HostConfig,
    config: PopulationConfig,
    sizes: list[int],
    is_regression: bool,
    data: st.DataObject,
) -> None:
    specs = to_double(make_specs(design, sizes))
    options: dict[str, Any] = {}
    if is_regression:
        specs, options = to_regression(specs, design.n_classes), {"objective": SquaredError()}
    pair = make_pair(design, specs, config, **options)
    names = MAP_BLUEPRINTS if isinstance(design, CNNHostConfig) else BLUEPRINTS
    names += OWN_LAYERS
    for _ in range(4):
        for host in range(len(specs)):
            fits = [
                (slot, name)
                for slot in pair[0].slot_config.slot_ids
                for name in names
                if pair[0]
                .lives(host)
                .is_legal(GrowthAction(op=Op.GERMINATE, slot=slot, blueprint=name))
            ]
            chosen = data.draw(st.sampled_from([None, *fits]))
            if chosen is not None:
                style, stage = (data.draw(st.sampled_from(each)) for each in (STYLES, list(STAGES)))
                for population in pair:
                    grow(population, host, *chosen, style, stage)
        assert all(is_compiled(pair[0], host) for host in range(len(specs)))
        assert_same_numbers(pair, tolerance=1e-8)


@needs_kernel
@pytest.mark.parametrize("design", [MLP, CNN], ids=["mlp", "cnn"])
def test_every_instruction_set_matches_torch_in_both_precisions(design: HostConfig) -> None:
    kernel = vector_hosts._kernel
    assert kernel is not None
    names = kernel.variants()
    blueprints = ("mlp_large", "low_rank") if design is MLP else ("depthwise", "attention")
    try:
        for index in range(len(names)):
            kernel.choose(index)
            for is_double in (False, True):
                specs = make_specs(design, (31, 20))
                specs = to_double(specs) if is_double else specs
                pair = make_pair(design, specs, PopulationConfig(batch_size=9))
                for population in pair:
                    for host in range(2):
                        style = (BlendStyle.MULTIPLY_LINEAR, BlendStyle.LEARNED_GATE)[host]
                        grow(population, host, "blocks.0", blueprints[host], style, Stage.BLENDING)
                assert_same_numbers(pair, tolerance=1e-10 if is_double else 2e-4)
    finally:
        kernel.choose(len(names) - 1)


@needs_kernel
@pytest.mark.parametrize("design", [MLP, CNN], ids=["mlp", "cnn"])
@pytest.mark.parametrize("batch_size", [2, 5, 33, 256])
def test_every_batch_size_matches_torch(batch_size: int, design: HostConfig) -> None:
    specs = to_double(make_specs(design, (310, 40)))
    pair = make_pair(design, specs, PopulationConfig(batch_size=batch_size))
    assert_same_numbers(pair, tolerance=1e-10)


@needs_kernel
def test_two_threads_give_the_same_result_as_one() -> None:
    specs = make_specs(MLP, (40, 33, 21, 40, 16))
    n_threads = torch.get_num_threads()
    states: list[dict[str, Tensor]] = []
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            population = compiled(Builder(MLP), specs, PopulationConfig(batch_size=8))
            for _ in range(3):
                population.train_epoch()
            states.append(population.state_dict()["tensors"])
    finally:
        torch.set_num_threads(n_threads)
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name


@needs_kernel
def test_a_host_is_the_same_to_the_bit_whichever_others_are_trained_with_it() -> None:
    designs = [HostMaker(replace(MLP, hidden=n)) for n in (3, 9)] + [HostMaker(CNN)]
    specs = make_specs(MLP, (30, 21)) + make_specs(CNN, (17,))
    specs = [replace(spec, build=build) for spec, build in zip(specs, designs, strict=True)]
    config = PopulationConfig(batch_size=8)
    together = compiled(designs[0], specs, config)
    alone = [compiled(designs[0], [spec], config) for spec in specs]
    for epoch in range(3):
        if epoch == 1:
            for population, host in ((together, 1), (alone[1], 0)):
                act = GrowthAction(op=Op.GERMINATE, slot="blocks.1", blueprint="mlp_small")
                population.apply(host, act)
                population.apply(host, GrowthAction(op=Op.ADVANCE, slot="blocks.1"))
        together.train_epoch()
        for population in alone:
            population.train_epoch()
    for host, population in enumerate(alone):
        expected, found = population.get_state(0), together.get_state(host)
        assert expected.facts == found.facts
        for name, tensor in expected.tensors.items():
            assert torch.equal(tensor, found.tensors[name]), name


@needs_kernel
def test_hosts_with_and_without_a_program_can_be_mixed() -> None:
    mixed = make_specs(MLP, (24,)) + make_specs(GPT, (16,))
    mixed = [replace(mixed[0], build=Builder(MLP)), replace(mixed[1], build=Builder(GPT))]
    pair = [
        form(Builder(MLP), mixed, PopulationConfig(batch_size=8)) for form in (compiled, in_torch)
    ]
    reason = "samples are neither vectors nor images of floating point numbers"
    assert pair[0].forms() == {"compiled": 1, f"torch: {reason}": 1}
    assert pair[1].forms() == {"torch: it was asked for": 2}
    note = pair[0].describe_forms() or ""
    assert "PyTorch trains 1 of 2 hosts" in note
    assert note.endswith(reason)
    assert "all hosts" in (pair[1].describe_forms() or "")
    assert compiled(Builder(MLP), mixed[:1]).describe_forms() is None
    for _ in range(2):
        reports = [population.train_epoch() for population in pair]
        np.testing.assert_allclose(reports[0].losses, reports[1].losses, atol=1e-5)
        np.testing.assert_array_equal(reports[0].flops, reports[1].flops)
    assert_same_state(pair[0], pair[1], tolerance=1e-4)


@needs_kernel
def test_hosts_whose_own_units_are_blended_in_and_out_match_torch() -> None:
    slow = replace(FREE, commits_at_once=False)
    specs = to_double(make_specs(MLP, (24, 17)))
    config = PopulationConfig(batch_size=8)
    build = Builder(MLP, torch.float64)
    pair = tuple(form(build, specs, config, growth_config=slow) for form in (compiled, in_torch))
    slot = "blocks.*.first>second"
    act = GrowthAction(op=Op.GERMINATE, slot=slot, blueprint="widen_large", tempo_epochs=2)
    target = replace(act, op=Op.SET_ALPHA_TARGET, alpha_target=0.5, alpha_speed_epochs=3)
    script = {1: replace(act, alpha_target=1.0), 5: target, 9: replace(act, op=Op.PRUNE)}
    forms: list[bool] = []
    for epoch in range(12):
        for population in pair:
            if epoch in script:
                assert population.apply(0, script[epoch]).was_done
            life = population.lives(0)[slot]
            if life.stage in (Stage.GERMINATED, Stage.TRAINING):
                population.apply(0, GrowthAction(op=Op.ADVANCE, slot=slot))
            if life.stage == Stage.BLENDING and life.schedule.is_at_rest:
                population.apply(0, GrowthAction(op=Op.ADVANCE, slot=slot))
        forms.append(is_compiled(pair[0], 0))
        assert is_compiled(pair[0], 1)
        assert_same_numbers(pair, tolerance=1e-8)  # type: ignore[arg-type]
    assert forms[0]
    assert not all(forms)
    assert forms[-1]


@needs_kernel
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_host_goes_on_in_torch_while_a_seed_has_no_op(
    optimizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host whose form changes has the same moments, step counts and loss statistics."""
    from esper.growth.blueprints import registry
    from esper.growth.blueprints.seeds import NoopSeed
    from esper.populations import vector_programs

    specs = to_double(make_specs(MLP, (24, 17)))
    pair = make_pair(MLP, specs, PopulationConfig(batch_size=8, optimizer=optimizer))
    monkeypatch.delitem(vector_programs._LAYERS, NoopSeed)
    assert "noop" in registry._REGISTRY
    for epoch in range(6):
        for population in pair:
            if epoch == 1:
                grow(population, 0, "blocks.0", "noop", STYLES[0], Stage.BLENDING)
            if epoch == 4:
                population.apply(0, GrowthAction(op=Op.PRUNE, slot="blocks.0"))
        assert is_compiled(pair[0], 0) == (epoch not in (1, 2, 3))
        assert_same_numbers(pair, tolerance=1e-10)
        watched = [population.get_state(0).facts["losses"] for population in pair]
        np.testing.assert_allclose(*watched, rtol=1e-9)


@needs_kernel
@pytest.mark.parametrize("kind", ["data", "weight", "buffer"])
def test_a_failing_host_is_rolled_back_without_affecting_the_others(kind: str) -> None:
    specs = to_double(make_specs(CNN, (32, 32, 32)))
    pair = make_pair(CNN, specs, PopulationConfig(batch_size=8))
    for population in pair:
        grow(population, 1, "blocks.0", "conv_light", STYLES[0], Stage.TRAINING)
        population.train_epoch()
    before = pair[0].get_state(1).tensors
    if kind == "data":
        specs[1].data.train_inputs[3] = torch.inf
    for population in pair if kind != "data" else ():
        model = population._hosts[1].model
        tensor = model.head.bias if kind == "weight" else model.stem[1].running_mean
        tensor.data[0] = torch.nan
    reports = [population.train_epoch() for population in pair]
    for report in reports:
        assert list(report.interventions) == [1]
        assert report.interventions[1].pruned == ("blocks.0",)
    np.testing.assert_array_equal(reports[0].flops, reports[1].flops)
    assert_same_state(*pair, tolerance=1e-10)
    for name, tensor in pair[0].get_state(1).tensors.items():
        at = name if name in before else name.replace("blocks.0.", "blocks.0.block.")
        assert torch.equal(tensor, before[at]), name


@needs_kernel
def test_a_host_with_nan_outputs_is_evaluated_as_predicting_the_first_class() -> None:
    pair = make_pair(MLP, make_specs(MLP, (32, 32)), PopulationConfig(batch_size=8))
    for population in pair:
        for held in population._hosts:
            for parameter in held.model.parameters():
                parameter.data.fill_(torch.nan)
    judged = [population.evaluate() for population in pair]
    assert np.isnan(judged[0].losses).all()
    np.testing.assert_array_equal(judged[0].metrics, judged[1].metrics)


def own_model(activation: nn.Module) -> nn.Module:
    block = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 6))
    model = nn.Sequential(block, activation, nn.LayerNorm(6), nn.Linear(6, 3))
    return add_slots(model, ["0"], torch.randn(2, 6))


@needs_kernel
@pytest.mark.parametrize(
    ("activation", "has_program"),
    [(nn.ReLU, True), (nn.GELU, True), (nn.Identity, True), (nn.Tanh, True), (nn.SiLU, False)],
)
def test_a_model_of_the_users_own_matches_torch(
    activation: Callable[[], nn.Module], has_program: bool
) -> None:
    specs = make_specs(MLP, (24, 40))

    def build(seed: int) -> nn.Module:
        return own_model(activation())

    pair = [form(build, specs, PopulationConfig(batch_size=8)) for form in (compiled, in_torch)]
    assert is_compiled(pair[0], 0) == has_program
    for _ in range(2):
        losses = [population.train_epoch().losses for population in pair]
        np.testing.assert_allclose(*losses, atol=1e-5)
    assert_same_state(pair[0], pair[1], tolerance=1e-4)


def test_flops_of_programs_are_those_of_torchs_counter() -> None:
    for design, names in ((MLP, BLUEPRINTS), (CNN, MAP_BLUEPRINTS)):
        specs = make_specs(design, (16,) * 4)
        population = compiled(Builder(design), specs, growth_config=FREE)
        for blueprint in names:
            for host, stage in enumerate(STAGES):
                population.restart(host, specs[host])
                grow(population, host, "blocks.0", blueprint, STYLES[host], stage)
                held, sample = population._hosts[host], specs[host].data.train_inputs[:2]
                assert held.flops(None) == training_step_flops(held.model, sample) / 2
                whole = forward_flops(held.model, sample) / 2
                assert held.flops(Ablation()) == whole
                with held.slots["blocks.0"].switched_off():
                    without = forward_flops(held.model, sample) / 2
                assert held.flops(Ablation("blocks.0")) == without


def test_flops_do_not_depend_on_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = make_specs(CNN, (16,))
    flops = [compiled(Builder(CNN), specs).train_epoch().flops]
    monkeypatch.setattr(vector_hosts, "_kernel", None)
    population = compiled(Builder(CNN), specs)
    assert population.forms() == {"torch: the kernel was not built": 1}
    flops.append(population.train_epoch().flops)
    np.testing.assert_array_equal(*flops)


def maps(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))


def _hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(72, 3))
    model[0].register_forward_hook(lambda *_: None)
    return model


def _tied() -> nn.Module:
    layer = nn.Linear(72, 72)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(72, 3))


def _frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(72, 3))
    model[0].bias.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: maps(nn.Conv2d(2, 2, 3, stride=2, padding=1)), "stride"),
        (lambda: maps(nn.Conv2d(2, 2, 5, padding=2)), "neither 3x3 nor 1x1"),
        (lambda: maps(nn.Conv2d(2, 2, 3)), "neither 3x3 nor 1x1"),
        (lambda: maps(nn.Conv2d(2, 2, 3, padding="same")), "not a number"),
        (lambda: maps(nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular")), "padding"),
        (lambda: maps(nn.Conv2d(2, 2, 3, padding=1, dilation=2)), "dilation"),
        (lambda: maps(nn.BatchNorm2d(2, affine=False)), "batch norm"),
        (lambda: maps(nn.BatchNorm2d(2, momentum=None)), "batch norm"),
        (lambda: maps(nn.BatchNorm2d(2, track_running_stats=False)), "batch norm"),
        (lambda: maps(nn.GroupNorm(2, 2)), "several groups"),
        (lambda: maps(nn.LayerNorm(6)), "not over all features"),
        (lambda: maps(nn.AdaptiveAvgPool2d(2)), "several outputs"),
        (lambda: maps(nn.ReLU(inplace=True)), "in place"),
        (lambda: maps(nn.GELU(approximate="tanh")), "approximate"),
        (lambda: maps(nn.Dropout(0.5)), "the engine has no Dropout"),
        (lambda: nn.Sequential(nn.Flatten(), _hooked()), "hooks"),
        (lambda: nn.Sequential(nn.Flatten(), _tied()), "used twice"),
        (lambda: nn.Sequential(nn.Flatten(), _frozen()), "frozen"),
    ],
)
def test_a_layer_that_the_kernel_does_not_have_is_named(
    make: Callable[[], nn.Module], reason: str
) -> None:
    inputs, targets = torch.randn(16, 2, 6, 6), torch.arange(16) % 3
    data = HostData(inputs, targets, inputs, targets)
    model = make()
    model(inputs)

    def build(seed: int) -> nn.Module:
        return add_slots(model, [next(name for name, _ in model.named_children())], inputs[:2])

    spec = HostSpec(seed=0, data=data)
    with pytest.raises(UnsupportedHostError, match=f"host 0 .*({reason}|not built)"):
        make_population(build, [spec], form="compiled")


def test_parameters_and_moments_are_views_of_one_block_of_memory() -> None:
    if vector_hosts._kernel is None:
        pytest.skip("the kernel was not built")
    population = compiled(Builder(CNN), make_specs(CNN, (16,)))
    held: Host = population._hosts[0]
    parameters = list(held.model.parameters())
    population.train_epoch()
    assert all(a is b for a, b in zip(parameters, held.model.parameters(), strict=True))
    tensors = [*parameters, held.model.stem[1].running_mean]
    for parameter in parameters:
        state = held.optimizer.state[parameter]
        assert state["step"] == 1
        tensors += [state["step"], state["exp_avg"], state["exp_avg_sq"]]
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
    assert population.model(0).head.weight.untyped_storage().nbytes() == 4 * 12


def test_noncontiguous_samples_can_be_trained_on() -> None:
    specs = make_specs(MLP, (24, 24))

    def apart(tensor: Tensor) -> Tensor:
        return torch.stack([tensor, tensor], -1)[..., 0]

    others = [
        replace(
            spec,
            data=HostData(*map(apart, (*spec.data.split("train"), *spec.data.split("validation")))),
        )
        for spec in specs
    ]
    assert not others[0].data.train_inputs.is_contiguous()
    reports = [
        compiled(Builder(MLP), own, PopulationConfig(batch_size=8)).train_epoch()
        for own in (specs, others)
    ]
    np.testing.assert_array_equal(reports[0].losses, reports[1].losses)

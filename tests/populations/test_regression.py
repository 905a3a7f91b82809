"""Regression gives the same numbers in the kernel, in both forms and in a plain loop."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.config.growth import CNNHostConfig, HostConfig, MLPHostConfig, PopulationConfig
from esper.errors import ConfigError, ShapeError
from esper.growth.hosts import slot_names
from esper.lifecycle.factored_actions import STYLES, BlendStyle
from esper.populations import (
    HostData,
    HostSpec,
    Population,
    SequentialPopulation,
    SquaredError,
    StackedPopulation,
    vector_hosts,
)
from esper.populations.host_data import BatchOrder
from tests.populations.test_forms_agree import (
    BLUEPRINT_PAIRS,
    assert_same_state,
    life_script,
    run_together,
)
from tests.populations.test_padding import SmallBuilder
from tests.populations.test_vector_hosts import FREE, grow, needs_kernel, without_kernel
from tests.populations.worlds import (
    CNN,
    GPT,
    MLP,
    Builder,
    make_data,
    make_specs,
    to_double,
    to_regression,
)

MLP_1 = replace(MLP, n_classes=1)
CNN_1 = replace(CNN, n_classes=1)
CASES = {
    "mlp": (MLP_1, None),
    "mlp, a column": (MLP_1, 1),
    "mlp, three outputs": (MLP, 3),
    "cnn": (CNN_1, None),
    "cnn, three outputs": (CNN, 3),
}
"""Designs with their number of targets."""


def specs_of(case: str, sizes: tuple[int, ...]) -> tuple[HostConfig, list[HostSpec]]:
    design, n_outputs = CASES[case]
    return design, to_regression(to_double(make_specs(design, sizes)), n_outputs)


def make_population(
    form: type[Population],
    design: HostConfig,
    specs: list[HostSpec],
    config: PopulationConfig,
    dtype: torch.dtype = torch.float64,
) -> Population:
    build = Builder(design, dtype)
    return form(build, specs, config, objective=SquaredError(), growth_config=FREE)


def assert_same_numbers(populations: list[Population], tolerance: float) -> None:
    """Train all populations for an epoch and compare everything with the first."""
    reports = [population.train_epoch() for population in populations]
    for report, name in product(reports[1:], ("losses", "gradient_norms", "seed_gradient_norms")):
        expected = getattr(reports[0], name)
        np.testing.assert_allclose(
            getattr(report, name), expected, atol=tolerance, rtol=0, err_msg=name
        )
    for split in ("train", "validation"):
        judged = [population.evaluate(split) for population in populations]
        for one in judged:
            np.testing.assert_allclose(one.losses, judged[0].losses, atol=tolerance, rtol=0)
            np.testing.assert_allclose(one.metrics, judged[0].losses, atol=tolerance, rtol=0)
    for population in populations[1:]:
        assert_same_state(populations[0], population, tolerance)


def train_alone(design: HostConfig, spec: HostSpec, config: PopulationConfig) -> nn.Module:
    """Return a host after two epochs of a plain loop with torch's own loss and optimizer."""
    model, data = Builder(design, torch.float64)(spec.seed), spec.data
    rate = spec.learning_rate or config.learning_rate
    options = {"lr": rate, "weight_decay": config.weight_decay}
    if config.optimizer == "sgd":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            model.parameters(), momentum=config.momentum, **options
        )
    else:
        kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
        betas = (config.beta1, config.beta2)
        optimizer = kind(model.parameters(), betas=betas, eps=config.adam_eps, **options)
    order = BatchOrder(spec.seed, len(data.train_inputs), config.batch_size)
    for batch in torch.from_numpy(np.concatenate([order.draw_epoch() for _ in range(2)])):
        optimizer.zero_grad()
        outputs = model(data.train_inputs[batch])
        wanted = data.train_targets[batch].reshape(outputs.shape)
        nn.functional.mse_loss(outputs, wanted).backward()
        optimizer.step()
    return model.eval()


@pytest.mark.parametrize(
    ("case", "optimizer", "momentum"),
    [
        *((case, "adamw", 0.9) for case in CASES),
        *(("mlp, three outputs", *rest) for rest in (("sgd", 0.0), ("sgd", 0.9), ("adam", 0.9))),
    ],
)
def test_every_way_to_train_matches_a_plain_loop(
    case: str, optimizer: str, momentum: float
) -> None:
    config = PopulationConfig(
        optimizer=optimizer,  # type: ignore[arg-type]
        momentum=momentum,
        weight_decay=0.02,
        batch_size=7,
    )
    design, specs = specs_of(case, (24, 16, 7))
    populations: list[Population] = [
        make_population(form, design, specs, config)
        for form in (SequentialPopulation, StackedPopulation)
    ]
    with without_kernel():
        populations.append(make_population(StackedPopulation, design, specs, config))
    for _ in range(2):
        assert_same_numbers(populations, tolerance=1e-10)
    for host, spec in enumerate(specs):
        model, data = train_alone(design, spec, config), spec.data
        found = populations[1].get_state(host).part("host")
        for name, tensor in model.named_parameters():
            torch.testing.assert_close(found[name], tensor.detach(), atol=1e-10, rtol=0)
        outputs = model(data.validation_inputs).detach()
        wanted = data.validation_targets.reshape(outputs.shape)
        error = nn.functional.mse_loss(outputs, wanted).item()
        for population in populations:
            assert population.evaluate().metrics[host] == pytest.approx(error, abs=1e-10)


@needs_kernel
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_computes_regression(case: str) -> None:
    design, specs = specs_of(case, (16, 9))
    population = StackedPopulation(Builder(design, torch.float64), specs, objective=SquaredError())
    assert all(population.vector_hosts.has_program(host) for host in range(2))


@needs_kernel
def test_targets_of_another_precision_are_left_to_tensor_operations() -> None:
    data = to_regression(make_specs(MLP_1, (16,)))[0].data
    targets = data.train_targets.double(), data.validation_targets.double()
    data = replace(data, train_targets=targets[0], validation_targets=targets[1])
    assert_forms_agree_without_a_program(MLP_1, data)


@needs_kernel
def test_predictions_of_each_token_are_left_to_tensor_operations() -> None:
    data, shape = make_data(GPT, 16, seed=0), (GPT.context, GPT.vocabulary)
    targets = torch.randn(16, *shape), torch.randn(12, *shape)
    data = replace(data, train_targets=targets[0], validation_targets=targets[1])
    assert_forms_agree_without_a_program(GPT, data)


def assert_forms_agree_without_a_program(design: HostConfig, data: HostData) -> None:
    specs = [HostSpec(seed=0, data=data)]
    stacked = StackedPopulation(Builder(design), specs, objective=SquaredError())
    sequential = SequentialPopulation(Builder(design), specs, objective=SquaredError())
    assert not stacked.vector_hosts.has_program(0)
    losses = [population.train_epoch().losses for population in (stacked, sequential)]
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize("design", ["mlp", pytest.param("cnn", marks=pytest.mark.slow)])
def test_both_forms_agree_over_a_whole_life(design: str) -> None:
    config = PopulationConfig(batch_size=8, weight_decay=0.01, seed_lr_factor=0.5)
    host, specs = specs_of(design, (40, 40, 24, 7))
    build = Builder(host, torch.float64)
    pair = (
        SequentialPopulation(build, specs, config, objective=SquaredError()),
        StackedPopulation(build, specs, config, objective=SquaredError()),
    )
    run_together(pair, life_script(slot_names(host), BLUEPRINT_PAIRS[design][0]), tolerance=1e-9)


@needs_kernel
def test_every_instruction_set_matches_tensor_operations() -> None:
    kernel = vector_hosts._kernel
    assert kernel is not None
    names = kernel.variants()
    try:
        for index in range(len(names)):
            kernel.choose(index)
            for dtype, tolerance in ((torch.float32, 2e-5), (torch.float64, 1e-10)):
                design, n_outputs = CASES["mlp, three outputs"]
                specs = make_specs(design, (31, 20, 9, 40))
                specs = to_double(specs) if dtype == torch.float64 else specs
                specs, config = to_regression(specs, n_outputs), PopulationConfig(batch_size=9)
                compiled = make_population(StackedPopulation, design, specs, config, dtype)
                with without_kernel():
                    plain = make_population(StackedPopulation, design, specs, config, dtype)
                for population, host in product((compiled, plain), range(4)):
                    blueprint = ("mlp_large", "widen_large", "norm", "low_rank")[host]
                    grow(population, host, "blocks.0", blueprint, STYLES[host])
                assert_same_numbers([plain, compiled], tolerance)
    finally:
        kernel.choose(len(names) - 1)


@pytest.mark.parametrize(
    "design",
    [
        MLPHostConfig(n_features=6, n_classes=2, width=5, hidden=9),
        pytest.param(
            CNNHostConfig(image_size=5, n_classes=2, width=4, hidden=6), marks=pytest.mark.slow
        ),
    ],
    ids=["mlp", "cnn"],
)
def test_smaller_hosts_agree_in_every_form(design: HostConfig) -> None:
    specs = to_regression(to_double(make_specs(design, (30, 24, 9))), 2)
    specs = [
        replace(spec, build=SmallBuilder(design, hidden, torch.float64))
        for spec, hidden in zip(specs, (1, 4, 5), strict=True)
    ]
    config = PopulationConfig(batch_size=8, learning_rate=0.01)
    populations: list[Population] = [
        make_population(form, design, specs, config)
        for form in (SequentialPopulation, StackedPopulation)
    ]
    with without_kernel():
        populations.append(make_population(StackedPopulation, design, specs, config))
    for population, host in product(populations, range(3)):
        grow(population, host, "blocks.0", "widen_small", BlendStyle.ADD_LINEAR)
    for _ in range(3):
        assert_same_numbers(populations, tolerance=1e-10)


def test_a_host_with_nan_outputs_has_an_error_of_nan() -> None:
    design, specs = specs_of("mlp", (16, 9))
    population = StackedPopulation(Builder(design, torch.float64), specs, objective=SquaredError())
    population.state.hosts.values[:1] = torch.nan
    judged = population.evaluate()
    np.testing.assert_array_equal(np.isnan(judged.losses), [True, False])
    np.testing.assert_array_equal(np.isnan(judged.metrics), [True, False])


def test_the_squared_error_of_each_sample_worked_by_hand() -> None:
    outputs = torch.tensor([[[1.0], [3.0]], [[0.0], [-2.0]]])
    objective = SquaredError()
    expected = torch.tensor([[0.0, 4.0], [1.0, 9.0]])
    targets = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    for wanted in (targets, targets[..., None]):
        torch.testing.assert_close(objective.losses(outputs, wanted), expected)
        torch.testing.assert_close(objective.metrics(outputs, wanted), expected)
    pairs = objective.losses(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 1.0]]))
    torch.testing.assert_close(pairs, torch.tensor([2.5]))


@pytest.mark.parametrize(
    ("outputs", "targets", "message"),
    [
        (torch.zeros(4, 3), torch.zeros(4), r"outputs have shape \[4, 3\] and targets \[4\]"),
        (torch.zeros(4, 1), torch.zeros(4, 3), r"\[4, 1\] and targets \[4, 3\]"),
        (torch.zeros(4), torch.zeros(4), r"\[4\] and targets \[4\]"),
        (torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64), "targets are int64"),
    ],
)
def test_outputs_that_do_not_fit_the_targets_are_rejected(
    outputs: Tensor, targets: Tensor, message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        SquaredError().losses(outputs, targets)


@pytest.mark.parametrize("form", [SequentialPopulation, StackedPopulation])
def test_a_host_with_other_outputs_than_targets_is_rejected(form: type[Population]) -> None:
    inputs = make_data(MLP, 8, 0).train_inputs
    data = HostData(inputs, inputs[:, 0], inputs, inputs[:, 0])
    with pytest.raises(ConfigError, match=r"host 0 .*\[2, 3\] and targets \[2\]"):
        form(Builder(MLP), [HostSpec(seed=0, data=data)], objective=SquaredError())

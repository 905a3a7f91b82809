"""Regression gives the same numbers in the kernel, in both forms and in a plain loop."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.config.growth import HostConfig, PopulationConfig
from esper.errors import ConfigError, ShapeError
from esper.populations import (
    HostData,
    HostSpec,
    Population,
    SquaredError,
)
from esper.populations.host_data import BatchOrder
from tests.populations.test_forms_agree import (
    assert_same_state,
)
from tests.populations.test_vector_hosts import FREE
from tests.populations.worlds import (
    CNN,
    FORMS,
    MLP,
    Builder,
    Make,
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
    form: Make,
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
    populations: list[Population] = [make_population(form, design, specs, config) for form in FORMS]
    for _ in range(2):
        assert_same_numbers(populations, tolerance=1e-10)
    for host, spec in enumerate(specs):
        model, data = train_alone(design, spec, config), spec.data
        found = populations[1].get_state(host).tensors
        for name, tensor in model.named_parameters():
            torch.testing.assert_close(found[f"model/{name}"], tensor.detach(), atol=1e-10, rtol=0)
        outputs = model(data.validation_inputs).detach()
        wanted = data.validation_targets.reshape(outputs.shape)
        error = nn.functional.mse_loss(outputs, wanted).item()
        for population in populations:
            assert population.evaluate().metrics[host] == pytest.approx(error, abs=1e-10)


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


@pytest.mark.parametrize("form", FORMS)
def test_a_host_with_other_outputs_than_targets_is_rejected(form: Make) -> None:
    inputs = make_data(MLP, 8, 0).train_inputs
    data = HostData(inputs, inputs[:, 0], inputs, inputs[:, 0])
    with pytest.raises(ConfigError, match=r"host 0 .*\[2, 3\] and targets \[2\]"):
        form(Builder(MLP), [HostSpec(seed=0, data=data)], objective=SquaredError())

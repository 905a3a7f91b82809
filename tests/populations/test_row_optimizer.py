"""Row updates match torch's, with a learning rate and step count for each row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from esper.config.growth import PopulationConfig
from esper.populations.flat_optimizer import FlatOptimizer
from esper.populations.host_models import make_optimizer, moment_names
from esper.populations.rows import ActiveRows, Row, RowStore


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize(
    ("name", "momentum"), [("sgd", 0.9), ("sgd", 0.0), ("adam", 0.9), ("adamw", 0.9)]
)
def test_rows_are_updated_like_torch_with_their_own_rates_and_steps(
    name: Any, momentum: float, decay: float
) -> None:
    config = PopulationConfig(optimizer=name, weight_decay=decay, momentum=momentum)
    torch.manual_seed(0)
    models = [nn.Linear(3, 2).double() for _ in range(3)]
    rates = np.array([0.1, 0.01, 0.003])
    optimizers = [make_optimizer(m, config, r) for m, r in zip(models, rates, strict=True)]
    store = RowStore(models[0], moment_names(config))
    store.put({host: Row.of_module(model) for host, model in enumerate(models)})
    # Rows 1 and 2 learn two steps longer than row 0.
    for first in (1, 1, 0, 0, 0):
        gradients = torch.randn(3 - first, 8, dtype=torch.float64)
        for model, optimizer, gradient in zip(
            models[first:], optimizers[first:], gradients, strict=True
        ):
            model.weight.grad = gradient[:6].view(2, 3).clone()
            model.bias.grad = gradient[6:].clone()
            optimizer.step()
        flat = FlatOptimizer([(store, slice(first, 3))], rates[first:])
        seen = ActiveRows()
        flat.bind([seen])
        for parameter, columns in (("weight", slice(0, 6)), ("bias", slice(6, 8))):
            own = gradients[:, columns].reshape(seen.parameters[parameter].shape)
            (seen.parameters[parameter] * own).sum().backward()
        squares = gradients.square().sum(1).numpy()
        np.testing.assert_allclose(flat.gradient_squares(), squares)
        flat.update(config)
        flat.write_back()
    for host, model in enumerate(models):
        row = store.get(host)
        torch.testing.assert_close(row.tensors["weight"], model.weight.detach())
        torch.testing.assert_close(row.tensors["bias"], model.bias.detach())
    assert store.steps.tolist() == [3.0, 5.0, 5.0]


def test_torch_optimizers_get_the_populations_settings() -> None:
    model = nn.Linear(2, 2)
    kinds = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
    for name, kind in kinds.items():
        config = PopulationConfig(
            optimizer=name,  # type: ignore[arg-type]
            weight_decay=0.3,
            momentum=0.7,
            beta1=0.6,
            beta2=0.8,
            adam_eps=1e-5,
        )
        optimizer = make_optimizer(model, config, 0.2)
        assert type(optimizer) is kind
        group = optimizer.param_groups[0]
        assert (group["lr"], group["weight_decay"]) == (0.2, 0.3)
        if name == "sgd":
            assert group["momentum"] == 0.7
        else:
            assert (group["betas"], group["eps"]) == ((0.6, 0.8), 1e-5)


def test_adding_and_removing_rows_does_not_change_the_others() -> None:
    torch.manual_seed(0)
    models = {host: nn.BatchNorm1d(4) for host in (5, 2, 9)}
    for model in models.values():
        model.weight.data.normal_()
        assert model.running_mean is not None
        model.running_mean.normal_()
    store = RowStore(models[5], ("exp_avg",))
    store.put({host: Row.of_module(model) for host, model in models.items()})
    store.moments["exp_avg"].normal_()
    before = {host: store.get(host) for host in models}
    taken = store.get(2)
    store.drop(2)
    assert store.hosts == [5, 9]
    store.reorder([9, 5])
    store.put({2: taken})
    assert store.hosts == [9, 5, 2]
    for host, row in before.items():
        now = store.get(host)
        for name in row.tensors:
            assert torch.equal(now.tensors[name], row.tensors[name])
        for name, moment in row.moments["exp_avg"].items():
            assert torch.equal(now.moments["exp_avg"][name], moment)


def test_a_copy_is_independent_and_nonfinite_rows_are_found() -> None:
    store = RowStore(nn.BatchNorm1d(2), ("exp_avg",))
    store.put({host: Row.of_module(nn.BatchNorm1d(2)) for host in (3, 4, 8)})
    twin = store.copied()
    store.values[1, 0] = torch.nan
    store.buffers["running_var"][2, 1] = torch.inf
    store.steps += 1
    assert store.find_nonfinite() == [4, 8]
    assert twin.find_nonfinite() == []
    assert twin.steps.tolist() == [0.0, 0.0, 0.0]

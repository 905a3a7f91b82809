"""Adapters name what is missing: a package, an option or a metric."""

from __future__ import annotations

import importlib
import math
import sys

import pytest
import torch
from torch import nn

import esper
from esper.errors import ConfigError
from esper.integrations.adapters import MetricNames, check_gradients, require_options


@pytest.mark.parametrize(
    ("adapter", "package"),
    [("lightning", "lightning"), ("transformers", "transformers"), ("accelerate", "accelerate")],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    adapter: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [each for each in sys.modules if each.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"esper.integrations.{adapter}", raising=False)
    with pytest.raises(ConfigError, match=rf'{package}.*pip install "esper-lite\[{adapter}\]"'):
        importlib.import_module(f"esper.integrations.{adapter}")


def test_an_overflow_of_a_scaled_loss_drops_the_gradients() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.ones(2, 3)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    grower = esper.Grower(
        model, optimizer, epochs=1, controller="no-growth", sample_input=x, scaler=scaler
    )
    for factor, is_dropped in ((1.0, False), (math.inf, True)):
        optimizer.zero_grad()
        scaler.scale((model(x) * factor).sum()).backward()
        scaler.unscale_(optimizer)
        assert check_gradients(grower) is not is_dropped
        assert (model[0].weight.grad is None) is is_dropped
        scaler.step(optimizer)
        scaler.update()
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    assert scaler.get_scale() == 2.0


def test_an_unknown_option_is_named_with_the_nearest_one() -> None:
    require_options({"controller": "no-growth", "seed": 1})
    with pytest.raises(ConfigError, match=r"'controler'.*'controller'"):
        require_options({"controler": "wait"})


def test_a_metric_that_is_needed_is_named_with_those_that_there_are() -> None:
    assert MetricNames("acc", "loss").read({"acc": torch.tensor(0.5)}) == {"score": 0.5}
    assert MetricNames(None, "loss").read({"loss": 2, "acc": 1}) == {"val_loss": 2.0}
    with pytest.raises(ConfigError, match=r"'loss'.*acc"):
        MetricNames(None, "loss").read({"acc": 0.5})
    with pytest.raises(ConfigError, match="both None"):
        MetricNames(None, None)

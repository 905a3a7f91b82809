"""Data are tried on the design once for each kind, and every kind that does not fit is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from esper.errors import ConfigError
from esper.growth.hosts import make_host
from esper.growth.populations import CrossEntropy, HostData, HostSpec
from esper.growth.populations.data_check import DataCheck
from tests.growth.populations.worlds import GPT, MLP, make_data


def spec_of(inputs: Tensor, targets: Tensor) -> HostSpec:
    return HostSpec(seed=0, data=HostData(inputs, targets, inputs, targets))


def test_data_of_a_kind_that_was_seen_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    check, calls = DataCheck(make_host(MLP), CrossEntropy()), []
    monkeypatch.setattr(check.template, "forward", lambda x: calls.append(x) or torch.zeros(2, 3))
    targets = torch.tensor([0, 1, 2, 0])
    for _ in range(3):
        check.require_fit(0, spec_of(torch.randn(4, 6), targets))
    assert len(calls) == 1
    check.require_fit(0, spec_of(torch.randn(4, 6), targets.clamp(max=1)))
    assert len(calls) == 2


def test_data_that_do_not_fit_are_refused_whatever_was_seen_before() -> None:
    check = DataCheck(make_host(MLP), CrossEntropy())
    good = make_data(MLP, 8, seed=0)
    check.require_fit(0, HostSpec(seed=0, data=good))
    with pytest.raises(ConfigError, match="the data of host 3 do not fit the model: a target is 3"):
        check.require_fit(3, spec_of(good.train_inputs, torch.full((8,), 3)))
    with pytest.raises(ConfigError, match="do not fit"):
        check.require_fit(0, spec_of(good.train_inputs[:, :5], good.train_targets))
    with pytest.raises(ConfigError, match="do not fit"):
        check.require_fit(0, spec_of(good.train_inputs.double(), good.train_targets))
    tokens = DataCheck(make_host(GPT), CrossEntropy())
    check_data = make_data(GPT, 8, seed=0)
    tokens.require_fit(0, HostSpec(seed=0, data=check_data))
    unknown = check_data.train_inputs.clone()
    unknown[0, 0] = GPT.vocabulary
    with pytest.raises(ConfigError, match="do not fit"):
        tokens.require_fit(0, spec_of(unknown, check_data.train_targets))

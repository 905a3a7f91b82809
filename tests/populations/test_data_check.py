"""Data are tried on the design once for each kind, and every kind that does not fit is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.config.growth import HostConfig
from esper.errors import ConfigError, ShapeError, UnsupportedHostError
from esper.growth.hosts import make_host
from esper.growth.placement import add_slots
from esper.populations import (
    CrossEntropy,
    HostData,
    HostSpec,
    Population,
    SequentialPopulation,
    StackedPopulation,
    make_population,
)
from esper.populations.host_data import DataCheck
from tests.populations.worlds import GPT, MLP, Builder, make_data, make_specs

FORMS = [SequentialPopulation, StackedPopulation]


def spec_of(inputs: Tensor, targets: Tensor) -> HostSpec:
    return HostSpec(seed=0, data=HostData(inputs, targets, inputs, targets))


def test_data_of_a_kind_that_was_seen_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    check, calls = DataCheck(make_host(MLP), CrossEntropy()), []
    monkeypatch.setattr(
        check.template, "forward", lambda x: calls.append(x) or torch.zeros(len(x), 3)
    )
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


def with_final(config: HostConfig, seed: int = 0) -> HostData:
    data = make_data(config, 16, seed)
    return replace(
        data,
        final_inputs=data.validation_inputs.clone(),
        final_targets=data.validation_targets.clone(),
    )


@pytest.mark.parametrize("split", ["train", "validation", "final"])
@pytest.mark.parametrize("form", FORMS)
def test_a_token_that_is_not_known_is_found_wherever_it_is(
    form: type[Population], split: str
) -> None:
    data = with_final(GPT)
    population = form(Builder(GPT), [HostSpec(seed=0, data=data)])
    spoilt = getattr(data, f"{split}_inputs").clone()
    spoilt[-1, 3] = GPT.vocabulary
    spec = HostSpec(seed=0, data=replace(data, **{f"{split}_inputs": spoilt}))
    where = "" if split == "train" else f" in its {split} split"
    with pytest.raises(ConfigError, match=f"data of host 0 do not fit the model{where}: index out"):
        form(Builder(GPT), [spec])
    with pytest.raises(ConfigError, match="data of host 0 do not fit the model"):
        population.restart(0, spec)


@pytest.mark.parametrize("split", ["validation", "final"])
def test_a_class_that_there_is_not_is_found_in_every_split(split: str) -> None:
    data = with_final(MLP)
    targets = getattr(data, f"{split}_targets").clone()
    targets[-1] = -1
    spec = HostSpec(seed=0, data=replace(data, **{f"{split}_targets": targets}))
    with pytest.raises(ConfigError, match=f"in its {split} split: a target is -1; there are 3"):
        StackedPopulation(Builder(MLP), [spec])


@pytest.mark.parametrize("split", ["validation", "final"])
@pytest.mark.parametrize("part", ["inputs", "targets"])
def test_splits_of_several_forms_are_refused_by_name(split: str, part: str) -> None:
    data = with_final(MLP)
    other = getattr(data, f"{split}_{part}").to(torch.float64)
    spec = HostSpec(seed=0, data=replace(data, **{f"{split}_{part}": other}))
    message = f"host 0 are not of one form: .* its {split} split .*float64 {part}"
    with pytest.raises(ConfigError, match=message):
        StackedPopulation(Builder(MLP), [spec])
    narrow = data.validation_inputs[:, :5]
    with pytest.raises(ConfigError, match=r"inputs \[6\] .* its validation split .* inputs \[5\]"):
        StackedPopulation(
            Builder(MLP), [HostSpec(seed=0, data=replace(data, validation_inputs=narrow))]
        )


class _Odd(nn.Module):
    """A model that does what it is told once its slots are in place."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(6, 3)
        self.answer: Any = None

    def forward(self, x: Tensor) -> Any:
        y = self.block(x)
        return y if self.answer is None else self.answer(y)


class _OddError(Exception):
    """An error of a user's own, without words."""


def _fail(y: Tensor) -> Tensor:
    raise _OddError


ANSWERS: dict[str, tuple[Any, str]] = {
    "a mapping": (lambda y: {"logits": y}, "it returns a dict; a tensor is needed"),
    "a tuple": (lambda y: (y, y), r"it returns a tuple of \(a float32 tensor"),
    "nothing": (lambda y: [], r"it returns a list of \(\); a tensor is needed"),
    "an error": (_fail, "_OddError"),
    "a number": (lambda y: y.sum(), r"it returns a float32 tensor of shape \[\]; a tensor"),
}


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("form", FORMS)
def test_whatever_a_model_does_becomes_one_line(form: type[Population], kind: str) -> None:
    answer, message = ANSWERS[kind]

    def build(seed: int) -> nn.Module:
        model = _Odd()
        add_slots(model, ["block"], torch.zeros(2, 6))
        model.answer = answer
        return model

    with pytest.raises(
        ConfigError, match=f"the data of host 0 do not fit the model: .*{message}"
    ) as e:
        form(build, make_specs(MLP, (8, 8)))
    assert "\n" not in str(e.value)


class _Total(CrossEntropy):
    """An objective with one number for all samples."""

    def metrics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().metrics(outputs, targets).mean()


def test_an_objective_without_a_number_for_each_sample_is_refused() -> None:
    with pytest.raises(ConfigError, match="the objective's metrics returns a float32 tensor of"):
        SequentialPopulation(Builder(MLP), make_specs(MLP, (8,)), objective=_Total())


@pytest.mark.parametrize("form", FORMS)
def test_samples_that_want_a_gradient_get_none(form: type[Population]) -> None:
    plain = make_specs(MLP, (8, 16))
    wanting = [
        replace(
            spec,
            data=replace(spec.data, train_inputs=spec.data.train_inputs.clone().requires_grad_()),
        )
        for spec in plain
    ]
    first, second = form(Builder(MLP), plain), form(Builder(MLP), wanting)
    for population in (first, second):
        population.train_epoch()
        population.restart(0, population.specs[1])
        population.train_epoch()
    for name, tensor in first.get_state(0).tensors.items():
        assert torch.equal(tensor, second.get_state(0).tensors[name])


def sequences_of(length: int, seed: int = 0) -> HostSpec:
    data = make_data(replace(GPT, context=length), 12, seed)
    return HostSpec(seed=seed, data=data)


def test_hosts_whose_samples_have_several_shapes_are_trained_one_by_one() -> None:
    specs = [sequences_of(6, 0), sequences_of(4, 1)]
    with pytest.raises(UnsupportedHostError, match=r"host 1 learns from int64 inputs \[4\]"):
        StackedPopulation(Builder(GPT), specs)
    population = make_population(Builder(GPT), specs)
    assert isinstance(population, SequentialPopulation)
    assert np.isfinite(population.train_epoch().losses).all()
    population.restart(0, sequences_of(5, 2))
    stacked = StackedPopulation(Builder(GPT), [specs[0], specs[0]])
    before = stacked.get_state(1).tensors
    with pytest.raises(ConfigError, match=r"host 1 learns from .* \[4\]; .* here .* \[6\]"):
        stacked.restart(1, specs[1])
    stacked.train_epoch()
    assert stacked.specs[1] is specs[0]
    assert before.keys() < stacked.get_state(1).tensors.keys()


@pytest.mark.parametrize("form", FORMS)
def test_only_hosts_that_have_a_split_are_judged_by_it(form: type[Population]) -> None:
    data = with_final(MLP, 1)
    specs = [make_specs(MLP, (16,))[0], HostSpec(seed=1, data=data)]
    population = form(Builder(MLP), specs)
    final = population.evaluate("final", hosts=[1])
    validation = population.evaluate(hosts=[1])
    np.testing.assert_array_equal(final.losses, validation.losses)
    for hosts in (None, [0], [1, 0]):
        with pytest.raises(ShapeError, match="no final split"):
            population.evaluate("final", hosts=hosts)
    population.restart(0, HostSpec(seed=3, data=data))
    population.restart(1, specs[0])
    judged = population.evaluate("final", hosts=[0]).losses
    np.testing.assert_array_equal(judged, population.evaluate(hosts=[0]).losses)

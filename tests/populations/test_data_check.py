"""Data are checked against the design once for each kind, and rejected if they do not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from esper.config.growth import HostConfig
from esper.errors import ConfigError, ShapeError
from esper.growth.hosts import make_host
from esper.growth.placement import add_slots
from esper.populations import (
    CrossEntropy,
    HostData,
    HostSpec,
    make_population,
)
from esper.populations.host_data import DataCheck
from tests.populations.worlds import (
    GPT,
    MLP,
    Builder,
    compiled,
    in_torch,
    make_data,
    make_specs,
)


def spec_of(inputs: Tensor, targets: Tensor) -> HostSpec:
    return HostSpec(seed=0, data=HostData(inputs, targets, inputs, targets))


def check_of(model: nn.Module) -> Callable[[int, HostSpec], None]:
    check, objective = DataCheck(), CrossEntropy()
    return lambda host, spec: check.require_fit(host, spec, model, ("design",), objective)


def test_each_kind_of_data_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = make_host(MLP), []
    monkeypatch.setattr(model, "forward", lambda x: calls.append(x) or torch.zeros(len(x), 3))
    check = check_of(model)
    targets = torch.tensor([0, 1, 2, 0])
    for _ in range(3):
        check(0, spec_of(torch.randn(4, 6), targets))
    assert len(calls) == 1
    check(0, spec_of(torch.randn(4, 6), targets.clamp(max=1)))
    assert len(calls) == 2


def test_data_that_do_not_fit_are_rejected_after_data_that_do() -> None:
    check = check_of(make_host(MLP))
    good = make_data(MLP, 8, seed=0)
    check(0, HostSpec(seed=0, data=good))
    with pytest.raises(ConfigError, match=r"host 3 .*target 3"):
        check(3, spec_of(good.train_inputs, torch.full((8,), 3)))
    with pytest.raises(ConfigError, match="do not fit"):
        check(0, spec_of(good.train_inputs[:, :5], good.train_targets))
    with pytest.raises(ConfigError, match="do not fit"):
        check(0, spec_of(good.train_inputs.double(), good.train_targets))
    tokens = check_of(make_host(GPT))
    check_data = make_data(GPT, 8, seed=0)
    tokens(0, HostSpec(seed=0, data=check_data))
    unknown = check_data.train_inputs.clone()
    unknown[0, 0] = GPT.vocabulary
    with pytest.raises(ConfigError, match="do not fit"):
        tokens(0, spec_of(unknown, check_data.train_targets))


def with_final(config: HostConfig, seed: int = 0) -> HostData:
    data = make_data(config, 16, seed)
    return replace(
        data,
        final_inputs=data.validation_inputs.clone(),
        final_targets=data.validation_targets.clone(),
    )


@pytest.mark.parametrize("split", ["train", "validation", "final"])
def test_an_unknown_token_is_found_anywhere(split: str) -> None:
    data = with_final(GPT)
    population = compiled(Builder(GPT), [HostSpec(seed=0, data=data)])
    spoilt = getattr(data, f"{split}_inputs").clone()
    spoilt[-1, 3] = GPT.vocabulary
    spec = HostSpec(seed=0, data=replace(data, **{f"{split}_inputs": spoilt}))
    where = "" if split == "train" else f" in its {split} split"
    with pytest.raises(ConfigError, match=rf"host 0 .*{where}: index out"):
        compiled(Builder(GPT), [spec])
    with pytest.raises(ConfigError, match="data of host 0 do not fit the model"):
        population.restart(0, spec)


@pytest.mark.parametrize("split", ["validation", "final"])
def test_an_unknown_class_is_found_in_every_split(split: str) -> None:
    data = with_final(MLP)
    targets = getattr(data, f"{split}_targets").clone()
    targets[-1] = -1
    spec = HostSpec(seed=0, data=replace(data, **{f"{split}_targets": targets}))
    with pytest.raises(ConfigError, match=f"{split} split: target -1"):
        compiled(Builder(MLP), [spec])


@pytest.mark.parametrize("split", ["validation", "final"])
@pytest.mark.parametrize("part", ["inputs", "targets"])
def test_splits_with_different_dtypes_or_shapes_are_rejected(split: str, part: str) -> None:
    data = with_final(MLP)
    other = getattr(data, f"{split}_{part}").to(torch.float64)
    spec = HostSpec(seed=0, data=replace(data, **{f"{split}_{part}": other}))
    message = f"host 0 .* its {split} split .*float64 {part}"
    with pytest.raises(ConfigError, match=message):
        compiled(Builder(MLP), [spec])
    narrow = data.validation_inputs[:, :5]
    with pytest.raises(ConfigError, match=r"inputs \[6\] .* its validation split .* inputs \[5\]"):
        compiled(Builder(MLP), [HostSpec(seed=0, data=replace(data, validation_inputs=narrow))])


class _Odd(nn.Module):
    """A model with configurable output once its slots are in place."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(6, 3)
        self.answer: Any = None

    def forward(self, x: Tensor) -> Any:
        y = self.block(x)
        return y if self.answer is None else self.answer(y)


class _OddError(Exception):
    """A user's error without a message."""


def _fail(y: Tensor) -> Tensor:
    raise _OddError


ANSWERS: dict[str, tuple[Any, str]] = {
    "a mapping": (lambda y: {"logits": y}, "returns a dict"),
    "a tuple": (lambda y: (y, y), r"it returns a tuple of \(a float32 tensor"),
    "nothing": (lambda y: [], r"returns a list of \(\)"),
    "an error": (_fail, "_OddError"),
    "a number": (lambda y: y.sum(), r"returns a float32 tensor of shape \[\]"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_any_failure_of_a_model_becomes_a_one_line_error(kind: str) -> None:
    answer, message = ANSWERS[kind]

    def build(seed: int) -> nn.Module:
        model = _Odd()
        add_slots(model, ["block"], torch.zeros(2, 6))
        model.answer = answer
        return model

    with pytest.raises(ConfigError, match=rf"host 0 .*{message}") as e:
        compiled(build, make_specs(MLP, (8, 8)))
    assert "\n" not in str(e.value)


class _Total(CrossEntropy):
    """An objective that returns one number for all samples."""

    def metrics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().metrics(outputs, targets).mean()


def test_an_objective_must_return_a_number_for_each_sample() -> None:
    with pytest.raises(ConfigError, match="metrics returns a float32 tensor"):
        in_torch(Builder(MLP), make_specs(MLP, (8,)), objective=_Total())


def test_samples_get_no_gradient() -> None:
    plain = make_specs(MLP, (8, 16))
    wanting = [
        replace(
            spec,
            data=replace(spec.data, train_inputs=spec.data.train_inputs.clone().requires_grad_()),
        )
        for spec in plain
    ]
    first, second = compiled(Builder(MLP), plain), compiled(Builder(MLP), wanting)
    for population in (first, second):
        population.train_epoch()
        population.restart(0, population.specs[1])
        population.train_epoch()
    for name, tensor in first.get_state(0).tensors.items():
        assert torch.equal(tensor, second.get_state(0).tensors[name])


def sequences_of(length: int, seed: int = 0) -> HostSpec:
    data = make_data(replace(GPT, context=length), 12, seed)
    return HostSpec(seed=seed, data=data)


def test_hosts_may_have_samples_of_different_shapes() -> None:
    population = make_population(Builder(GPT), [sequences_of(6, 0), sequences_of(4, 1)])
    assert np.isfinite(population.train_epoch().losses).all()
    population.restart(0, sequences_of(5, 2))
    assert np.isfinite(population.train_epoch().losses).all()


def test_only_hosts_with_a_split_are_evaluated_on_it() -> None:
    data = with_final(MLP, 1)
    specs = [make_specs(MLP, (16,))[0], HostSpec(seed=1, data=data)]
    population = compiled(Builder(MLP), specs)
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

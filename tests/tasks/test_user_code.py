"""A user's host factory that fails is reported on one line."""

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from esper import add_slots, compare
from esper.config.growth import MLPHostConfig, PopulationConfig
from esper.environment import GrowthVectorEnv
from esper.errors import SlotError, TaskError
from esper.growth.hosts import HostMaker
from esper.tasks import Budget, Task, TaskData, TaskDraw

X = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
DATA = TaskData.cut(X, torch.arange(60) % 2, sizes=(20, 20, 20))
CONFIG = MLPHostConfig(n_features=2, n_classes=2, width=4, hidden=2)


def own_host(seed: int) -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    for index, parameter in enumerate(model.parameters()):
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(seed + index))
    add_slots(model, at=["1"], sample_input=X[:2])
    return model


def a_task(**fields: Any) -> Task:
    return Task(
        **{
            "name": "mine",
            "make_host": own_host,
            "data": DATA,
            "budget": Budget(n_epochs=2),
            "training": PopulationConfig(batch_size=20, batches_per_epoch=1),
            **fields,
        }
    )


def fail(seed: int) -> nn.Module:
    raise KeyError("weights\nof seed")


def leave(seed: int) -> nn.Module:
    raise SystemExit(2)


def slotless(seed: int) -> nn.Module:
    return nn.Linear(2, 2)


WRONG = [
    (fail, r"raised KeyError \('weights\\nof seed'\) for seed \d+"),
    (leave, r"raised SystemExit \(2\) for seed \d+"),
    (lambda seed: None, "returned None"),
    (lambda seed: nn.Linear, "returned <class .*Linear'>"),
    (lambda seed: torch.zeros(9, 9), "returned tensor"),
    (slotless, "returned .*Linear has no slots"),
]


@pytest.mark.parametrize("form", ["torch", "auto"])
@pytest.mark.parametrize(("make_host", "message"), WRONG)
def test_a_factory_that_returns_no_host_is_reported(
    make_host: Any, message: str, form: Any
) -> None:
    with pytest.raises(TaskError, match=f"^make_host of task 'mine' {message}") as caught:
        GrowthVectorEnv(a_task(make_host=make_host), 2, form=form)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("make_host", "message"), WRONG)
def test_a_drawn_factory_that_returns_no_host_is_reported(make_host: Any, message: str) -> None:
    def draw(seed: int) -> TaskDraw:
        return TaskDraw(data=DATA, n_classes=2, make_host=make_host, title=f"seed {seed}")

    with pytest.raises(TaskError, match=f"^make_host of a draw of task 'mine' {message}"):
        GrowthVectorEnv(a_task(data=None, draw=draw), 2)


def test_a_drawn_factory_must_take_a_seed() -> None:
    task = a_task(
        data=None, draw=lambda seed: TaskDraw(data=DATA, n_classes=2, make_host=lambda: own_host(0))
    )
    with pytest.raises(TaskError, match=r"make_host of a draw of task 'mine' takes \(\)"):
        task.sample(0)


def test_an_error_of_esper_passes_unchanged() -> None:
    def make_host(seed: int) -> nn.Module:
        model = nn.Linear(2, 2)
        add_slots(model, at=["nowhere"], sample_input=X[:2])
        return model

    with pytest.raises(SlotError, match="nowhere"):
        a_task(make_host=make_host).make_host(0)


@pytest.mark.parametrize(
    "make_host",
    [own_host, partial(own_host), lambda seed=3: own_host(seed), lambda *a: own_host(*a)],
)
def test_checking_does_not_change_the_hosts_of_a_factory(make_host: Any) -> None:
    task = a_task(make_host=make_host)
    for one, other in zip(own_host(7).parameters(), task.make_host(7).parameters(), strict=True):
        assert torch.equal(one, other)
    envs = GrowthVectorEnv(task, 2)
    envs.reset(seed=0)
    assert np.isfinite(envs.step(np.zeros((2, 8), int))[1]).all()


def test_factories_of_esper_are_not_wrapped() -> None:
    maker = HostMaker(CONFIG)
    task = a_task(make_host=maker)
    assert task.make_host is maker
    drawn = TaskDraw(data=DATA, n_classes=2, make_host=maker)
    assert a_task(data=None, draw=lambda seed: drawn).sample(0) is drawn


def test_a_task_can_be_copied_and_changed() -> None:
    task = a_task()
    assert copy.deepcopy(task).make_host(3).training
    assert replace(task, name="other").make_host is task.make_host


def test_a_factory_that_returns_one_model_is_reported() -> None:
    model = own_host(0)
    with pytest.raises(TaskError, match=r"^make_host of task 'mine' returned the model of another"):
        GrowthVectorEnv(a_task(make_host=lambda seed: model), 2)
    GrowthVectorEnv(a_task(make_host=lambda seed: copy.deepcopy(model)), 2)


@pytest.mark.parametrize("own_test", [False, True])
def test_a_draw_that_ignores_its_seed_is_reported(own_test: bool) -> None:
    def draw(seed: int) -> TaskDraw:
        data = DATA
        if own_test and seed % 7 == 6:
            data = replace(data, test=replace(data.test, inputs=data.test.inputs + seed))
        return TaskDraw(data=data, n_classes=2)

    task = a_task(data=None, draw=draw)
    if own_test:
        GrowthVectorEnv(task, 1)
        return
    with pytest.raises(TaskError, match=r"^draw of task 'mine' returned the same draw"):
        GrowthVectorEnv(task, 1)
    with pytest.raises(TaskError, match=r"^draw of task 'mine' returned the same draw"):
        compare(["no-growth", "random"], task=task, hosts=2)

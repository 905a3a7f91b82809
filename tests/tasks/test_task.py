"""A task has data or a distribution of them, and a metric that becomes a score."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from esper.errors import BadDataError, ConfigError, TaskError
from esper.growth.populations import CrossEntropy
from esper.tasks import ACCURACY, Metric, Samples, Task, TaskData, TaskDraw, bits_per_character


def some_data(n_classes: int = 3, n: int = 6) -> TaskData:
    def samples() -> Samples:
        return Samples(torch.zeros(n, 2), torch.arange(n) % n_classes)

    return TaskData(train=samples(), validation=samples(), test=samples())


def a_task(**fields: Any) -> Task:
    return Task(**{"name": "mine", "make_host": lambda seed: nn.Identity(), **fields})


def test_fixed_data_are_the_same_for_every_seed_and_their_classes_are_counted() -> None:
    data = some_data(n_classes=3)
    task = a_task(data=data)
    drawn = task.sample(0)
    assert drawn is task.sample(12)
    assert drawn.data is data
    assert (drawn.n_classes, drawn.learning_rate, drawn.make_host, drawn.facts) == (
        3,
        None,
        None,
        {},
    )
    with pytest.raises(BadDataError, match=r"'mine', train split: there is no sample of class 3"):
        a_task(data=data, n_classes=4).sample(0)


def test_a_distribution_is_asked_with_the_seed_and_looked_at_each_time() -> None:
    seeds: list[int] = []

    def draw(seed: int) -> TaskDraw:
        seeds.append(seed)
        return TaskDraw(data=some_data(), n_classes=3 if seed < 5 else 4)

    task = a_task(draw=draw)
    assert task.sample(3).n_classes == 3
    assert task.sample(3) is not task.sample(4)
    assert seeds == [3, 3, 4]
    with pytest.raises(BadDataError, match=r"no sample of class 3"):
        task.sample(5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "task 'mine' has neither data nor draw; it must have exactly one"),
        ({"data": some_data(), "draw": lambda seed: None}, "'mine' has both data and draw"),
        ({"draw": lambda seed: None, "n_classes": 3}, "has draw and n_classes 3"),
        ({"data": some_data(), "make_host": None}, "make_host of task 'mine' is None"),
        ({"data": some_data(), "make_host": 7}, "make_host of task 'mine' is 7"),
        ({"draw": 7}, "draw of task 'mine' is 7; it must be a function of a seed"),
        ({"data": [1]}, "data of task 'mine' is a list; it must be a TaskData"),
        ({"data": some_data(), "name": ""}, "a task's name is ''"),
    ],
)
def test_a_task_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        a_task(**fields)


def test_seeds_are_whole_numbers() -> None:
    with pytest.raises(ConfigError, match="seed is -1; it must be a whole number of at least 0"):
        a_task(data=some_data()).sample(-1)


def test_classes_that_cannot_be_counted_are_named() -> None:
    empty = Samples(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))
    data = TaskData(train=empty, validation=empty, test=empty)
    with pytest.raises(BadDataError, match="task 'mine': the classes of its targets cannot be"):
        a_task(data=data).sample(0)


def test_what_is_drawn_must_be_a_draw() -> None:
    with pytest.raises(BadDataError, match="task 'mine' gave a dict; it must give a TaskDraw"):
        a_task(draw=lambda seed: {}).sample(0)


def test_scores_are_nought_for_guessing_and_one_for_perfect() -> None:
    bits = bits_per_character(64)
    assert (bits.score(6.0), bits.score(0.0), bits.score(1.5)) == (0.0, 1.0, 0.75)
    assert not bits.is_higher_better
    assert ACCURACY.is_higher_better
    np.testing.assert_allclose(ACCURACY.score(np.array([0.0, 0.3, 1.0])), [0.0, 0.3, 1.0])
    torch.testing.assert_close(bits.score(torch.tensor([3.0])), torch.tensor([0.5]))


@pytest.mark.parametrize(("worst", "best"), [(1.0, 1.0), (math.nan, 1.0), (0.0, math.inf)])
def test_a_metric_without_a_range_is_refused(worst: float, best: float) -> None:
    with pytest.raises(TaskError, match="metric 'flat' goes from worst"):
        Metric(name="flat", objective=CrossEntropy(), worst=worst, best=best)


def test_bits_are_minus_the_binary_logarithm_of_the_probability() -> None:
    # Probabilities 1/2, 1/4, 1/8, 1/8 cost 1, 2, 3 and 3 bits.
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log().expand(1, 4, 4)
    targets = torch.tensor([[0, 1, 2, 3]])
    objective = bits_per_character(4).objective
    bits = objective.metrics(logits, targets)
    torch.testing.assert_close(bits, torch.tensor([[1.0, 2.0, 3.0, 3.0]]))
    nats = objective.losses(logits, targets)
    torch.testing.assert_close(nats, bits * math.log(2))


def test_a_model_that_knows_nothing_needs_as_many_bits_as_guessing() -> None:
    metric = bits_per_character(70)
    bits = metric.objective.metrics(torch.zeros(5, 3, 70), torch.randint(70, (5, 3)))
    assert float(bits.mean()) == pytest.approx(math.log2(70)) == pytest.approx(metric.worst)

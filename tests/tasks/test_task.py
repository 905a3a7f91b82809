"""A task has data or a distribution of them, and a metric that becomes a score."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from esper.errors import BadDataError, ConfigError, TaskError
from esper.populations import CrossEntropy
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
        ({"data": [1]}, r"data of task 'mine' is \[1\]; it must be a TaskData"),
        ({"data": [1] * 99}, "data of task 'mine' is a list; it must be a TaskData"),
        ({"data": some_data(), "budget": 5}, "budget of task 'mine' is 5; it must be a Budget"),
        ({"data": some_data(), "metric": "accuracy"}, "'accuracy'; it must be a Metric"),
        ({"data": some_data(), "training": {}}, "training .* {}; it must be a PopulationConfig"),
        ({"data": some_data(), "training": None}, "is None; it must be a PopulationConfig"),
        ({"data": some_data(), "growth": {}}, "growth of .* is {}; it must be a GrowthConfig"),
        ({"data": some_data(), "n_classes": 2.0}, r"task 'mine' has 2\.0 classes"),
        ({"data": some_data(), "n_classes": True}, "task 'mine' has True classes"),
        ({"data": some_data(), "make_host": lambda: 1}, r"make_host of task 'mine' takes \(\), so"),
        (
            {"data": some_data(), "make_host": lambda *, seed: 1},
            r"takes \(\*, seed\), so .* seed, gi",
        ),
        (
            {"draw": lambda: 1},
            r"draw of task 'mine' takes \(\), so it cannot be called with a seed",
        ),
        ({"data": some_data(), "name": ""}, "a task's name is ''"),
    ],
)
def test_a_task_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        a_task(**fields)


def test_seeds_are_whole_numbers() -> None:
    with pytest.raises(ConfigError, match="seed is -1; it must be a whole number of at least 0"):
        a_task(data=some_data()).sample(-1)


def test_data_are_looked_at_before_their_classes_are_counted() -> None:
    empty = Samples(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))
    listed = Samples([[1.0]], [0])  # type: ignore[arg-type]
    for wrong, message in ((empty, "none may be empty"), (listed, "list and list; they must be")):
        data = TaskData(train=wrong, validation=wrong, test=wrong)
        with pytest.raises(BadDataError, match=f"task 'mine', train split: .*{message}"):
            a_task(data=data).sample(0)


def test_what_is_drawn_must_be_a_draw() -> None:
    with pytest.raises(BadDataError, match="task 'mine' gave a dict; it must give a TaskDraw"):
        a_task(draw=lambda seed: {}).sample(0)
    for fields, error, message in (
        ({"data": None}, BadDataError, "data of a TaskDraw is a NoneType; it must be a TaskData"),
        ({"learning_rate": "a"}, ConfigError, "learning_rate of a TaskDraw is 'a'"),
        ({"learning_rate": math.nan}, ConfigError, "nan; it must be a finite number greater than"),
        ({"learning_rate": 0}, ConfigError, "is 0; it must be a finite number greater than 0"),
        ({"make_host": 7}, TaskError, "make_host of a TaskDraw is 7; it must be a function of a"),
    ):
        draw_fields: dict[str, Any] = {"data": some_data(), "n_classes": 3, **fields}
        with pytest.raises(error, match=message):
            a_task(draw=lambda seed, given=draw_fields: TaskDraw(**given)).sample(0)


def test_a_draw_that_fails_is_named_with_its_seed() -> None:
    with pytest.raises(TaskError) as caught:
        a_task(draw=lambda seed: 1 // (seed - 5)).sample(5)
    assert str(caught.value) == (
        "draw of task 'mine' raised ZeroDivisionError (integer division or modulo by zero) for "
        "seed 5; correct it."
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_numbers_of_numpy_are_numbers() -> None:
    drawn = TaskDraw(data=some_data(), n_classes=np.int64(3), learning_rate=np.float32(0.5))  # type: ignore[arg-type]
    given = a_task(draw=lambda seed: drawn).sample(np.int64(1))  # type: ignore[arg-type]
    assert (given.n_classes, given.learning_rate) == (3, 0.5)
    assert (type(given.n_classes), type(given.learning_rate)) == (int, float)
    fixed = a_task(data=some_data(), n_classes=np.int16(3)).sample(0)
    assert type(fixed.n_classes) is int


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("wrong", [None, (torch.zeros(6, 2), torch.arange(6) % 3)])
def test_splits_are_samples(split: str, wrong: Any) -> None:
    samples = dict(some_data().splits())
    kind = type(wrong).__name__
    with pytest.raises(BadDataError, match=rf"the {split} split of a TaskData is a {kind}; .* Sam"):
        TaskData(**{**samples, split: wrong})


def test_scores_are_nought_for_guessing_and_one_for_perfect() -> None:
    bits = bits_per_character(64)
    assert (bits.score(6.0), bits.score(0.0), bits.score(1.5)) == (0.0, 1.0, 0.75)
    np.testing.assert_allclose(ACCURACY.score(np.array([0.0, 0.3, 1.0])), [0.0, 0.3, 1.0])
    torch.testing.assert_close(bits.score(torch.tensor([3.0])), torch.tensor([0.5]))


@pytest.mark.parametrize(
    ("worst", "best"),
    [(1.0, 1.0), (math.nan, 1.0), (0.0, math.inf), ("a", 1.0), (0.0, None), (False, 1.0)],
)
def test_a_metric_without_a_range_is_refused(worst: float, best: float) -> None:
    with pytest.raises(TaskError, match="metric 'flat' goes from worst"):
        Metric(name="flat", objective=CrossEntropy(), worst=worst, best=best)


@pytest.mark.parametrize("objective", [None, CrossEntropy, nn.CrossEntropyLoss(), "accuracy"])
def test_a_metric_needs_losses_and_metrics(objective: Any) -> None:
    with pytest.raises(TaskError, match=r"objective of metric 'mine' is .* losses and metrics"):
        Metric(name="mine", objective=objective, worst=0.0, best=1.0)


def test_a_metric_has_plain_numbers_and_a_name() -> None:
    metric = Metric(name="mine", objective=CrossEntropy(), worst=np.float32(0), best=1)  # type: ignore[arg-type]
    assert (type(metric.worst), metric.score(0.25)) == (float, 0.25)
    with pytest.raises(TaskError, match="a metric's name is 7; it must be a word"):
        Metric(name=7, objective=CrossEntropy(), worst=0.0, best=1.0)  # type: ignore[arg-type]


def test_bits_are_minus_the_binary_logarithm_of_the_probability() -> None:
    # Probabilities 1/2, 1/4, 1/8, 1/8 cost 1, 2, 3 and 3 bits.
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log().expand(1, 4, 4)
    targets = torch.tensor([[0, 1, 2, 3]])
    objective = bits_per_character(4).objective
    bits = objective.metrics(logits, targets)
    torch.testing.assert_close(bits, torch.tensor([[1.0, 2.0, 3.0, 3.0]]))
    nats = objective.losses(logits, targets)
    torch.testing.assert_close(nats, bits * math.log(2))


@pytest.mark.parametrize("vocabulary", [0, 1, "a", 2.5])
def test_a_text_has_at_least_two_characters(vocabulary: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"vocabulary is .*; it must be a whole number of at least"
    ):
        bits_per_character(vocabulary)


def test_a_model_that_knows_nothing_needs_as_many_bits_as_guessing() -> None:
    metric = bits_per_character(70)
    bits = metric.objective.metrics(torch.zeros(5, 3, 70), torch.randint(70, (5, 3)))
    assert float(bits.mean()) == pytest.approx(math.log2(70)) == pytest.approx(metric.worst)

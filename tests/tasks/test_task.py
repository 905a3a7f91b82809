"""Tasks validate their fields, and metrics are converted to scores."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from esper.errors import BadDataError, ConfigError, TaskError
from esper.populations import CrossEntropy, SquaredError
from esper.tasks import (
    ACCURACY,
    RELATIVE_ERROR,
    Metric,
    Samples,
    Task,
    TaskData,
    TaskDraw,
    bits_per_character,
)


def some_data(n_classes: int = 3, n: int = 6) -> TaskData:
    def samples() -> Samples:
        return Samples(torch.zeros(n, 2), torch.arange(n) % n_classes)

    return TaskData(train=samples(), validation=samples(), test=samples())


def a_task(**fields: Any) -> Task:
    return Task(**{"name": "mine", "make_host": lambda seed: nn.Identity(), **fields})


def test_fixed_data_are_the_same_for_every_seed() -> None:
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
    with pytest.raises(BadDataError, match=r"'mine', train split: .* class 3"):
        a_task(data=data, n_classes=4).sample(0)


def some_numbers(value: float = 0.5) -> TaskData:
    return TaskData.cut(torch.zeros(18, 2), torch.full((18,), value), sizes=(6, 6, 6))


def test_numbers_as_targets_have_no_classes() -> None:
    assert a_task(data=some_numbers(), metric=RELATIVE_ERROR).sample(0).n_classes == 0
    assert a_task(data=some_numbers(), metric=RELATIVE_ERROR, n_classes=0).sample(0).n_classes == 0
    with pytest.raises(BadDataError, match=r"float32 .* 3 classes"):
        a_task(data=some_numbers(), metric=RELATIVE_ERROR, n_classes=3).sample(0)
    with pytest.raises(BadDataError, match=r"6 targets .* nan"):
        a_task(data=some_numbers(math.nan), metric=RELATIVE_ERROR).sample(0)


@pytest.mark.parametrize(
    ("data", "n_classes", "right", "wrong"),
    [(some_numbers(), 0, RELATIVE_ERROR, ACCURACY), (some_data(), 3, ACCURACY, RELATIVE_ERROR)],
)
def test_a_metric_must_fit_the_targets(
    data: TaskData, n_classes: int, right: Metric, wrong: Metric
) -> None:
    message = f"task 'mine' has .*{data.train.targets.dtype}.*{wrong.name}".replace("torch.", "")
    with pytest.raises(TaskError, match=message):
        a_task(data=data, metric=wrong).sample(0)
    drawn = TaskDraw(data=data, n_classes=n_classes, metric=right)
    assert a_task(draw=lambda seed: drawn, metric=wrong).sample(0).metric is right
    unfit = TaskDraw(data=data, n_classes=n_classes, metric=wrong)
    with pytest.raises(TaskError, match=message):
        a_task(draw=lambda seed: unfit, metric=right).sample(0)


def test_the_score_of_standardized_numbers_is_r_squared() -> None:
    targets = torch.randn(500, generator=torch.Generator().manual_seed(0)).double()
    targets = (targets - targets.mean()) / targets.std(correction=0)
    outputs = 0.8 * targets[:, None] + 0.1
    found = RELATIVE_ERROR.objective.metrics(outputs, targets).mean().item()
    residual = targets - outputs.squeeze(1)
    expected = 1.0 - float(residual.square().sum() / (targets - targets.mean()).square().sum())
    assert RELATIVE_ERROR.score(found) == pytest.approx(expected)
    assert isinstance(RELATIVE_ERROR.objective, SquaredError)


def test_every_draw_is_validated() -> None:
    seeds: list[int] = []

    def draw(seed: int) -> TaskDraw:
        seeds.append(seed)
        return TaskDraw(data=some_data(), n_classes=3 if seed < 5 else 4)

    task = a_task(draw=draw)
    assert task.sample(3).n_classes == 3
    assert task.sample(3) is not task.sample(4)
    assert seeds == [3, 3, 4]
    with pytest.raises(BadDataError, match="class 3"):
        task.sample(5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "'mine' has neither data nor draw"),
        ({"data": some_data(), "draw": lambda seed: None}, "'mine' has both data and draw"),
        ({"draw": lambda seed: None, "n_classes": 3}, "has draw and n_classes 3"),
        ({"data": some_data(), "make_host": None}, "make_host is None"),
        ({"data": some_data(), "make_host": 7}, "make_host is 7"),
        ({"draw": 7}, "draw is 7"),
        ({"data": [1]}, r"data is \[1\]"),
        ({"data": [1] * 99}, r"data is \[1, 1"),
        ({"data": some_data(), "budget": 5}, "budget is 5"),
        ({"data": some_data(), "metric": "accuracy"}, "metric is 'accuracy'"),
        ({"data": some_data(), "training": {}}, "training is {}"),
        ({"data": some_data(), "training": None}, "training is None"),
        ({"data": some_data(), "growth": {}}, "growth is {}"),
        ({"data": some_data(), "n_classes": 2.0}, r"n_classes is 2\.0"),
        ({"data": some_data(), "n_classes": True}, "n_classes is True"),
        ({"data": some_data(), "make_host": lambda: 1}, r"make_host of task 'mine' takes \(\)"),
        ({"data": some_data(), "make_host": lambda *, seed: 1}, r"takes \(\*, seed\)"),
        ({"draw": lambda: 1}, r"draw of task 'mine' takes \(\)"),
        ({"data": some_data(), "name": ""}, "name is ''"),
    ],
)
def test_an_invalid_task_is_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        a_task(**fields)


def test_a_negative_seed_is_rejected() -> None:
    with pytest.raises(ConfigError, match="seed is -1"):
        a_task(data=some_data()).sample(-1)


def test_data_are_validated_before_classes_are_counted() -> None:
    empty = Samples(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))
    listed = Samples([[1.0]], [0])  # type: ignore[arg-type]
    for wrong, message in ((empty, "empty"), (listed, "list and list")):
        data = TaskData(train=wrong, validation=wrong, test=wrong)
        with pytest.raises(BadDataError, match=f"task 'mine', train split: .*{message}"):
            a_task(data=data).sample(0)


def test_an_invalid_draw_is_rejected() -> None:
    with pytest.raises(BadDataError, match="draw of task 'mine' returned a dict"):
        a_task(draw=lambda seed: {}).sample(0)
    for name, value in (
        ("data", None),
        ("learning_rate", "a"),
        ("learning_rate", math.nan),
        ("learning_rate", 0),
        ("make_host", 7),
        ("metric", "accuracy"),
    ):
        draw_fields: dict[str, Any] = {"data": some_data(), "n_classes": 3, name: value}
        with pytest.raises(ConfigError, match=f"{name} is {value!r}"):
            a_task(draw=lambda seed, given=draw_fields: TaskDraw(**given)).sample(0)


def test_a_draw_that_raises_is_reported_with_its_seed() -> None:
    with pytest.raises(TaskError) as caught:
        a_task(draw=lambda seed: 1 // (seed - 5)).sample(5)
    assert str(caught.value) == (
        "draw of task 'mine' raised ZeroDivisionError (integer division or modulo by zero) for "
        "seed 5."
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_numpy_numbers_are_accepted() -> None:
    drawn = TaskDraw(data=some_data(), n_classes=np.int64(3), learning_rate=np.float32(0.5))  # type: ignore[arg-type]
    given = a_task(draw=lambda seed: drawn).sample(np.int64(1))  # type: ignore[arg-type]
    assert (given.n_classes, given.learning_rate) == (3, 0.5)
    assert (type(given.n_classes), type(given.learning_rate)) == (int, float)
    fixed = a_task(data=some_data(), n_classes=np.int16(3)).sample(0)
    assert type(fixed.n_classes) is int


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("wrong", [None, (torch.zeros(6, 2), torch.arange(6) % 3)])
def test_splits_must_be_samples(split: str, wrong: Any) -> None:
    samples = dict(some_data().splits())
    kind = type(wrong).__name__
    with pytest.raises(BadDataError, match=f"{split} split of TaskData is a {kind}"):
        TaskData(**{**samples, split: wrong})


def test_scores_are_0_for_guessing_and_1_for_perfection() -> None:
    bits = bits_per_character(64)
    assert (bits.score(6.0), bits.score(0.0), bits.score(1.5)) == (0.0, 1.0, 0.75)
    np.testing.assert_allclose(ACCURACY.score(np.array([0.0, 0.3, 1.0])), [0.0, 0.3, 1.0])
    torch.testing.assert_close(bits.score(torch.tensor([3.0])), torch.tensor([0.5]))


@pytest.mark.parametrize(
    ("worst", "best"),
    [(1.0, 1.0), (math.nan, 1.0), (0.0, math.inf), ("a", 1.0), (0.0, None), (False, 1.0)],
)
def test_a_metric_needs_two_finite_ends(worst: float, best: float) -> None:
    with pytest.raises((ConfigError, TaskError), match="metric 'flat'"):
        Metric(name="flat", objective=CrossEntropy(), worst=worst, best=best)


@pytest.mark.parametrize("objective", [None, CrossEntropy, nn.CrossEntropyLoss(), "accuracy"])
def test_a_metric_needs_losses_and_metrics(objective: Any) -> None:
    with pytest.raises(TaskError, match="objective of metric 'mine' is"):
        Metric(name="mine", objective=objective, worst=0.0, best=1.0)


def test_a_metric_has_plain_numbers_and_a_name() -> None:
    metric = Metric(name="mine", objective=CrossEntropy(), worst=np.float32(0), best=1)  # type: ignore[arg-type]
    assert (type(metric.worst), metric.score(0.25)) == (float, 0.25)
    with pytest.raises(TaskError, match="name is 7"):
        Metric(name=7, objective=CrossEntropy(), worst=0.0, best=1.0)  # type: ignore[arg-type]


def test_bits_are_the_negative_binary_logarithm_of_the_probability() -> None:
    # Probabilities 1/2, 1/4, 1/8, 1/8 cost 1, 2, 3 and 3 bits.
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125]).log().expand(1, 4, 4)
    targets = torch.tensor([[0, 1, 2, 3]])
    objective = bits_per_character(4).objective
    bits = objective.metrics(logits, targets)
    torch.testing.assert_close(bits, torch.tensor([[1.0, 2.0, 3.0, 3.0]]))
    nats = objective.losses(logits, targets)
    torch.testing.assert_close(nats, bits * math.log(2))


@pytest.mark.parametrize("vocabulary", [0, 1, "a", 2.5])
def test_a_vocabulary_needs_two_characters(vocabulary: Any) -> None:
    with pytest.raises(ConfigError, match="vocabulary is"):
        bits_per_character(vocabulary)


def test_uniform_predictions_cost_as_many_bits_as_guessing() -> None:
    metric = bits_per_character(70)
    bits = metric.objective.metrics(torch.zeros(5, 3, 70), torch.randint(70, (5, 3)))
    assert float(bits.mean()) == pytest.approx(math.log2(70)) == pytest.approx(metric.worst)

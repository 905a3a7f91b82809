"""Data that no host could learn from are refused, by task, split and value."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from esper.config.growth import MLPHostConfig
from esper.errors import BadDataError
from esper.growth.hosts import HostMaker
from esper.tasks import Samples, Task, TaskData, TaskDraw, check_data

N_CLASSES = 3
SPLITS = ("train", "validation", "test")


def good_samples(n: int = 7) -> Samples:
    return Samples(torch.linspace(-1, 1, 2 * n).view(n, 2), torch.arange(n) % N_CLASSES)


def draw_with(split: str = "train", n_classes: int = N_CLASSES, **changes: Tensor) -> TaskDraw:
    samples = {name: good_samples() for name in SPLITS}
    good = samples[split]
    samples[split] = Samples(
        changes.get("inputs", good.inputs), changes.get("targets", good.targets)
    )
    return TaskDraw(data=TaskData(**samples), n_classes=n_classes)


def with_value(value: float) -> Tensor:
    inputs = good_samples().inputs.clone()
    inputs[4, 1] = value
    return inputs


def test_good_data_pass() -> None:
    check_data(draw_with(), task="mine")


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite(split: str, value: float) -> None:
    message = f"'mine', {split} split: 1 inputs are not finite, the first is {value} in sample 4"
    with pytest.raises(BadDataError, match=message):
        check_data(draw_with(split, inputs=with_value(value)), task="mine")


def test_infinities_that_cancel_in_a_sum_are_seen() -> None:
    inputs = with_value(float("inf"))
    inputs[0, 0] = float("-inf")
    with pytest.raises(
        BadDataError, match="2 inputs are not finite, the first is -inf in sample 0"
    ):
        check_data(draw_with(inputs=inputs), task="mine")


def test_finite_numbers_whose_sum_is_not_finite_pass() -> None:
    check_data(draw_with(inputs=torch.full((7, 2), 3e38)), task="mine")


def test_a_class_may_be_missing_where_not_all_are_needed() -> None:
    targets = torch.tensor([0, 2, 0, 2, 0, 2, 0])
    for split in SPLITS:
        draw = draw_with(split, targets=targets)
        check_data(draw, task="mine", needs_all_classes=False)
        task = Task(
            name="mine",
            make_host=HostMaker(MLPHostConfig(n_features=2, n_classes=3)),
            data=draw.data,
            needs_all_classes=False,
        )
        assert task.sample(0).n_classes == N_CLASSES
        with pytest.raises(BadDataError, match="there is no sample of class 1"):
            replace(task, needs_all_classes=True).sample(0)
    with pytest.raises(BadDataError, match="a target is 3; targets must be in"):
        check_data(draw_with(targets=targets + 1), task="mine", needs_all_classes=False)


@pytest.mark.parametrize("split", SPLITS)
def test_a_class_that_is_missing_from_a_split(split: str) -> None:
    targets = torch.tensor([0, 2, 0, 2, 0, 2, 0])
    message = f"'mine', {split} split: there is no sample of class 1; .* 3 classes"
    with pytest.raises(BadDataError, match=message):
        check_data(draw_with(split, targets=targets), task="mine")


def test_fewer_samples_than_classes() -> None:
    samples = good_samples(2)
    draw = draw_with("test", inputs=samples.inputs, targets=samples.targets)
    with pytest.raises(BadDataError, match="test split: there are 2 samples of 3 classes"):
        check_data(draw, task="mine")


@pytest.mark.parametrize(("label", "shown"), [(3, "3"), (-1, "-1"), (200, "200")])
def test_labels_outside_of_the_classes(label: int, shown: str) -> None:
    targets = good_samples().targets.clone()
    targets[2] = label
    message = f"validation split: a target is {shown}; targets must be in 0..2"
    with pytest.raises(BadDataError, match=message):
        check_data(draw_with("validation", targets=targets), task="mine")


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (torch.zeros(6, 2), torch.arange(7) % 3, "there are 6 inputs and 7 targets"),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), r"\[0, 2\] .* none may be empty"),
        (torch.zeros(7, 0), torch.arange(7) % 3, r"\[7, 0\] .* none may be empty"),
        (torch.zeros(7), torch.arange(7) % 3, r"inputs have shape \[7\]"),
        (torch.zeros(7, 2), torch.zeros(7, 1, 1), r"targets \[7, 1, 1\]; they must be"),
        (torch.zeros(7, 2, dtype=torch.int32), torch.arange(7) % 3, "inputs are int32; they must"),
        (torch.zeros(7, 2, dtype=torch.bool), torch.arange(7) % 3, "inputs are bool"),
        (torch.zeros(7, 2, dtype=torch.complex64), torch.arange(7) % 3, "inputs are complex64"),
        (torch.zeros(7, 2), torch.zeros(7, 1).long(), r"\[7, 1\]; they must be \[n\], a class for"),
        (torch.zeros(7, 1), torch.zeros(7, 1).long(), r"they must be .* or \[n, T\], one for each"),
        (torch.zeros(7, 2), torch.zeros(7), "targets are float32; they must be int64"),
        (torch.zeros(7, 2), torch.zeros(7, dtype=torch.int32), "targets are int32"),
        (torch.full((7, 2), -1), torch.arange(7) % 3, "a token is -1; tokens must be 0 or"),
        ([[1.0]], torch.arange(7) % 3, "inputs and targets are list and Tensor"),
    ],
)
def test_wrong_shapes_and_dtypes(inputs: Tensor, targets: Tensor, message: str) -> None:
    with pytest.raises(BadDataError, match=f"task 'mine', train split: .*{message}"):
        check_data(draw_with(inputs=inputs, targets=targets), task="mine")


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"inputs": torch.zeros(7, 3)},
            r"float32 of shape \[3\]; they must be float32 of .* \[2\]",
        ),
        ({"inputs": torch.zeros(7, 2).double()}, "inputs of a sample are float64"),
        ({"targets": torch.zeros(7, 2, dtype=torch.int64)}, "targets of a sample are int64 of"),
    ],
)
def test_splits_of_different_forms(split: str, changes: dict[str, Tensor], message: str) -> None:
    with pytest.raises(BadDataError, match=f"{split} split: .*{message}.* train split"):
        check_data(draw_with(split, **changes), task="mine")


def test_tokens_may_lack_a_class_but_not_leave_the_vocabulary() -> None:
    def text(most: int) -> TaskDraw:
        samples = Samples(torch.zeros(4, 5, dtype=torch.int64), torch.full((4, 5), most))
        data = TaskData(train=samples, validation=samples, test=samples)
        return TaskDraw(data=data, n_classes=30)

    check_data(text(29), task="mine")
    with pytest.raises(BadDataError, match=r"a target is 30; targets must be in 0\.\.29"):
        check_data(text(30), task="mine")


def test_one_token_may_have_one_prediction() -> None:
    samples = Samples(torch.zeros(4, 1, dtype=torch.int64), torch.zeros(4, 1, dtype=torch.int64))
    data = TaskData(train=samples, validation=samples, test=samples)
    check_data(TaskDraw(data=data, n_classes=30), task="mine")


def test_inputs_that_require_a_gradient_are_looked_at_like_others() -> None:
    check_data(draw_with(inputs=good_samples().inputs.requires_grad_()), task="mine")
    with pytest.raises(BadDataError, match="1 inputs are not finite"):
        check_data(draw_with(inputs=with_value(float("nan")).requires_grad_()), task="mine")


@pytest.mark.parametrize("n_classes", [1, 0, 2.5])
def test_a_question_needs_two_answers(n_classes: int) -> None:
    with pytest.raises(BadDataError, match=f"task 'mine' has {n_classes} classes"):
        check_data(draw_with(n_classes=n_classes), task="mine")

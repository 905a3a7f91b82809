"""Invalid data are rejected, with the task, the split and the value."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from esper.config.growth import MLPHostConfig
from esper.errors import BadDataError, ConfigError
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


def test_valid_data_are_accepted() -> None:
    check_data(draw_with(), task="mine")


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_inputs_that_are_not_finite_are_rejected(split: str, value: float) -> None:
    message = f"'mine', {split} split: 1 inputs .* {value} in sample 4"
    with pytest.raises(BadDataError, match=message):
        check_data(draw_with(split, inputs=with_value(value)), task="mine")


def test_infinities_that_cancel_in_a_sum_are_detected() -> None:
    inputs = with_value(float("inf"))
    inputs[0, 0] = float("-inf")
    with pytest.raises(BadDataError, match=r"2 inputs .* -inf in sample 0"):
        check_data(draw_with(inputs=inputs), task="mine")


def test_finite_inputs_whose_sum_overflows_are_accepted() -> None:
    check_data(draw_with(inputs=torch.full((7, 2), 3e38)), task="mine")


def test_a_class_may_be_missing_if_not_all_are_needed() -> None:
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
        with pytest.raises(BadDataError, match="class 1"):
            replace(task, needs_all_classes=True).sample(0)
    with pytest.raises(BadDataError, match="a target is 3"):
        check_data(draw_with(targets=targets + 1), task="mine", needs_all_classes=False)


@pytest.mark.parametrize("split", SPLITS)
def test_a_missing_class_is_rejected(split: str) -> None:
    targets = torch.tensor([0, 2, 0, 2, 0, 2, 0])
    message = f"'mine', {split} split: .* class 1; .* 3 classes"
    with pytest.raises(BadDataError, match=message):
        check_data(draw_with(split, targets=targets), task="mine")


def test_fewer_samples_than_classes_are_rejected() -> None:
    samples = good_samples(2)
    draw = draw_with("test", inputs=samples.inputs, targets=samples.targets)
    with pytest.raises(BadDataError, match=r"test split: .* class 2; .* 3 classes"):
        check_data(draw, task="mine")


@pytest.mark.parametrize(("label", "shown"), [(3, "3"), (-1, "-1"), (200, "200")])
def test_targets_outside_the_classes_are_rejected(label: int, shown: str) -> None:
    targets = good_samples().targets.clone()
    targets[2] = label
    message = f"validation split: a target is {shown}; .* 0..2"
    with pytest.raises(BadDataError, match=message):
        check_data(draw_with("validation", targets=targets), task="mine")


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (torch.zeros(6, 2), torch.arange(7) % 3, "6 inputs .* 7 targets"),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64), r"\[0, 2\] .* empty"),
        (torch.zeros(7, 0), torch.arange(7) % 3, r"\[7, 0\] .* empty"),
        (torch.zeros(7), torch.arange(7) % 3, r"inputs have shape \[7\]"),
        (torch.zeros(7, 2), torch.zeros(7, 1, 1), r"targets \[7, 1, 1\]"),
        (torch.zeros(7, 2, dtype=torch.int32), torch.arange(7) % 3, "inputs are int32"),
        (torch.zeros(7, 2, dtype=torch.bool), torch.arange(7) % 3, "inputs are bool"),
        (torch.zeros(7, 2, dtype=torch.complex64), torch.arange(7) % 3, "inputs are complex64"),
        (torch.zeros(7, 2), torch.zeros(7, 1).long(), r"targets have shape \[7, 1\]"),
        (torch.zeros(7, 1), torch.zeros(7, 1).long(), r"targets have shape \[7, 1\]"),
        (torch.zeros(7, 2), torch.zeros(7), "targets are float32"),
        (torch.zeros(7, 2), torch.zeros(7, dtype=torch.int32), "targets are int32"),
        (torch.full((7, 2), -1), torch.arange(7) % 3, "a token is -1"),
        ([[1.0]], torch.arange(7) % 3, "list and Tensor"),
    ],
)
def test_wrong_shapes_and_dtypes_are_rejected(
    inputs: Tensor, targets: Tensor, message: str
) -> None:
    with pytest.raises(BadDataError, match=f"task 'mine', train split: .*{message}"):
        check_data(draw_with(inputs=inputs, targets=targets), task="mine")


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"inputs": torch.zeros(7, 3)},
            r"float32 of shape \[3\]; .* float32 of shape \[2\]",
        ),
        ({"inputs": torch.zeros(7, 2).double()}, "inputs are float64"),
        ({"targets": torch.zeros(7, 2, dtype=torch.int64)}, "targets are int64 of"),
    ],
)
def test_splits_that_differ_in_shape_or_dtype_are_rejected(
    split: str, changes: dict[str, Tensor], message: str
) -> None:
    with pytest.raises(BadDataError, match=f"{split} split: .*{message}.* train split"):
        check_data(draw_with(split, **changes), task="mine")


def test_a_text_may_lack_a_token_but_not_leave_the_vocabulary() -> None:
    def text(maximum: int) -> TaskDraw:
        inputs, targets = torch.zeros(12, 5, dtype=torch.int64), torch.full((12, 5), maximum)
        data = TaskData.cut(inputs, targets, sizes=(4, 4, 4))
        return TaskDraw(data=data, n_classes=30)

    check_data(text(29), task="mine")
    with pytest.raises(BadDataError, match=r"a target is 30; .* 0\.\.29"):
        check_data(text(30), task="mine")


def test_a_context_of_one_token_is_accepted() -> None:
    tokens = torch.zeros(12, 1, dtype=torch.int64)
    data = TaskData.cut(tokens, tokens, sizes=(4, 4, 4))
    check_data(TaskDraw(data=data, n_classes=30), task="mine")


def test_inputs_that_require_a_gradient_are_checked_too() -> None:
    check_data(draw_with(inputs=good_samples().inputs.requires_grad_()), task="mine")
    with pytest.raises(BadDataError, match="1 inputs"):
        check_data(draw_with(inputs=with_value(float("nan")).requires_grad_()), task="mine")


@pytest.mark.parametrize("n_classes", [1, -1, 2.5, True])
def test_fewer_than_two_classes_are_rejected(n_classes: int) -> None:
    with pytest.raises((BadDataError, ConfigError), match=f"{n_classes}"):
        check_data(draw_with(n_classes=n_classes), task="mine")


def numbers(*shape: int) -> Samples:
    return Samples(torch.linspace(-1, 1, 2 * shape[0]).view(-1, 2), torch.randn(shape))


def regression_with(
    split: str = "train", shape: tuple[int, ...] = (7,), **changes: Tensor
) -> TaskDraw:
    samples = {name: numbers(*shape) for name in SPLITS}
    samples[split] = replace(samples[split], **changes)
    return TaskDraw(data=TaskData(**samples), n_classes=0)


@pytest.mark.parametrize("shape", [(7,), (7, 1), (7, 3)])
def test_numbers_can_be_predicted(shape: tuple[int, ...]) -> None:
    check_data(regression_with(shape=shape), task="mine")


def test_targets_that_require_a_gradient_are_checked_too() -> None:
    check_data(regression_with(targets=torch.randn(7).requires_grad_()), task="mine")


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("shape", [(7,), (7, 3)])
def test_numbers_that_are_not_finite_are_rejected(
    split: str, value: float, shape: tuple[int, ...]
) -> None:
    targets = torch.randn(shape)
    targets[4] = value
    message = f"'mine', {split} split: {targets[4].numel()} targets .* {value} in sample 4"
    with pytest.raises(BadDataError, match=message):
        check_data(regression_with(split, shape, targets=targets), task="mine")


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (regression_with(targets=torch.randn(7).double()), "targets are float64 .* float32"),
        (regression_with("test", targets=torch.randn(7, 3)), r"float32 of shape \[3\]"),
        (regression_with("test", targets=torch.arange(7)), "targets are int64"),
        (draw_with(n_classes=0), "targets are int64 .* 0 classes"),
        (replace(regression_with(), n_classes=3), "targets are float32 .* 3 classes"),
        (regression_with(targets=torch.randn(6)), "7 inputs .* 6 targets"),
        (regression_with(targets=torch.randn(7, 0)), r"\[7, 0\]; .* empty"),
    ],
)
def test_targets_of_the_wrong_kind_are_rejected(draw: TaskDraw, message: str) -> None:
    with pytest.raises(BadDataError, match=f"task 'mine', .* split: .*{message}"):
        check_data(draw, task="mine")


@pytest.mark.parametrize(
    ("starts", "shared"),
    [
        ((0, 0, 0), "train and validation"),
        ((0, 10, 15), "validation and test"),
        ((10, 20, 1), "train and test"),
        ((20, 0, 10), None),
    ],
)
def test_splits_that_share_samples_are_rejected(starts: list[int], shared: str | None) -> None:
    inputs, targets = torch.randn(30, 2), torch.arange(30) % N_CLASSES
    parts = [slice(start, start + 10) for start in starts]
    data = TaskData.of(Samples(inputs[part], targets[part]) for part in parts)
    rows = [set(range(part.start, part.stop)) for part in parts]
    assert (shared is None) == (len(set.union(*rows)) == 30)
    draw = TaskDraw(data=data, n_classes=N_CLASSES)
    if shared is None:
        check_data(draw, task="mine")
        return
    with pytest.raises(BadDataError, match=f"'mine': the {shared} splits share samples"):
        check_data(draw, task="mine")


def test_interleaved_splits_are_disjoint() -> None:
    inputs, targets = torch.randn(30, 2), torch.arange(30) % N_CLASSES
    data = TaskData.of(Samples(inputs[i::3], targets.roll(i)[:10]) for i in range(3))
    check_data(TaskDraw(data=data, n_classes=N_CLASSES), task="mine")

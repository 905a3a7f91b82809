"""The digits task has fixed splits, standardized pixels and small hosts."""

import pytest
import torch

from esper.tasks import load_digits, make_task, split_digits
from esper.tasks.digits import digit_splits, standard_digits


def test_every_digit_is_in_exactly_one_split() -> None:
    parts = digit_splits()
    assert [len(part) for part in parts] == [1000, 500, 297]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(1797))


def test_every_split_has_the_digits_in_the_same_proportion() -> None:
    _, labels = load_digits()
    shares = labels.bincount() / 1797
    for part in digit_splits():
        counts = labels[part].bincount(minlength=10)
        assert float((counts - shares * len(part)).abs().max()) <= 1.5


def test_the_splits_are_fixed() -> None:
    # A moved split would make results of different versions incomparable.
    train, validation, test = digit_splits()
    assert (train[:3].tolist(), validation[:3].tolist(), test[:3].tolist()) == (
        [1180, 850, 1168],
        [917, 633, 428],
        [300, 1096, 1067],
    )


def test_training_pixels_have_mean_0_and_deviation_1() -> None:
    images = make_task("digits").sample(0).data.train.inputs
    assert float(images.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(images.std()) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(("host", "shape"), [("mlp", (64,)), ("cnn", (1, 8, 8))])
def test_the_task_holds_all_digits(host: str, shape: tuple[int, ...]) -> None:
    images, labels = load_digits()
    _, _, unit = standard_digits()
    shift = images[digit_splits()[0]].mean()
    data = make_task("digits", host=host).sample(3).data
    for (_, samples), part in zip(data.splits(), digit_splits(), strict=True):
        assert samples.inputs.shape[1:] == shape
        assert torch.equal(samples.targets, labels[part])
        restored = samples.inputs.view(-1, 1, 8, 8) * unit + shift
        torch.testing.assert_close(restored, images[part], rtol=0, atol=1e-6)


@pytest.mark.parametrize("host", ["mlp", "cnn"])
def test_hosts_are_small(host: str) -> None:
    model = make_task("digits", host=host).make_host(0)
    assert 1000 <= sum(parameter.numel() for parameter in model.parameters()) <= 10_000


def test_the_split_digits_are_those_of_the_task() -> None:
    images, labels = load_digits()
    parts = split_digits()
    assert [len(labels) for _, labels in parts] == [1000, 500, 297]
    for (part, part_labels), rows in zip(parts, digit_splits(), strict=True):
        assert torch.equal(part, images[rows])
        assert torch.equal(part_labels, labels[rows])

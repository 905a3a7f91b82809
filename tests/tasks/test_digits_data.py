"""The digits that ship with Esper are scikit-learn's."""

import hashlib

import pytest
import torch

from esper.tasks.digits import load_digits


def test_shapes_dtypes_and_values() -> None:
    images, labels = load_digits()
    assert (images.shape, images.dtype) == ((1797, 1, 8, 8), torch.float32)
    assert (labels.shape, labels.dtype) == ((1797,), torch.int64)
    assert images.is_contiguous()
    # Seventeen levels of grey, all of which occur.
    torch.testing.assert_close(images.unique(), torch.arange(17) / 16, rtol=0, atol=0)


def test_the_first_image_is_the_known_zero() -> None:
    images, labels = load_digits()
    assert labels[:10].tolist() == list(range(10))
    assert (images[0, 0, :3] * 16).tolist() == [
        [0, 0, 5, 13, 9, 1, 0, 0],
        [0, 0, 13, 15, 10, 15, 5, 0],
        [0, 3, 15, 2, 0, 11, 8, 0],
    ]


def test_each_digit_has_the_documented_number_of_samples() -> None:
    _, labels = load_digits()
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_every_pixel_and_label_equals_scikit_learns() -> None:
    images, labels = load_digits()
    raw = (images * 16).to(torch.uint8).numpy().tobytes() + labels.to(torch.uint8).numpy().tobytes()
    # Of sklearn.datasets.load_digits(), images before labels, as bytes.
    expected = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
    assert hashlib.sha256(raw).hexdigest() == expected


def test_scikit_learn_agrees_if_installed() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    images, labels = load_digits()
    assert torch.equal(images[:, 0] * 16, torch.from_numpy(digits.images).float())
    assert torch.equal(labels, torch.from_numpy(digits.target))

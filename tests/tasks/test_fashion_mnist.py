"""Fashion-MNIST is read from IDX files that are written here byte by byte."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from esper.errors import BadDataError, ConfigError, MissingDataError, TaskError
from esper.tasks import Task, fashion_mnist, make_task
from esper.tasks.fashion_mnist import read_idx

N_LEARN, N_TEST = 60, 30


def idx_bytes(array: np.ndarray) -> bytes:
    """Return an array of bytes as an IDX file, from the description of the format."""
    sizes = b"".join(struct.pack(">I", size) for size in array.shape)
    return struct.pack(">HBB", 0, 0x08, array.ndim) + sizes + array.astype(np.uint8).tobytes()


def write_set(folder: Path, *, is_packed: bool = False) -> dict[str, np.ndarray]:
    """Write the four files with random images and return the arrays."""
    rng = np.random.default_rng(0)
    arrays = {}
    for prefix, count in (("train", N_LEARN), ("t10k", N_TEST)):
        arrays[f"{prefix}-images-idx3-ubyte"] = rng.integers(0, 256, (count, 28, 28))
        arrays[f"{prefix}-labels-idx1-ubyte"] = np.arange(count) % 10
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        content = idx_bytes(array)
        if is_packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
        else:
            (folder / name).write_bytes(content)
    return arrays


def make(folder: Path, **options: object) -> Task:
    return make_task("fashion-mnist", data_dir=folder, n_train=40, n_validation=20, **options)


@pytest.mark.parametrize("is_packed", [False, True])
def test_splits_come_from_the_files_and_are_disjoint(tmp_path: Path, is_packed: bool) -> None:
    arrays = write_set(tmp_path, is_packed=is_packed)
    data = make(tmp_path).sample(0).data
    assert [tuple(samples.inputs.shape) for _, samples in data.splits()] == [
        (40, 1, 28, 28),
        (20, 1, 28, 28),
        (30, 1, 28, 28),
    ]
    # Undo the standardising with a straight line through the test images, which keep their order.
    raw = arrays["t10k-images-idx3-ubyte"].reshape(-1)
    slope, offset = np.polyfit(data.test.inputs.flatten().double().numpy(), raw, 1)
    np.testing.assert_allclose(
        data.test.inputs.flatten().numpy() * slope + offset, raw, rtol=0, atol=0.01
    )
    assert torch.equal(data.test.targets, torch.arange(30) % 10)
    learned = torch.cat([data.train.inputs, data.validation.inputs]).flatten(1) * slope + offset
    known = torch.from_numpy(arrays["train-images-idx3-ubyte"].reshape(60, -1)).float()
    rows = torch.cdist(learned.float(), known).argmin(1)
    assert rows.sort().values.tolist() == list(range(60))
    assert torch.equal(torch.cat([data.train.targets, data.validation.targets]), rows % 10)
    assert data.train.targets.bincount().tolist() == [4] * 10
    assert float(data.train.inputs.mean()) == pytest.approx(0.0, abs=1e-4)
    assert float(data.train.inputs.std()) == pytest.approx(1.0, abs=1e-4)


def test_small_images_are_average_pooled(tmp_path: Path) -> None:
    arrays = write_set(tmp_path)
    small = make(tmp_path, image_size=14).sample(0).data.test.inputs
    assert torch.equal(small, make(tmp_path, image_size=14.0).sample(0).data.test.inputs)
    assert small.shape == (30, 1, 14, 14)
    raw = arrays["t10k-images-idx3-ubyte"]
    means = np.array(
        [
            [
                [image[2 * r : 2 * r + 2, 2 * c : 2 * c + 2].mean() for c in range(14)]
                for r in range(14)
            ]
            for image in raw
        ]
    ).reshape(-1)
    assert np.corrcoef(means, small.flatten().numpy())[0, 1] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(("size", "host"), [(28, "cnn"), (14, "cnn"), (28, "mlp"), (14, "mlp")])
def test_hosts_accept_the_images(tmp_path: Path, size: int, host: str) -> None:
    write_set(tmp_path)
    task = make(tmp_path, image_size=size, host=host)
    inputs = task.sample(0).data.train.inputs
    assert inputs.shape[1:] == ((1, size, size) if host == "cnn" else (size * size,))
    assert task.make_host(0)(inputs[:2]).shape == (2, 10)
    # At 1e-2 a CNN on the full images does not settle.
    assert task.training.learning_rate == pytest.approx(3e-3)


def test_data_are_found_by_the_environment_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_set(tmp_path / "fashion-mnist")
    monkeypatch.setenv("ESPER_DATA_DIR", str(tmp_path))
    task = make_task("fashion-mnist", n_train=40, n_validation=20)
    assert len(task.sample(0).data.test) == N_TEST


def test_data_are_found_in_the_system_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_set(tmp_path, is_packed=True)
    monkeypatch.delenv("ESPER_DATA_DIR", raising=False)
    monkeypatch.setattr(fashion_mnist, "INSTALLED", str(tmp_path))
    task = make_task("fashion-mnist", n_train=40, n_validation=20)
    assert len(task.sample(0).data.test) == N_TEST


def test_missing_files_are_reported_with_the_searched_folders_and_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESPER_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(fashion_mnist, "INSTALLED", str(tmp_path / "installed"))
    with pytest.raises(MissingDataError) as caught:
        make_task("fashion-mnist")
    message = str(caught.value)
    assert "train-images-idx3-ubyte or train-images-idx3-ubyte.gz" in message
    assert f"{tmp_path / 'fashion-mnist'}, {tmp_path / 'installed'}." in message
    assert "apt install dataset-fashion-mnist" in message
    assert "--data-dir" in message
    assert "\n" not in message


def test_the_one_missing_file_is_named(tmp_path: Path) -> None:
    write_set(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(MissingDataError, match="t10k-labels-idx1-ubyte or"):
        make(tmp_path)


def test_only_the_folder_given_by_the_user_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_set(tmp_path / "fashion-mnist")
    monkeypatch.setenv("ESPER_DATA_DIR", str(tmp_path))
    with pytest.raises(MissingDataError, match=rf"searched {tmp_path}/fashion-mnits\. "):
        make(tmp_path / "fashion-mnits")


IMAGES = idx_bytes(np.zeros((2, 28, 28)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begins with nothing; .* 00 00 08 03"),
        (b"\x00\x00\x0d\x03" + IMAGES[4:], "begins with 00 00 0d 03"),
        (idx_bytes(np.zeros(5)), "begins with 00 00 08 01"),
        (IMAGES[:10], "has 10 bytes"),
        (IMAGES[:-1], "holds 1567 bytes .* 1568"),
        (IMAGES + b"\x00", "holds 1569 bytes"),
        (gzip.compress(IMAGES, mtime=0)[:-9], "is a damaged gzip file"),
        (gzip.compress(IMAGES, mtime=0)[:-8] + b"\x00" * 8, "is a damaged gzip file"),
        (b"\x1f\x8bnot gzip at all", "is a damaged gzip file"),
    ],
)
def test_damaged_files_are_rejected(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(BadDataError, match=f"{path} {message}"):
        read_idx(path, n_axes=3)


def test_an_idx_file_is_read(tmp_path: Path) -> None:
    array = np.arange(2 * 3 * 5).reshape(2, 3, 5)
    (tmp_path / "a").write_bytes(idx_bytes(array))
    np.testing.assert_array_equal(read_idx(tmp_path / "a", n_axes=3), array)


def test_inconsistent_files_are_rejected(tmp_path: Path) -> None:
    write_set(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(idx_bytes(np.zeros(59)))
    with pytest.raises(BadDataError, match="60 images but 59 labels"):
        make(tmp_path)
    labels.write_bytes(idx_bytes(np.full(60, 10)))
    with pytest.raises(BadDataError, match=r"label 10; .* 0\.\.9"):
        make(tmp_path)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(np.zeros((30, 14, 14))))
    labels.write_bytes(idx_bytes(np.arange(60) % 10))
    with pytest.raises(BadDataError, match="14 x 14"):
        make(tmp_path)


def test_invalid_options_are_rejected(tmp_path: Path) -> None:
    write_set(tmp_path)
    for wrong in (7, 14.5, "14", True):
        with pytest.raises(ConfigError, match=r"image_size is .*28, 14"):
            make(tmp_path, image_size=wrong)
    with pytest.raises(TaskError, match=r"n_train is 6000 and n_validation is 2000; .* 60"):
        make_task("fashion-mnist", data_dir=tmp_path)
    with pytest.raises(ConfigError, match="n_train is 0"):
        make_task("fashion-mnist", data_dir=tmp_path, n_train=0)


@pytest.mark.skipif(not Path(fashion_mnist.INSTALLED).is_dir(), reason="the package is not there")
def test_the_files_of_the_debian_package_are_read() -> None:
    data = make_task("fashion-mnist").sample(0).data
    assert [len(samples) for _, samples in data.splits()] == [6000, 2000, 10_000]
    assert data.test.targets.bincount().tolist() == [1000] * 10
    assert data.train.targets.bincount().tolist() == [600] * 10

"""CIFAR-10 is read in both of its formats, without running any code in a file."""

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from esper.errors import BadDataError, MissingDataError
from esper.tasks import make_task
from esper.tasks.cifar10 import read_cifar_binary, read_cifar_pickled
from esper.tasks.plain_pickle import UnsafePickleError, read_plain_pickle

N = 12
NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def batch(number: int) -> tuple[np.ndarray, list[int]]:
    rng = np.random.default_rng(number)
    pixels = rng.integers(0, 256, (N, 3072)).astype(np.uint8)
    return pixels, [(number + place) % 10 for place in range(N)]


def python2_pickle(pixels: np.ndarray, labels: list[int]) -> bytes:
    """Return a file as Python 2 and its numpy wrote it, opcode by opcode."""

    def short(text: str) -> bytes:
        return b"U" + bytes([len(text)]) + text.encode()

    n, width = pixels.shape
    raw = pixels.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85q\x09"
        + short("b")
        + b"\x87q\x0aRq\x0b(K\x01J"
        + struct.pack("<i", n)
        + b"M"
        + struct.pack("<H", width)
        + b"\x86q\x0ccnumpy\ndtype\nq\x0d"
        + short("u1")
        + b"K\x00K\x01\x87q\x0eRq\x0f(K\x03"
        + short("|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x10b\x89T"
        + struct.pack("<i", len(raw))
        + raw
        + b"tq\x11b"
    )
    return (
        b"\x80\x02}q\x01("
        + short("batch_label")
        + b"q\x02"
        + short("training batch 1 of 5")
        + b"q\x03"
        + short("labels")
        + b"q\x04]q\x05("
        + b"".join(b"K" + bytes([label]) for label in labels)
        + b"e"
        + short("data")
        + b"q\x06"
        + array
        + short("filenames")
        + b"q\x12]q\x13("
        + short("leptodactylus_pentadactylus_s_000004.png")
        + b"q\x14eu."
    )


def python3_pickle(pixels: np.ndarray, labels: list[int]) -> bytes:
    return pickle.dumps({b"data": pixels, b"labels": labels, b"batch_label": b"x"}, protocol=2)


def write_python(folder: Path, dump: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(NAMES):
        (folder / name).write_bytes(dump(*batch(number)))


def write_binary(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(NAMES):
        pixels, labels = batch(number)
        records = [
            bytes([label]) + row.tobytes() for label, row in zip(labels, pixels, strict=True)
        ]
        (folder / f"{name}.bin").write_bytes(b"".join(records))


def test_a_python_2_file_reads_as_pickle_would_read_it() -> None:
    pixels, labels = batch(0)
    content = python2_pickle(pixels, labels)
    theirs = pickle.loads(content, encoding="latin1")
    ours = read_plain_pickle(content)
    assert list(ours) == list(theirs)
    np.testing.assert_array_equal(ours["data"], theirs["data"])
    assert ours["labels"] == theirs["labels"] == labels
    assert ours["filenames"] == theirs["filenames"]


@pytest.mark.parametrize("dump", [python2_pickle, python3_pickle])
def test_a_pickled_file_is_read_as_images_and_labels(tmp_path: Path, dump: Any) -> None:
    pixels, labels = batch(3)
    (tmp_path / "data_batch_1").write_bytes(dump(pixels, labels))
    found = read_cifar_pickled(tmp_path / "data_batch_1")
    np.testing.assert_array_equal(found.images.reshape(N, -1), pixels)
    assert found.images.shape == (N, 3, 32, 32)
    assert found.labels.tolist() == labels


def test_an_array_in_fortran_order_is_read() -> None:
    pixels = np.asfortranarray(batch(0)[0])
    found = read_plain_pickle(pickle.dumps({b"data": pixels}, protocol=2))
    np.testing.assert_array_equal(found["data"], pixels)


def test_both_formats_and_the_parent_folder_give_the_same_task(tmp_path: Path) -> None:
    write_python(tmp_path / "one" / "cifar-10-batches-py", python2_pickle)
    write_binary(tmp_path / "two" / "cifar-10-batches-bin")
    folders = ("one", "one/cifar-10-batches-py", "two", "two/cifar-10-batches-bin")
    tasks = [
        make_task("cifar10", data_dir=tmp_path / folder, n_train=40, n_validation=20)
        for folder in folders
    ]
    first = tasks[0].sample(0).data
    assert [len(samples) for _, samples in first.splits()] == [40, 20, N]
    assert first.test.targets.tolist() == batch(5)[1]
    for task in tasks[1:]:
        for (_, mine), (_, other) in zip(first.splits(), task.sample(0).data.splits(), strict=True):
            assert torch.equal(mine.inputs, other.inputs)
            assert torch.equal(mine.targets, other.targets)
    assert tasks[0].make_host(0)(first.train.inputs[:2]).shape == (2, 10)


def test_each_channel_is_standardized_in_the_order_red_green_blue(tmp_path: Path) -> None:
    write_binary(tmp_path)
    data = make_task("cifar10", data_dir=tmp_path, n_train=40, n_validation=20).sample(0).data
    pixels = batch(5)[0].reshape(N, 3, 1024)
    for channel in range(3):
        ours = data.test.inputs[:, channel].flatten().numpy()
        theirs = pixels[:, channel].reshape(-1)
        assert np.corrcoef(ours, theirs)[0, 1] == pytest.approx(1.0, abs=1e-6)
        learned = data.train.inputs[:, channel]
        assert float(learned.mean()) == pytest.approx(0.0, abs=1e-4)
        assert float(learned.std()) == pytest.approx(1.0, abs=1e-4)


class Malicious:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.command = f"touch {path}"

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_malicious_file_is_rejected_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "trace"
    content = pickle.dumps({b"data": Malicious(trace), b"labels": [1]}, protocol=protocol)
    (tmp_path / "data_batch_1").write_bytes(content)
    with pytest.raises(BadDataError, match="data_batch_1 is not a CIFAR-10 file"):
        read_cifar_pickled(tmp_path / "data_batch_1")
    assert not trace.exists()
    # Unpickling it would have run the command.
    pickle.loads(content)
    assert trace.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x02cposix\nsystem\n(U\x04truetR.", "'posix system'"),
        (b"\x80\x02cnumpy\ndtype\nU\x02O8\x85R.", "calls 'numpy dtype'"),
        (b"\x80\x02cnumpy\nndarray\nK\x01\x85R.", "calls 'numpy ndarray'"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00utf-8\x86R.", "it calls"),
        (b"\x80\x02K\x01K\x01\x85R.", "calls 'a value'"),
        (b"\x80\x02}K\x01b.", "other than a byte array"),
        (b"\x80\x02I12\n.", "opcode INT"),
        (b"\x80\x02}q\x01.extra"[:5], "damaged"),
        (b"\x80\x02\x86.", "damaged"),
        (b"\x80\x02e.", "damaged"),
        (b"\x80\x02h\x05.", "damaged"),
        (b"", "damaged"),
        (b"\x80\x02K\x01.", "damaged"),
        (b"<html>", "damaged"),
    ],
)
def test_anything_but_a_plain_dict_is_rejected(content: bytes, message: str) -> None:
    with pytest.raises(UnsafePickleError, match=message):
        read_plain_pickle(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x02}U\x06labelsK\x01" + b"\x85" * 100_000 + b"s.", "a tuple of more than"),
        (b"\x80\x02}U\x06labelsK\x01" + b"q\x00h\x00\x86" * 40 + b"s.", "a tuple of more than"),
        (b"\x80\x02}U\x06labels]q\x00h\x00as.", "a list inside"),
        (b"\x80\x02}q\x00U\x06labelsh\x00s.", "a dict inside"),
        (b"\x80\x02}U\x06labels]\x85s.", "a list inside"),
    ],
    ids=["nested tuples", "doubled tuples", "recursive list", "recursive dict", "list in a tuple"],
)
def test_nesting_and_doubling_are_bounded(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(BadDataError, match=f"test_batch is not a CIFAR-10 file: it has {message}"):
        read_cifar_pickled(tmp_path / "test_batch")


def test_truncated_files_are_rejected() -> None:
    content = python2_pickle(*batch(0))
    for end in [*range(0, 400, 7), len(content) // 2, len(content) - 60, len(content) - 1]:
        with pytest.raises(UnsafePickleError, match="damaged"):
            read_plain_pickle(content[:end])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({b"labels": [1]}, "has no 'data'"),
        ({b"data": np.zeros((1, 3072), np.uint8)}, "has no 'labels'"),
        ({b"data": np.zeros((1, 3071), np.uint8), b"labels": [1]}, r"data of shape \[1, 3071\]"),
        ({b"data": [1], b"labels": [1]}, r"data of shape \[1\] and labels of shape \[1\]"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [[1]]}, "it has a list inside"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [300]}, "'labels' are not bytes"),
        ({b"data": np.zeros((1, 3072), np.uint8), b"labels": [11]}, "label 11"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, "2 images but 1 labels"),
        ({b"data": np.zeros((1, 3072)), b"labels": [1]}, "is not a CIFAR-10 file: it calls"),
    ],
)
def test_a_dict_with_other_content_is_rejected(tmp_path: Path, value: Any, message: str) -> None:
    (tmp_path / "test_batch").write_bytes(pickle.dumps(value, protocol=2))
    with pytest.raises(BadDataError, match=f"test_batch.*{message}"):
        read_cifar_pickled(tmp_path / "test_batch")


@pytest.mark.parametrize("size", [0, 3072, 3074])
def test_an_incomplete_record_in_a_binary_file_is_rejected(tmp_path: Path, size: int) -> None:
    (tmp_path / "test_batch.bin").write_bytes(bytes(size))
    with pytest.raises(BadDataError, match=f"test_batch.bin has {size} bytes"):
        read_cifar_binary(tmp_path / "test_batch.bin")


def test_a_missing_file_is_reported_with_the_searched_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_binary(tmp_path)
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(MissingDataError) as caught:
        make_task("cifar10", data_dir=tmp_path)
    message = str(caught.value)
    assert "'cifar10' needs the missing file data_batch_4.bin" in message
    assert f"{tmp_path}, {tmp_path / 'cifar-10-batches-py'}, " in message
    assert "cifar-10-python.tar.gz" in message
    monkeypatch.delenv("ESPER_DATA_DIR", raising=False)
    with pytest.raises(MissingDataError, match=r"file data_batch_1; .* no folder"):
        make_task("cifar10")
    monkeypatch.setenv("ESPER_DATA_DIR", str(tmp_path))
    with pytest.raises(MissingDataError, match=f"searched {tmp_path / 'cifar10'}, "):
        make_task("cifar10")

"""Text is split into windows of tokens that decode to the text."""

import hashlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.errors import BadDataError, ConfigError, MissingDataError
from esper.tasks import load_book, make_task
from esper.tasks.text import UNKNOWN, Vocabulary, cut_windows, read_text, split_text


def test_the_book_is_complete() -> None:
    book = load_book()
    assert book.split()[:5] == ["ALICE'S", "ADVENTURES", "IN", "WONDERLAND", "Lewis"]
    assert book.rstrip().endswith("THE END")
    assert book.count("CHAPTER ") == 12
    assert "\r" not in book
    digest = "69d41fa1230830b30a6e58d53f2604facbd3573a6c0532abc8b1cffd7c504c09"
    assert hashlib.sha256(book.encode()).hexdigest() == digest


def test_the_windows_of_the_book_decode_to_the_book() -> None:
    book = load_book()
    data, vocabulary = split_text(book, 32, source="the book")
    starts = [0, len(book) * 8 // 10, len(book) * 9 // 10, len(book)]
    known = set(book[: starts[1]])
    text = "".join(letter if letter in known else UNKNOWN for letter in book)
    assert UNKNOWN in text
    for start, end, (_, samples) in zip(starts, starts[1:], data.splits(), strict=False):
        inputs = vocabulary.decode(samples.inputs.flatten().numpy())
        targets = vocabulary.decode(samples.targets.flatten().numpy())
        length = len(inputs)
        assert inputs == text[start : start + length]
        assert targets == text[start + 1 : start + length + 1]
        # What is left over is shorter than a window and its last target.
        assert 1 <= end - start - length <= 32


def test_every_target_is_the_next_input() -> None:
    data = make_task("text").sample(0).data
    for _, samples in data.splits():
        assert samples.inputs.shape == samples.targets.shape
        assert samples.inputs.shape[1] == 32
        assert torch.equal(samples.inputs[:, 1:], samples.targets[:, :-1])
        assert torch.equal(samples.inputs[1:, 0], samples.targets[:-1, -1])


def test_the_worst_metric_is_guessing_among_the_vocabulary() -> None:
    task = make_task("text")
    drawn = task.sample(0)
    size = drawn.n_classes
    assert size == len(set(load_book()[: len(load_book()) * 8 // 10])) + 1
    assert task.metric.name == "bits per character"
    assert task.metric.worst == pytest.approx(math.log2(size))
    bits = task.metric.objective.metrics(
        torch.zeros(*drawn.data.test.targets.shape, size), drawn.data.test.targets
    )
    assert task.metric.score(float(bits.mean())) == pytest.approx(0.0, abs=1e-6)


def test_the_sizes_of_the_host_are_options() -> None:
    task = make_task("text")
    model = task.make_host(0)
    assert 5000 <= sum(parameter.numel() for parameter in model.parameters()) <= 12_000
    inputs = task.sample(0).data.train.inputs[:2]
    assert model(inputs).shape == (2, 32, task.sample(0).n_classes)
    other = make_task("text", context=8, width=24, hidden=10, n_heads=3, n_blocks=1)
    assert other.sample(0).data.train.inputs.shape[1] == 8
    assert other.make_host(0).get_submodule("blocks.0.mlp.0").out_features == 10
    assert len(other.make_host(0).get_submodule("blocks")) == 1
    with pytest.raises(ConfigError, match=r"width is 16.* n_heads.* 3"):
        make_task("text", n_heads=3)
    with pytest.raises(ConfigError, match="context is 0"):
        make_task("text", context=0)


@given(st.text(min_size=1), st.text())
def test_a_vocabulary_decodes_what_it_encodes_and_marks_unknown_characters(
    known: str, other: str
) -> None:
    vocabulary = Vocabulary(known)
    assert len(vocabulary) == len(set(known)) + 1
    assert vocabulary.decode(vocabulary.encode(known)) == known
    tokens = vocabulary.encode(other)
    assert all((tokens >= 0) & (tokens < len(vocabulary)))
    expected = "".join(letter if letter in known else UNKNOWN for letter in other)
    assert vocabulary.decode(tokens) == expected


@given(length=st.integers(2, 200), context=st.integers(1, 40))
def test_windows_cover_the_text_except_an_incomplete_end(length: int, context: int) -> None:
    tokens = np.arange(length)
    samples = cut_windows(tokens, context)
    assert len(samples) == (length - 1) // context
    assert samples.inputs.flatten().tolist() == list(range(len(samples) * context))
    assert torch.equal(samples.targets, samples.inputs + 1)


def test_any_text_file_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes(("\ufeff" + "Grüße,\r\nWelt! 木\rend\n" * 60).encode())
    text = read_text(path)
    assert text == "Grüße,\nWelt! 木\nend\n" * 60
    task = make_task("text", path=path, context=16)
    assert task.sample(0).n_classes == len(set(text)) + 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"caf\xe9 au lait", "is not UTF-8: byte 3 of 12 is 0xe9"),
        (
            b"too short " * 20,
            "has 200 characters, split into 160, 20, 20; .* 650",
        ),
    ],
)
def test_invalid_files_are_rejected(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes(content)
    with pytest.raises(BadDataError, match=f"{path} {message}"):
        make_task("text", path=path)


def test_the_minimum_length_in_the_message_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("ab" * 325)
    assert len(make_task("text", path=str(path)).sample(0).data.test) == 2


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    for path in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(MissingDataError, match=f"{path} cannot be read"):
            make_task("text", path=path)

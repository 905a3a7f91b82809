"""All supported forms of data give the same tensors; others are rejected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from esper.errors import BadDataError
from esper.growing.data import batch_size_of, read_samples
from esper.tasks import Samples


class Pairs(Dataset[tuple[Tensor, int]]):
    """Samples by index, with classes as plain integers."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return self.inputs[number], int(self.targets[number])


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Samples as an iterable."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(self.inputs, self.targets, strict=True))


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 9), shape=st.sampled_from([(3,), (2, 4), (1, 2, 2)]), batch=st.integers(1, 4)
)
def test_every_form_gives_the_same_tensors(n: int, shape: tuple[int, ...], batch: int) -> None:
    inputs = torch.randn(n, *shape, generator=torch.Generator().manual_seed(n))
    targets = torch.arange(n) % 3
    forms: list[Any] = [
        (inputs, targets),
        [inputs, targets.to(torch.int32)],
        (inputs.numpy(), targets.numpy().astype(np.uint8)),
        (inputs.tolist(), targets.tolist()),
        Samples(inputs, targets),
        TensorDataset(inputs, targets),
        Pairs(inputs, targets),
        Stream(inputs, targets),
        DataLoader(TensorDataset(inputs, targets), batch_size=batch),
        DataLoader(Pairs(inputs, targets), batch_size=batch),
        DataLoader(Stream(inputs, targets), batch_size=batch),
    ]
    for form in forms:
        samples = read_samples(form, "train_data", like=torch.zeros(()))
        assert samples.inputs.dtype == torch.float32
        assert samples.targets.dtype == torch.int64
        assert torch.equal(samples.inputs, inputs)
        assert torch.equal(samples.targets, targets)


def test_a_shuffling_loader_does_not_change_the_default_generator() -> None:
    loader = DataLoader(
        TensorDataset(torch.arange(20.0).view(20, 1), torch.arange(20)), batch_size=6, shuffle=True
    )
    before = torch.get_rng_state()
    samples = read_samples(loader, "train_data")
    assert torch.equal(torch.get_rng_state(), before)
    assert sorted(samples.targets.tolist()) == list(range(20))
    assert torch.equal(samples.inputs.squeeze(1).long(), samples.targets)


def test_inputs_get_the_dtype_of_the_model_except_tokens() -> None:
    like = torch.zeros((), dtype=torch.float64)
    targets = torch.tensor([True, False])
    assert read_samples((torch.ones(2, 3), targets), "d", like=like).inputs.dtype == torch.float64
    tokens = read_samples((np.ones((2, 3), np.int32), targets), "d", like=like)
    assert tokens.inputs.dtype == torch.int64
    assert tokens.targets.tolist() == [1, 0]


def test_only_a_loader_has_a_batch_size() -> None:
    data = TensorDataset(torch.ones(8, 1), torch.zeros(8, dtype=torch.int64))
    assert batch_size_of(DataLoader(data, batch_size=4)) == 4
    assert batch_size_of(DataLoader(data, batch_size=1)) is None
    assert batch_size_of(DataLoader(data, batch_size=None)) is None
    assert batch_size_of(data) is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.ones(4, 2), "val_data contains a Tensor"),
        ((torch.ones(4, 2),), "val_data contains a tuple of 1"),
        (None, "val_data contains a NoneType"),
        ((object(), torch.ones(4)), "inputs of val_data are an object"),
        ((torch.ones(4, 2), torch.rand(4)), "targets of val_data are float32"),
        (TensorDataset(torch.ones(4, 2)), "val_data contains a tuple of 1"),
        (
            DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2),
            "val_data contains a list of 1",
        ),
        (Pairs(torch.ones(0, 2), torch.ones(0)), "val_data has no samples"),
        (
            Stream([torch.ones(2), torch.ones(3)], torch.zeros(2, dtype=torch.int64)),  # type: ignore
            "samples of val_data differ",
        ),
    ],
)
def test_invalid_data_are_rejected_on_one_line(data: Any, message: str) -> None:
    with pytest.raises(BadDataError, match=message) as caught:
        read_samples(data, "val_data")
    assert "\n" not in str(caught.value)

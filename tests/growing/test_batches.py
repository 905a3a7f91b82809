"""All supported forms of data give the same batches, anew in every epoch; others are rejected."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from esper.errors import BadDataError
from esper.growing.batches import Batch, Batches
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


class Named(nn.Module):
    """Takes its inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, a: Tensor, b: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        return self.layer(a if b is None else a + b)


def batches(data: Any, model: nn.Module | None = None, **options: Any) -> Batches:
    settings: dict[str, Any] = {"batch_size": 3, "shuffle": False, **options}
    return Batches(data, "train_data", model or nn.Linear(3, 2), **settings)


def joined(found: Batches) -> tuple[Tensor, Tensor]:
    parts = list(found)
    return torch.cat([b.args[0] for b in parts]), torch.cat([b.targets for b in parts])


@given(n=st.integers(2, 9), shape=st.sampled_from([(3,), (2, 4)]), size=st.integers(1, 4))
def test_every_form_gives_the_same_samples(n: int, shape: tuple[int, ...], size: int) -> None:
    inputs = torch.randn(n, *shape, generator=torch.Generator().manual_seed(n))
    targets = torch.arange(n) % 3
    pairs = TensorDataset(inputs, targets)
    chunks = list(zip(inputs.split(size), targets.split(size), strict=True))
    forms: list[Any] = [
        (inputs, targets),
        [inputs, targets.to(torch.int32)],
        (inputs.double().numpy(), targets.numpy().astype(np.uint8)),
        (inputs.tolist(), targets.tolist()),
        Samples(inputs, targets),
        pairs,
        Pairs(inputs, targets),
        Stream(inputs, targets),
        DataLoader(pairs, batch_size=size),
        DataLoader(Stream(inputs, targets), batch_size=size),
        chunks,
    ]
    for form in forms:
        found = batches(form)
        for _ in range(2):  # in every epoch
            seen = joined(found)
            assert seen[0].dtype == torch.float32
            assert seen[1].dtype == torch.int64
            assert torch.equal(seen[0], inputs)
            assert torch.equal(seen[1], targets)


def test_data_in_memory_are_shuffled_anew_in_every_epoch() -> None:
    found = batches((torch.arange(20.0).view(20, 1), torch.arange(20)), shuffle=True)
    first, second = joined(found), joined(found)
    assert sorted(first[1].tolist()) == sorted(second[1].tolist())
    assert first[1].tolist() != second[1].tolist()
    assert torch.equal(first[0].squeeze(1).long(), first[1])


class Augmented(Dataset[tuple[Tensor, int]]):
    """Draws a new input every time it is asked."""

    def __init__(self) -> None:
        self.n_drawn = 0

    def __len__(self) -> int:
        return 6

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        self.n_drawn += 1
        return torch.full((3,), float(self.n_drawn)), number % 2


def test_a_loader_is_iterated_anew_so_that_augmentation_is_too() -> None:
    data = Augmented()
    found = batches(DataLoader(data, batch_size=2))
    first, second = joined(found)[0], joined(found)[0]
    assert data.n_drawn == 12
    assert not torch.equal(first, second)


def test_a_first_batch_leaves_the_default_generator_alone() -> None:
    model = nn.Linear(3, 2)
    before = torch.get_rng_state()
    loader = DataLoader(
        TensorDataset(torch.ones(8, 3), torch.arange(8)), batch_size=4, shuffle=True
    )
    batches(loader, model).first()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("batch", "args", "kwargs"),
    [
        ((torch.ones(2, 3), torch.ones(2, 3), torch.zeros(2)), 2, []),
        (((torch.ones(2, 3), torch.ones(2, 3)), torch.zeros(2)), 2, []),
        (({"a": torch.ones(2, 3), "b": torch.ones(2, 3)}, torch.zeros(2)), 0, ["a", "b"]),
        ({"a": torch.ones(2, 3), "labels": torch.zeros(2)}, 0, ["a", "labels"]),
        ({"a": torch.ones(2, 3), "y": torch.zeros(2)}, 0, ["a"]),
    ],
)
def test_several_inputs_and_names_reach_the_model(batch: Any, args: int, kwargs: list[str]) -> None:
    found: Batch = batches([batch], Named()).first()
    assert (len(found.args), list(found.kwargs), found.size) == (args, kwargs, 2)
    assert torch.equal(found.targets, torch.zeros(2))
    assert found.run(Named()).shape == (2, 2)


def test_several_inputs_in_memory_are_cut_into_batches() -> None:
    a, b = torch.randn(5, 3), torch.randn(5, 3)
    for data in (((a, b), torch.arange(5)), ({"a": a, "b": b}, torch.arange(5))):
        found = list(batches(data, Named(), batch_size=2))
        assert [batch.size for batch in found] == [2, 2, 1]
        outputs = torch.cat([batch.run(lambda a, b: a + b) for batch in found])  # type: ignore
        assert torch.equal(outputs, a + b)


def test_images_in_bytes_are_scaled_and_tokens_are_not() -> None:
    images = torch.full((4, 1, 2, 2), 255, dtype=torch.uint8)
    assert batches((images, torch.zeros(4).long())).first().args[0].unique().tolist() == [1.0]
    tokens = torch.full((4, 5), 7, dtype=torch.uint8)
    found = batches((tokens, torch.zeros(4).long())).first().args[0]
    assert (found.dtype, found.unique().tolist()) == (torch.int64, [7])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.ones(4, 2), "train_data is a Tensor"),
        ((torch.ones(4, 2),), "train_data contains a tuple of 1"),
        (None, "train_data is missing"),
        (7, "train_data is an int"),
        ((object(), torch.ones(4)), "inputs of train_data are an object"),
        ((torch.ones(4, 2), torch.ones(3)), "4 inputs but 3 targets"),
        ((torch.ones(1, 2), torch.ones(1)), "train_data has 1 sample"),
        (TensorDataset(torch.ones(4, 2)), "train_data contains a tuple of 1"),
        (DataLoader(TensorDataset(torch.ones(4, 2))), "train_data contains a list of 1"),
        (Pairs(torch.ones(0, 2), torch.ones(0)), "train_data has no samples"),
        (iter([(torch.ones(2, 2), torch.ones(2))]), "can be read only once"),
        ((torch.ones(4, 2).to_sparse(), torch.ones(4)), "inputs of train_data are sparse"),
    ],
)
def test_invalid_data_are_rejected_on_one_line(data: Any, message: str) -> None:
    with pytest.raises(BadDataError, match=message) as caught:
        batches(data).first()
    assert "\n" not in str(caught.value)


class Fatal(Pairs):
    """Kills the process that reads it, or raises what a dead connection does."""

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        if self.targets[number] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ConnectionResetError("of the data's server")


def test_a_worker_that_dies_is_named_and_what_it_raises_is_kept() -> None:
    model, x = nn.Linear(2, 2), torch.zeros(4, 2)
    for targets, kind, message in (
        (torch.zeros(4), BadDataError, "a worker process of train_data died"),
        (torch.ones(4), ConnectionResetError, "of the data's server"),
    ):
        loader = DataLoader(Fatal(x, targets), batch_size=2, num_workers=1)
        with pytest.raises(kind, match=message):
            list(Batches(loader, "train_data", model, batch_size=2, shuffle=False))

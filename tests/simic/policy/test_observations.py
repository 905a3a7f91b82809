"""Observations of any space become tensors that are their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from esper.errors import UnsupportedEnvironmentError
from esper.simic.policy.observations import ObservationSpec, leaves_of

SPACES: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-1.0, 1.0, (3,)),
    "number": spaces.Box(-1.0, 1.0, ()),
    "table": spaces.Box(-1.0, 1.0, (2, 3), np.float64),
    "bytes": spaces.Box(0, 255, (4,), np.uint8),
    "image": spaces.Box(0, 255, (6, 5, 3), np.uint8),
    "category": spaces.Discrete(4, start=2),
    "categories": spaces.MultiDiscrete([2, 5], start=[1, -3]),
    "bits": spaces.MultiBinary(3),
    "dict": spaces.Dict({"b": spaces.Discrete(3), "a": spaces.Box(0.0, 1.0, (2,))}),
    "tuple": spaces.Tuple([spaces.Box(0.0, 1.0, (2,)), spaces.Discrete(3, start=5)]),
}


@pytest.mark.parametrize("name", SPACES)
def test_a_list_of_observations_and_a_batch_of_them_are_read_alike(name: str) -> None:
    space = SPACES[name]
    spec, batched = ObservationSpec.from_space(space), batch_space(space, 4)
    batched.seed(0)
    batch = batched.sample()
    each = [take(batch, i) for i in range(4)]
    from_batch, from_list = leaves_of(spec.read(batch)), leaves_of(spec.read_list(each))
    assert from_batch.keys() == from_list.keys()
    for leaf in from_batch:
        torch.testing.assert_close(from_batch[leaf], from_list[leaf], rtol=0, atol=0)
    assert spec.batch_of(batch) == 4
    assert spec.batch_of(each[0]) is None
    stored = leaves_of(spec.zeros(7, 4))
    for leaf, tensor in from_batch.items():
        assert (stored[leaf].dtype, stored[leaf].shape) == (tensor.dtype, (7, *tensor.shape))


def take(batch: Any, i: int) -> Any:
    if isinstance(batch, dict):
        return {name: value[i] for name, value in batch.items()}
    return tuple(part[i] for part in batch) if isinstance(batch, tuple) else batch[i]


def test_categories_count_from_zero() -> None:
    spec = ObservationSpec.from_space(SPACES["category"])
    assert leaves_of(spec.read(np.array([2, 5])))[""].tolist() == [0, 3]
    spec = ObservationSpec.from_space(SPACES["categories"])
    assert leaves_of(spec.read(np.array([[1, -3], [2, 1]])))[""].tolist() == [[0, 0], [1, 4]]


def test_bytes_are_stored_as_bytes_and_other_numbers_in_single_precision() -> None:
    def dtype(name: str) -> torch.dtype:
        return leaves_of(ObservationSpec.from_space(SPACES[name]).zeros(1))[""].dtype

    assert dtype("image") is dtype("bytes") is torch.uint8
    assert dtype("table") is dtype("bits") is torch.float32
    assert dtype("category") is torch.int64


def test_what_was_read_does_not_change_with_the_array() -> None:
    for name in ("vector", "image", "category"):
        spec = ObservationSpec.from_space(SPACES[name])
        array = np.ones((2, *SPACES[name].shape), SPACES[name].dtype) * 2  # type: ignore[misc]
        read = leaves_of(spec.read(array))[""].clone()
        held = leaves_of(spec.read(array))[""]
        array[:] = 0
        assert torch.equal(held, read)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(4),
        spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)})}),
        spaces.Sequence(spaces.Discrete(2)),
    ],
    ids=["text", "nested", "sequence"],
)
def test_other_spaces_are_refused_with_advice(space: spaces.Space[Any]) -> None:
    with pytest.raises(UnsupportedEnvironmentError, match="FlattenObservation"):
        ObservationSpec.from_space(space)

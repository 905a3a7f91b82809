"""Packed files agree with the safetensors library in both directions."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from esper.storage.tensors import has_code, pack, unpack
from tests.storage.states import DTYPES, exact, tensors

NAMED = st.dictionaries(
    st.text(min_size=1, max_size=6).filter(lambda name: name != "__metadata__"),
    tensors(),
    max_size=5,
)


def _sorted(named: dict[str, Tensor]) -> dict[str, Tensor]:
    return dict(sorted(named.items()))


@given(NAMED)
def test_the_library_reads_packed_files(named: dict[str, Tensor]) -> None:
    assert exact(_sorted(load(b"".join(pack(named))))) == exact(_sorted(named))


@given(NAMED)
def test_files_of_the_library_are_unpacked(named: dict[str, Tensor]) -> None:
    content = save({name: tensor.clone().contiguous() for name, tensor in named.items()})
    assert exact(_sorted(unpack(content))) == exact(_sorted(named))


@given(NAMED)
def test_every_tensor_is_aligned_to_its_element_size(named: dict[str, Tensor]) -> None:
    content = b"".join(pack(named))
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0
    header = json.loads(content[8 : 8 + length])
    assert all(header[name]["data_offsets"][0] % t.itemsize == 0 for name, t in named.items())


def test_packed_pieces_are_copies() -> None:
    tensor = torch.arange(6.0)
    pieces = pack({"a": tensor})
    tensor.zero_()
    assert unpack(b"".join(pieces))["a"].tolist() == [0, 1, 2, 3, 4, 5]


def test_unpacked_tensors_have_their_own_memory() -> None:
    named = unpack(b"".join(pack({"a": torch.ones(4), "b": torch.ones(4)})))
    named["a"].zero_()
    assert named["b"].tolist() == [1, 1, 1, 1]
    assert named["b"].untyped_storage().nbytes() == 16


@pytest.mark.parametrize("dtype", [torch.complex128, torch.qint8, torch.complex32])
def test_unsupported_dtypes_have_no_code(dtype: torch.dtype) -> None:
    assert not has_code(dtype)
    assert all(has_code(known) for known in DTYPES)

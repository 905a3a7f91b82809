"""States for tests: tensors of every dtype, and states made from a number."""

from __future__ import annotations

import struct
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from esper.storage.state import decode, encode

DTYPES = [
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]


def state_of(step: int, *, numel: int = 300) -> dict[str, Any]:
    """Return a small state whose tensors differ from those of every other step."""
    generator = torch.Generator().manual_seed(step)
    policy = {
        "weight": torch.randn(numel, generator=generator),
        "bias": torch.randn(3, generator=generator).bfloat16(),
        "generator": generator.get_state(),
    }
    return {"policy": policy, "step": step, "rates": [step / 3, -0.0], "name": f"étape {step}"}


def passed_on(state: Any) -> dict[Any, Any]:
    """Return a state as it comes out of its files."""
    return decode({name: b"".join(pieces) for name, pieces in encode(state).items()})


def bits_of(tensor: Tensor) -> tuple[torch.dtype, torch.Size, list[int]]:
    """Return a tensor's dtype, shape and bits, which distinguish NaNs and signed zeros."""
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return tensor.dtype, tensor.shape, flat.view(torch.uint8).tolist() if flat.numel() else []


def exact(value: Any) -> Any:
    """Return a form of a value whose equality means the same types, order and bits."""
    if isinstance(value, Tensor):
        return ("tensor", *bits_of(value))
    if isinstance(value, dict):
        return ("dict", [(exact(key), exact(item)) for key, item in value.items()])
    if isinstance(value, (list, tuple)):
        return (type(value), [exact(item) for item in value])
    if isinstance(value, float):
        return ("float", "nan" if value != value else struct.pack("<d", value))
    return (type(value), value)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Draw a tensor of any dtype and bits with 0 to 3 axes, sometimes a view."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    n_bytes = torch.Size(shape).numel() * dtype.itemsize
    raw = draw(st.binary(min_size=n_bytes, max_size=n_bytes))
    data = torch.tensor(list(raw), dtype=torch.uint8)
    tensor = (data & 1 if dtype == torch.bool else data).view(dtype).reshape(shape)
    return draw(st.sampled_from([tensor, tensor.T if tensor.ndim == 2 else tensor]))


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64),
    st.floats(),
    st.text(st.characters(codec=None), max_size=5),
)

"""Fast encoding and decoding of safetensors files.

    8 bytes   the length of the header, little-endian
    header    JSON: {name: {"dtype": ..., "shape": [...], "data_offsets": [start, end]}, ...}
    data      the values of all tensors, one after another

The safetensors library takes about 50 microseconds per tensor, and a population of hosts has
thousands of small ones. Here one call gathers, or hands out, all tensors of the same element size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import groupby
from typing import Any, cast

import torch
from torch import Tensor

_CODES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}

# In descending size, so that every tensor starts at a multiple of its element size.
_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def has_code(dtype: torch.dtype) -> bool:
    """Return whether a file can hold tensors of a dtype."""
    return dtype in _CODES


def pack(tensors: Mapping[str, Tensor]) -> list[memoryview]:
    """Return the content of a file in pieces that share no memory with the tensors."""
    header: dict[str, Any] = {}
    pieces: list[memoryview] = []
    offset = 0
    for size, word in _WORDS.items():
        flat: list[Tensor] = []
        for name, tensor in tensors.items():
            if tensor.itemsize == size:
                end = offset + tensor.numel() * size
                code, shape = _CODES[tensor.dtype], list(tensor.shape)
                header[name] = {"dtype": code, "shape": shape, "data_offsets": [offset, end]}
                flat.append(_values(tensor).view(word))
                offset = end
        if flat:
            pieces.append(torch.cat(flat).view(torch.uint8).numpy().data)
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    return [memoryview(len(text).to_bytes(8, "little") + text), *pieces]


def unpack(content: bytes) -> dict[str, Tensor]:
    """Return the tensors of a file, each with its own memory.

    The content must come from :func:`pack`, as shown by its hash: it is not validated here.
    """
    start = 8 + int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8:start])
    if not header:
        return {}
    data = torch.frombuffer(bytearray(content[start:]) or bytearray(1), dtype=torch.uint8)
    found: dict[str, Tensor] = {}
    for size, group in groupby(header.items(), lambda item: _DTYPES[item[1]["dtype"]].itemsize):
        entries = dict(group)
        places = [entry["data_offsets"] for entry in entries.values()]
        words = data[places[0][0] : places[-1][1]].view(_WORDS[size])
        sizes = [(end - at) // size for at, end in places]
        copies: Any = torch.split_with_sizes_copy(words, sizes)
        values = cast("tuple[Tensor, ...]", copies)
        for (name, entry), value in zip(entries.items(), values, strict=True):
            found[name] = value.view(_DTYPES[entry["dtype"]]).view(entry["shape"])
    return found


def _values(tensor: Tensor) -> Tensor:
    """Return a tensor's values as a flat tensor on the CPU."""
    plain = tensor.detach().cpu()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    return plain.reshape(-1)

"""Tensors between devices, and what tensor arguments must be.

Two functions are all that makes the host wait for a device: :func:`read_numbers`, once per epoch
of an update, and :func:`to_host`, once per step of the environments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.errors import ConfigError, DeviceError, DtypeError, ShapeError, type_of

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def choose_device(device: str | torch.device) -> torch.device:
    """Return the device that a name stands for; ``"auto"`` is CUDA, MPS or the CPU.

    Raises:
        ConfigError: If there is no such device here.
    """
    if str(device) == "auto":
        has_mps = torch.backends.mps.is_available()
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, TypeError) as error:
        found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        usable = ", ".join(repr(name) for name in ("auto", "cpu", *found) if found.get(name, True))
        raise ConfigError(
            f"device is {str(device)!r}, which cannot be used here; use one of {usable}."
        ) from error
    return chosen


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device; the host does not wait for the copy to CUDA."""
    if device.type == "cpu":
        return tensor
    if device.type == "cuda" and tensor.is_cpu:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def read_numbers(tensor: Tensor) -> list[float]:
    """Copy a small tensor to the host, which waits for it: the only way that an update does."""
    return cast("list[float]", tensor.reshape(-1).tolist())


def to_host(tensor: Tensor) -> NDArray[Any]:
    """Copy a tensor to the host, which waits for it: once per step, for the environments."""
    return tensor.cpu().numpy()


def check_tensor(
    name: str,
    given: object,
    shape: Sequence[int | str] | None = None,
    dtype: torch.dtype | Sequence[torch.dtype] | None = None,
    device: torch.device | None = None,
    *,
    is_cast: bool = False,
) -> None:
    """Reject an argument that is not a dense tensor of a shape, a dtype and a device.

    Args:
        name: What it is called, for messages.
        given: The argument.
        shape: Its sizes; a name stands for any size of at least 1. None for any shape.
        dtype: Its dtype, or several that will do; None for any.
        device: Where it must be; None for anywhere.
        is_cast: Whether another dtype of the same kind (bool, integer, floating) will do.

    Raises:
        TensorError: If it is something else.
    """
    if not isinstance(given, Tensor):
        raise DtypeError(f"{name} is {type_of(given)}; a torch.Tensor is needed.")
    if given.layout is not torch.strided:
        raise DtypeError(f"{name} has layout {given.layout}; it is not a dense tensor.")
    if shape is not None and given.shape != shape and not _fits(given.shape, shape):
        needed = ", ".join(map(str, shape))
        raise ShapeError(f"{name} has shape {tuple(given.shape)}; [{needed}] is needed.")
    if dtype is not None and given.dtype is not dtype:
        allowed = (dtype,) if isinstance(dtype, torch.dtype) else tuple(dtype)
        does_kind = is_cast and _kind(given.dtype) == _kind(allowed[0])
        if given.dtype not in allowed and not does_kind:
            words = " or ".join(map(str, allowed))
            raise DtypeError(f"{name} has dtype {given.dtype}; {words} is needed.")
    if device is not None and given.device != device:
        raise DeviceError(f"{name} is on {given.device}; {device} is needed.")


def _fits(sizes: Sequence[int], needed: Sequence[int | str]) -> bool:
    return len(sizes) == len(needed) and all(
        size > 0 if isinstance(wanted, str) else size == wanted
        for size, wanted in zip(sizes, needed, strict=True)
    )


def _kind(dtype: torch.dtype) -> tuple[bool, bool]:
    return dtype.is_floating_point, dtype is torch.bool

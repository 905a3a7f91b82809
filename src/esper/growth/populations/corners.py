"""Smaller tensors as the leading corner of larger ones, zeros elsewhere.

A module with fewer hidden units computes what a larger one of the same structure does whose other
units are zero, and training keeps them zero, wherever an activation of zero is zero.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

Shape = tuple[int, ...]


def is_corner(shape: Shape, of: Shape) -> bool:
    """Return whether a tensor of one shape fits into one of another."""
    return len(shape) == len(of) and all(a <= b for a, b in zip(shape, of, strict=True))


def cut_corner(tensor: Tensor, shape: Shape) -> Tensor:
    """Return the leading corner of a tensor, in its memory."""
    for axis, size in enumerate(shape):
        if tensor.shape[axis] != size:
            tensor = tensor.narrow(axis, 0, size)
    return tensor


def pad_corner(tensor: Tensor, shape: Shape) -> Tensor:
    """Return a tensor of this shape that has ``tensor`` in its corner; itself if it is as large."""
    if tuple(tensor.shape) == shape:
        return tensor
    padded = tensor.new_zeros(shape)
    cut_corner(padded, tuple(tensor.shape)).copy_(tensor)
    return padded


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, Shape]:
    """Return the shape of each tensor by name."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def find_misfit(shapes: Mapping[str, Shape], design: Mapping[str, Shape]) -> str | None:
    """Return why tensors of these shapes are no corners of a design's, or None if they are."""
    if shapes.keys() != design.keys():
        name = min(shapes.keys() ^ design.keys())
        owner = "the design" if name in design else "it"
        return f"only {owner} has a tensor {name}"
    for name, shape in shapes.items():
        if not is_corner(shape, design[name]):
            return f"its {name} has shape {list(shape)}, the design's {list(design[name])}"
    return None

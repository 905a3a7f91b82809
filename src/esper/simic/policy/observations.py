"""Observations of any Gymnasium space as tensors: one tensor, or a dict of tensors by name.

Shapes: ``B`` any number of observations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike
from torch import Tensor

from esper.errors import ShapeError, UnsupportedEnvironmentError, type_of
from esper.simic.tensors import check_tensor

Observations = Tensor | dict[str, Tensor]
"""``[B, ...]``, or such a tensor for each name of a ``Dict`` or ``Tuple`` space."""
ObservationLike = ArrayLike | Tensor | Mapping[str, ArrayLike | Tensor]
"""An observation as an environment gives it, or a batch of them."""

Kind = Literal["vector", "image", "category"]

_DTYPES = {"float32": torch.float32, "uint8": torch.uint8, "int64": torch.int64}


@dataclass(frozen=True)
class ObservationLeaf:
    """One tensor of an observation."""

    kind: Kind
    """A ``vector`` of numbers, an ``image`` (three axes) or one or more ``category`` numbers."""

    shape: tuple[int, ...]
    """Without the batch axis."""

    dtype: str
    """How it is stored: ``float32``, ``uint8`` or ``int64``."""

    counts: tuple[int, ...] = ()
    """Categories of each number of a ``category`` leaf."""

    starts: tuple[int, ...] = ()
    """The first category of each number of a ``category`` leaf."""

    @property
    def is_channels_last(self) -> bool:
        """Whether an image's channels are its last axis, as most environments have them."""
        return self.shape[-1] <= self.shape[0]

    @property
    def is_byte_image(self) -> bool:
        """Whether an image holds 0 to 255, which networks see as 0 to 1."""
        return self.kind == "image" and self.dtype == "uint8"

    def read(self, batch: Any, name: str = "") -> Tensor:
        """Return values ``[B, ...]`` as a tensor of its own, as they are stored.

        Raises:
            ShapeError: If they have another shape, by the name of the leaf.
        """
        if any(self.starts):
            batch = np.asarray(batch) - np.asarray(self.starts).reshape(self.shape)
        array = np.array(batch, self.dtype, order="C")
        tensor = torch.from_numpy(array)
        check_tensor(_full_name(name), tensor, ("batch", *self.shape))
        return tensor


@dataclass(frozen=True)
class ObservationSpec:
    """The tensors that an observation consists of."""

    leaves: Mapping[str, ObservationLeaf]
    """By name; a space that is neither ``Dict`` nor ``Tuple`` has one leaf, named ``""``."""

    @classmethod
    def of(cls, size: int | ObservationSpec) -> ObservationSpec:
        """Describe observations that are vectors of a size, or return what describes others."""
        if isinstance(size, ObservationSpec):
            return size
        return cls({"": ObservationLeaf("vector", (int(size),), "float32")})

    @classmethod
    def from_space(cls, space: spaces.Space[Any]) -> ObservationSpec:
        """Describe a Gymnasium observation space.

        ``Box``, ``Discrete``, ``MultiDiscrete``, ``MultiBinary``, or a ``Dict`` or ``Tuple`` of
        these.

        Raises:
            UnsupportedEnvironmentError: If the space is of another kind.
        """
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            parts = cast(Any, space).spaces
            pairs = parts.items() if isinstance(space, spaces.Dict) else enumerate(parts)
            return cls({str(key): _leaf(part, str(key)) for key, part in pairs})
        return cls({"": _leaf(space, "")})

    @property
    def single(self) -> ObservationLeaf | None:
        """The only leaf of an observation that is one tensor; None for several."""
        return self.leaves.get("")

    @property
    def n_bytes(self) -> int:
        """Bytes of one observation."""
        leaves = self.leaves.values()
        return sum(math.prod(leaf.shape) * _DTYPES[leaf.dtype].itemsize for leaf in leaves)

    def read(self, batch: Any) -> Observations:
        """Return a batch of observations, as a vector environment gives it, as tensors."""
        single = self.single
        if single is not None:
            return single.read(batch)
        return {name: leaf.read(_part(batch, name), name) for name, leaf in self.leaves.items()}

    def read_list(self, observations: list[Any]) -> Observations:
        """Return observations of several environments as tensors ``[B, ...]``."""
        single = self.single
        if single is not None:
            return single.read(observations)
        return {
            name: leaf.read([_part(observation, name) for observation in observations], name)
            for name, leaf in self.leaves.items()
        }

    def batch_of(self, observation: Any) -> int | None:
        """Return the batch size of an observation as an environment gives it; None for one."""
        name, leaf = next(iter(self.leaves.items()))
        value = observation if name == "" else _part(observation, name)
        try:
            shape = np.shape(value)
        except ValueError as error:
            raise ShapeError(
                f"the observation is {type_of(value)} whose parts differ in shape; an array of "
                f"shape {leaf.shape} is needed."
            ) from error
        n_axes = len(shape) - len(leaf.shape)
        if n_axes not in (0, 1):
            raise ShapeError(
                f"the observation has shape {shape}; {leaf.shape}, with or without a batch before "
                "it, is needed."
            )
        return None if n_axes == 0 else int(shape[0])

    def require_fit(self, observations: Observations, like: Tensor) -> None:
        """Reject tensors that are not ``[B, ...]`` of the space, on the device of a weight.

        Raises:
            TensorError: Naming the tensor. Real numbers must have the dtype of the weight.
        """
        given = leaves_of(observations)
        for name, leaf in self.leaves.items():
            dtype = like.dtype if leaf.dtype == "float32" else None
            shape = ("batch", *leaf.shape)
            check_tensor(_full_name(name), given.get(name), shape, dtype, like.device)

    def misfit(self, observation: Any) -> str | None:
        """Return in words why one observation does not fit the space; None if it does.

        Raises:
            ShapeError: If a part is missing.
        """
        for name, leaf in self.leaves.items():
            value = observation if name == "" else _part(observation, name)
            part = f" {name!r}" if name else ""
            try:
                shape = np.array(value, leaf.dtype).shape
            except (TypeError, ValueError):
                return f"the observation{part} is {type_of(value)}, not an array of numbers"
            if shape != leaf.shape:
                return f"the observation{part} has shape {shape}; the space has {leaf.shape}"
        return None

    def zeros(self, *batch: int, device: torch.device | str = "cpu") -> Observations:
        """Return observations ``[*batch, ...]`` of zeros."""
        made = {
            name: torch.zeros(*batch, *leaf.shape, dtype=_DTYPES[leaf.dtype], device=device)
            for name, leaf in self.leaves.items()
        }
        return made[""] if self.single is not None else made


def map_leaves(function: Callable[[Tensor], Tensor], observations: Observations) -> Observations:
    """Return observations with a function applied to each tensor."""
    if isinstance(observations, Tensor):
        return function(observations)
    return {name: function(tensor) for name, tensor in observations.items()}


def leaves_of(observations: Observations) -> dict[str, Tensor]:
    """Return the tensors of observations by name; a single one is named ``""``."""
    return observations if isinstance(observations, dict) else {"": observations}


def named_leaves(prefix: str, observations: Observations) -> dict[str, Tensor]:
    """Return the tensors of observations by their full names, such as ``observations.camera``."""
    leaves = leaves_of(observations)
    return {f"{prefix}.{name}" if name else prefix: leaf for name, leaf in leaves.items()}


def _full_name(name: str) -> str:
    return f"observations[{name!r}]" if name else "observations"


def batch_size(observations: Observations) -> int:
    """Return the length of the first axis."""
    return next(iter(leaves_of(observations).values())).shape[0]


def _part(observation: Any, name: str) -> Any:
    is_named = isinstance(observation, Mapping) or not name.isdigit()
    key: Any = name if is_named else int(name)
    try:
        return cast(Any, observation)[key]
    except (LookupError, TypeError) as error:
        raise ShapeError(
            f"the observation is {type_of(cast(object, observation))} without a part {name!r}, "
            "which the observation space has."
        ) from error


def _leaf(space: spaces.Space[Any], name: str) -> ObservationLeaf:
    if isinstance(space, spaces.Box):
        shape = tuple(int(n) for n in space.shape)
        is_image = len(shape) == 3
        dtype = "uint8" if space.dtype == np.uint8 else "float32"
        return ObservationLeaf("image" if is_image else "vector", shape, dtype)
    if isinstance(space, spaces.Discrete):
        return ObservationLeaf("category", (), "int64", (int(space.n),), (int(space.start),))
    if isinstance(space, spaces.MultiDiscrete):
        several = cast(Any, space)
        counts = tuple(int(n) for n in several.nvec.ravel())
        starts = tuple(int(n) for n in several.start.ravel())
        return ObservationLeaf("category", tuple(space.shape), "int64", counts, starts)
    if isinstance(space, spaces.MultiBinary):
        return ObservationLeaf("vector", tuple(cast(Any, space.shape)), "float32")
    where = f" {name!r}" if name else ""
    raise UnsupportedEnvironmentError(
        f"the observation space{where} is {space}; Box, Discrete, MultiDiscrete, MultiBinary, or "
        "one Dict or Tuple of these is needed. Wrap the environment in "
        "gymnasium.wrappers.FlattenObservation."
    )

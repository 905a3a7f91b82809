"""Where a slot sits: what grows there, and the tensors that pass through a block.

Everything here is plain data, so a saved model's slots can be restored without a dry run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, cast

from torch import Tensor, nn

from esper.growth.surgery.places import BlockList, Group


class TensorKind(Enum):
    """The layout of a block's output.

    Examples:
        >>> [kind.name for kind in esper.TensorKind]
        ['FEATURE_MAP', 'SEQUENCE', 'VECTOR']
    """

    FEATURE_MAP = "feature map [B, C, H, W]"
    SEQUENCE = "sequence [B, T, D]"
    VECTOR = "vector [B, D]"


_KIND_BY_RANK = {4: TensorKind.FEATURE_MAP, 3: TensorKind.SEQUENCE, 2: TensorKind.VECTOR}


def kind_of(value: object) -> TensorKind | None:
    """Return the kind of a block's output, or None if no seed can grow on it."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return None
    return _KIND_BY_RANK.get(value.ndim)


def width_of(shape: Sequence[int], kind: TensorKind) -> int:
    """Return the number of channels or features of a tensor of this shape."""
    return int(shape[1] if kind == TensorKind.FEATURE_MAP else shape[-1])


def describe(value: object) -> str:
    """Return a short description of a value, for error messages."""
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"a {dtype} tensor of shape {list(value.shape)}"
    if isinstance(value, (tuple, list)):
        parts = cast(Sequence[object], value)
        return f"a {type(parts).__name__} of ({', '.join(map(describe, parts))})"
    return "nothing" if value is None else f"a {type(value).__name__}"


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "identity": nn.Identity,
}
"""The activations of built-in hosts."""


@dataclass(frozen=True, kw_only=True)
class SlotSize:
    """The size of one host's slot."""

    kind: TensorKind
    hidden: int
    """Units of each place of a group, or blocks of a list; 0 for a slot beside a block."""
    unit_parameters: int
    """Parameters that one more of them would add."""


SiteKind = Literal["units", "blocks", "module"]
"""What grows in a slot: hidden units, copies of blocks, or modules beside a block."""


@dataclass(frozen=True, kw_only=True)
class SlotSite:
    """A place in a model where it can grow, as it was found.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(32, 4)
        >>> model = esper.add_slots(model, at=["0>2"], sample_input=x)
        >>> site = esper.slots(model)["0>2"].site
        >>> site.name, site.what, site.size
        ('0>2', 'units', 8)
    """

    name: str
    kind: TensorKind
    group: Group | None = None
    """The places that get more units together."""
    blocks: BlockList | None = None
    """The list of blocks that gets more of them."""
    output_shape: tuple[int, ...] = ()
    """Shape of the output of a block that modules grow beside, in the dry run, with the batch."""
    input_shape: tuple[int, ...] | None = None
    """Shape of the tensor that parallel seeds read; None if they cannot grow here."""
    input_key: int | str | None = None
    """The block's argument that holds that tensor: a position or a keyword."""
    why_no_parallel: str = ""
    """Why parallel seeds cannot grow here; empty if they can."""

    @property
    def what(self) -> SiteKind:
        """What grows here."""
        if self.group is not None:
            return "units"
        return "module" if self.blocks is None else "blocks"

    @property
    def size(self) -> int:
        """Units of each place of a group, or blocks of a list; 0 beside a block."""
        if self.group is not None:
            return self.group.units
        return 0 if self.blocks is None else self.blocks.length

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the modules that change when something grows here."""
        if self.group is not None:
            return tuple(name for place in self.group.places for name in place.layers)
        return (self.name,) if self.blocks is None else (self.blocks.container,)

    def __repr__(self) -> str:
        return f"SlotSite({self.name!r}, {self.what}, {self.kind.value})"

    @property
    def width(self) -> int:
        """Channels or features of the block's output."""
        return width_of(self.output_shape, self.kind)

    @property
    def input_width(self) -> int:
        """Channels or features of the block's input."""
        assert self.input_shape is not None, "the input of this site is unknown"
        return width_of(self.input_shape, self.kind)

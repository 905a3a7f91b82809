"""Where a slot sits: the tensors that pass through it and the structure of its block.

Everything here is plain data, so a saved model's slots can be restored without a dry run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, cast

from torch import Tensor, nn


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
"""The activations that a widening seed can copy from its block."""


@dataclass(frozen=True, kw_only=True)
class ConvShape:
    """The geometry of a convolution."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class BlockPath:
    """The two layers of a block between which hidden units can be added.

    The block computes ``rest(x) + second(activation(norm(first(x))))``, where the norm is optional
    and acts on each unit separately.
    """

    first: str
    """Name of the first layer inside the block; empty if the block itself is that layer."""
    second: str
    norm: str | None
    activation: str
    hidden: int
    """Number of units between the two layers."""
    has_first_bias: bool
    norm_eps: float = 1e-5
    norm_momentum: float = 0.1
    first_conv: ConvShape | None = None
    """Geometry of a convolutional layer; None if the layers are linear."""
    second_conv: ConvShape | None = None


@dataclass(frozen=True, kw_only=True)
class BlockIdentity:
    """How a residual block becomes the identity, so that a copy of it can start unnoticed.

    With the parameters of some layers set to zero, the block computes ``x``. A block that ends in
    a norm, ``norm(x + f(x))``, computes ``x`` if ``x`` is normalized and all norms of its residual
    stream have weight 1 and bias 0.
    """

    zeroed: tuple[str, ...]
    """Names, inside the block, of the layers whose own parameters are zeroed."""
    norms: tuple[str, ...] = ()
    """Names of the norms of the residual stream of a block that ends in one; that one is last."""
    is_universal: bool = True
    """Whether it then computes ``x`` for every ``x``, not only for what the block returns."""
    has_cache: bool = False
    """Whether the block is called with a key-value cache, of which a copy needs its own layer."""
    is_entry: bool = False
    """Whether the block is an entry of a list of modules that can take one more."""


@dataclass(frozen=True, kw_only=True)
class PairLayer:
    """One layer of a pair: a producer of units, a norm between, or a consumer."""

    name: str
    """Its name in the model."""
    kind: str
    """The name of its class."""
    n_in: int
    n_out: int
    settings: tuple[tuple[str, Any], ...] = ()
    """Further arguments of its constructor."""
    offset: int = 0
    """Where the producer's units start in what the layer reads."""
    per_unit: int = 1
    """Number of inputs that each unit has there: more than one after a flatten."""
    input_shape: tuple[int, ...] = ()
    """Shape of its input in the dry run."""

    @property
    def unit_axis(self) -> int:
        """The axis of its input and output that the units lie along."""
        if self.kind.startswith("BatchNorm"):
            return 1
        # Convolutions of n dimensions have their channels before n spatial axes.
        is_conv = self.kind.startswith("Conv") and self.kind.endswith("d")
        return -1 - int(self.kind[-2]) if is_conv else -1


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A layer that produces units and all layers that read them.

    Whatever is between them acts on each unit separately.
    """

    producer: PairLayer
    consumers: tuple[PairLayer, ...]
    norms: tuple[PairLayer, ...]
    """Batch norms between, which have parameters for each unit."""
    units: int
    """Number of units between producer and consumers."""
    crossed: tuple[str, ...]
    """Names of the modules that the units enter or leave."""

    @property
    def name(self) -> str:
        """The name of a slot on this pair."""
        return f"{self.producer.name}>{'+'.join(layer.name for layer in self.consumers)}"

    @property
    def layers(self) -> tuple[PairLayer, ...]:
        """The producer, the norms and the consumers."""
        return (self.producer, *self.norms, *self.consumers)

    def beside(self, neighbours: Iterable[tuple[Pair, int]]) -> Pair:
        """Return the pair as a seed sees it that also reads and feeds new units of others."""
        producer, consumers = self.producer, list(self.consumers)
        for other, n_units in neighbours:
            for layer in other.consumers:
                if layer.name == producer.name:
                    n_in = producer.n_in + n_units * layer.per_unit
                    producer = replace(producer, n_in=n_in)
            for index, layer in enumerate(consumers):
                if layer.name == other.producer.name:
                    consumers[index] = replace(layer, n_out=layer.n_out + n_units)
        return replace(self, producer=producer, consumers=tuple(consumers))


@dataclass(frozen=True, kw_only=True)
class SlotSize:
    """The size of one host's slot: its tensor kind and its block's hidden units."""

    kind: TensorKind
    hidden: int
    """Units between the block's two layers; 0 if they were not recognized."""
    unit_parameters: int
    """Parameters that one more hidden unit would add; 0 if they were not recognized."""


@dataclass(frozen=True, kw_only=True)
class SlotSite:
    """A place in a model where a seed can grow.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(32, 4)
        >>> model = esper.add_slots(model, at=["0>2"], sample_input=x)
        >>> site = esper.slots(model)["0>2"].site
        >>> site.name, site.kind.name
        ('0>2', 'VECTOR')
    """

    name: str
    kind: TensorKind
    output_shape: tuple[int, ...]
    """Shape of the block's output in the dry run, including the batch."""
    input_shape: tuple[int, ...] | None = None
    """Shape of the tensor that parallel seeds read; None if they cannot grow here."""
    input_key: int | str | None = None
    """The block's argument that holds that tensor: a position or a keyword."""
    why_no_parallel: str = ""
    """Why parallel seeds cannot grow here; empty if they can."""
    path: BlockPath | None = None
    """The block's two layers, if they were recognized."""
    identity: BlockIdentity | None = None
    """How a copy of the block becomes the identity; None if the block is not residual."""
    why_not_residual: str = "the block is not known to be residual"
    """Why a copy of the block cannot follow it; empty if it can."""
    pair: Pair | None = None
    """The pair of layers that the slot adds units to; None if the slot is on a block. The block's
    output is then the producer's."""
    max_units: int | None = None
    """Hidden units that may be reached by widening; None for any number."""
    is_for_depth: bool = False
    """Whether only copies of the block grow here, because slots inside it widen its layers."""

    @property
    def can_widen(self) -> bool:
        """Whether widening adds hidden units to the model's own layers.

        Seeds on other blocks, such as a single layer, grow beside the block.
        """
        return self.path is not None or self.pair is not None

    @property
    def hidden(self) -> int:
        """Hidden units of the block or the pair; 0 if they were not recognized."""
        if self.pair is not None:
            return self.pair.units
        return 0 if self.path is None else self.path.hidden

    @property
    def room(self) -> int | None:
        """Hidden units that may be added; None for any number."""
        if self.max_units is None or self.hidden == 0:
            return None
        return max(0, self.max_units - self.hidden)

    def __repr__(self) -> str:
        return f"SlotSite({self.name!r}, {self.kind.value}, width {self.width})"

    @property
    def modules(self) -> tuple[str, ...]:
        """Names of the modules that the slot replaces while it is in use, the block first."""
        return (self.name,) if self.pair is None else tuple(x.name for x in self.pair.layers)

    @property
    def width(self) -> int:
        """Channels or features of the block's output."""
        return width_of(self.output_shape, self.kind)

    @property
    def input_width(self) -> int:
        """Channels or features of the block's input."""
        assert self.input_shape is not None, "the input of this site is unknown"
        return width_of(self.input_shape, self.kind)

    @property
    def stride(self) -> tuple[int, int]:
        """Downsampling factor of the block along each axis of a feature map."""
        assert self.input_shape is not None, "the input of this site is unknown"
        (rows, columns), (rows_out, columns_out) = self.input_shape[2:], self.output_shape[2:]
        # A stride s turns n into ceil(n / s); this is the least s that does.
        return -(-rows // rows_out), -(-columns // columns_out)

    def widened(self, units: int) -> SlotSite:
        """Return the site of a block or a pair that has ``units`` more hidden units."""
        if self.pair is not None:
            return replace(self, pair=replace(self.pair, units=self.pair.units + units))
        if self.path is None or units == 0:
            return self
        return replace(self, path=replace(self.path, hidden=self.path.hidden + units))

    def limited(self, max_widening: float | None) -> SlotSite:
        """Return the site, before growth, with a limit on hidden units relative to its own."""
        if max_widening is None or self.max_units is not None:
            return self
        return replace(self, max_units=round(max_widening * self.hidden))

    def beside(self, neighbours: Iterable[tuple[Pair, int]]) -> SlotSite:
        """Return a pair's site as a seed sees it that reads and feeds new units of other pairs."""
        assert self.pair is not None, "the site is a block"
        assert self.input_shape is not None, "the input of this site is unknown"
        pair, shape = self.pair.beside(neighbours), list(self.input_shape)
        shape[pair.producer.unit_axis] = pair.producer.n_in
        return replace(self, pair=pair, input_shape=tuple(shape))

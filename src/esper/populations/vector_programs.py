"""Translating a host of linear layers and convolutions into a program for the compiled kernel.

A program is a list of ops on values; a value is a layer's output for a batch, and the first value
is the input. Only known layer types become ops: a host or seed with any other module has no program
and is computed with tensor operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from torch import nn

from esper.growth.blueprints import SeedForm
from esper.growth.blueprints.deepening import BlockCopy
from esper.growth.blueprints.seeds import NoopSeed, SqueezeExciteSeed
from esper.growth.blueprints.widening import WidenSeed
from esper.growth.hosts import CNNHost, MLPHost, PlainBlock, ResidualBlock
from esper.growth.modules import named_children
from esper.lifecycle.factored_actions import BlendStyle
from esper.populations.rows import Shape

MAX_VALUES = 512
MAX_PARAMETERS = 512
MAX_NUMBERS = 2**17
"""Most numbers per sample of all values; larger hosts gain nothing from staying in cache."""

OP_FIELDS = ("kind", "to", "from", "other", "weight", "bias", "is_detached", "slot")
MAP_FIELDS = ("height", "width", "n_groups", "buffer", "repeat")
OP_NUMBERS = ("number", "momentum")
OPS = np.dtype(
    [(name, np.int64) for name in (*OP_FIELDS, *MAP_FIELDS)]
    + [(name, np.float64) for name in OP_NUMBERS]
)
PARAMETER_FIELDS = ("part", "offset", "n_rows", "n_columns", "stride")
PARAMETERS = np.dtype([(name, np.int64) for name in PARAMETER_FIELDS])
PROGRAM_FIELDS = ("n_values", "n_parameters", "n_ops", "output", "sizes", "parameters", "ops")
PROGRAM = np.dtype([(name, np.int64) for name in PROGRAM_FIELDS])


class OpKind(IntEnum):
    """The kinds of ops."""

    LINEAR = 0
    NORM = 1
    RELU = 2
    GELU = 3
    TANH = 4
    GATE = 5
    """Twice the sigmoid."""
    ZERO = 6
    ADD = 7
    PRODUCT = 8
    SCALE = 9
    """``from`` times the factors in ``other``, each of which serves ``repeat`` numbers in a row."""
    PASS = 10
    """``from`` unchanged; ``other`` gets its gradient as well."""
    BLEND = 11
    """``from`` plus alpha times ``other``."""
    CONV = 12
    BATCH_NORM = 13
    POOL = 14
    """The mean of as many numbers in a row as there are for each result."""


class NoProgramError(Exception):
    """A module that no ops can express."""


@dataclass(frozen=True, eq=False)
class RowLayout:
    """The layout of a module's parameters in a row, and their unpadded sizes."""

    part: int
    """Index of the part: 0 for the host, then the seed and the gate of each slot, then those of
    each fossil."""
    shapes: Mapping[str, Shape]
    """Padded shapes of all parameters of a row, in order."""
    own: Mapping[str, Shape]
    """Unpadded shapes of one host's parameters."""
    buffers: Sequence[str] = ()
    """Names of the module's buffers."""


@dataclass(frozen=True, eq=False)
class Fragment:
    """The ops of a module, which can be inserted anywhere in any program.

    Values are numbered from those that the module is given, parameters and alphas from its own.
    """

    shapes: list[Shape]
    """Shapes of all values."""
    n_given: int
    parameters: list[tuple[int, ...]]
    ops: list[tuple[Any, ...]]
    output: int
    names: frozenset[str]
    """The module's parameters that it reads."""


Fragments = dict[Any, Fragment]
"""Known fragments by what distinguishes them."""


@dataclass(frozen=True, eq=False)
class SeedPlan:
    """Seeds or fossils of one kind, as programs of any hosts hold them."""

    template: nn.Module
    form: SeedForm
    layout: RowLayout
    """Part 1; that of a gate is part 2. Those of the seed with number n come 2 n later."""
    style: BlendStyle
    is_isolated: bool
    gate: tuple[nn.Module, RowLayout] | None = None
    fragments: Fragments = field(default_factory=Fragments)


Seeds = Mapping[str, Sequence[tuple[int, SeedPlan]]]
"""The seeds of each slot in order, each with its number, which is the index of its alpha: the
slot's for a seed, then one for each fossil."""


class Program:
    """A program in the kernel's binary format."""

    def __init__(self, shapes: list[Shape], parameters: list[Any], ops: list[Any]) -> None:
        self.sizes = np.array([prod(shape) for shape in shapes], np.int64)
        self.n_outputs = int(self.sizes[ops[-1][1]])
        self.parameters = np.array(parameters, PARAMETERS)
        self.ops = np.array(ops, OPS)
        tables = (self.sizes, self.parameters, self.ops)
        counts = (*(len(table) for table in tables), ops[-1][1])
        self.header = np.array([(*counts, *(table.ctypes.data for table in tables))], PROGRAM)
        self.address: int = self.header.ctypes.data


def write_program(
    template: nn.Module,
    layout: RowLayout,
    inputs: Shape,
    seeds: Seeds,
    fragments: Fragments | None = None,
) -> Program:
    """Return the program of a host with some seeds.

    A sample's shape is ``(features,)`` or ``(channels, height, width)``. ``fragments`` are those of
    hosts with the same template and layout, which this call uses and adds to.

    Raises:
        NoProgramError: If a module has no ops.
    """
    writer = _Writer([inputs])
    known: Fragments = {} if fragments is None else fragments
    _ModuleWriter(writer, layout, frozenset({0}), seeds, known).write(template, 0)
    if len(writer.shapes) > MAX_VALUES or len(writer.parameters) > MAX_PARAMETERS:
        raise NoProgramError("the program is too long")
    if sum(prod(shape) for shape in writer.shapes) > MAX_NUMBERS:
        raise NoProgramError("the host is too large")
    if not writer.ops or not writer.parameters:
        raise NoProgramError("the program is empty")
    return Program(writer.shapes, writer.parameters, writer.ops)


class _Writer:
    """The values, parameters and ops of a program or fragment under construction."""

    def __init__(self, shapes: Sequence[Shape]) -> None:
        """Start with the values that are given."""
        self.shapes = list(shapes)
        self.n_given = len(shapes)
        self.parameters: list[tuple[int, ...]] = []
        self.ops: list[tuple[Any, ...]] = []

    def add_value(self, shape: Shape) -> int:
        """Add a value with this shape for each sample and return its index."""
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def add_op(
        self,
        kind: OpKind,
        shape: Shape,
        source: int,
        *,
        other: int = 0,
        weight: int = 0,
        bias: int = -1,
        is_detached: bool = False,
        slot: int = 0,
        number: float = 0.0,
        momentum: float = 0.0,
        **of_map: int,
    ) -> int:
        """Add an op and return the index of its result."""
        to = self.add_value(shape)
        integers = (int(kind), to, source, other, weight, bias, is_detached, slot)
        on_maps = (of_map.get(name, 0) for name in MAP_FIELDS)
        self.ops.append((*integers, *on_maps, number, momentum))
        return to

    def finish(self, output: int, names: frozenset[str] = frozenset()) -> Fragment:
        """Return what was written as a fragment."""
        return Fragment(self.shapes, self.n_given, self.parameters, self.ops, output, names)

    def insert(self, fragment: Fragment, given: Sequence[int], number: int = 0) -> int:
        """Insert a fragment that reads the given values, and return the index of its output.

        ``number`` is the index of its alpha; the parts of its parameters follow from it.
        """
        values = [*given, *range(len(self.shapes), len(self.shapes) + len(fragment.shapes))]
        first = len(self.parameters)
        self.shapes += fragment.shapes[fragment.n_given :]
        self.parameters += [(part + 2 * number, *rest) for part, *rest in fragment.parameters]
        self.ops += [
            (
                kind,
                values[to],
                values[source],
                values[other],
                first + weight,
                bias if bias < 0 else first + bias,
                is_detached,
                slot + number,
                *rest,
            )
            for kind, to, source, other, weight, bias, is_detached, slot, *rest in fragment.ops
        ]
        return values[fragment.output]


class _ModuleWriter:
    """Writes the ops of one module, whose parameters are in one row."""

    def __init__(
        self,
        writer: _Writer,
        layout: RowLayout,
        detached: frozenset[int],
        seeds: Seeds,
        fragments: Fragments,
    ) -> None:
        self.writer = writer
        self.layout = layout
        self.detached = detached
        """Values that get no gradient."""
        self.seeds = seeds
        self.fragments = fragments
        ends = accumulate(map(prod, layout.shapes.values()), initial=0)
        self.offsets = dict(zip(layout.shapes, ends, strict=False))
        self.unused = set(layout.shapes)

    def write(self, module: nn.Module, source: int) -> int:
        """Write a whole module and return its output; raise if a parameter is unused."""
        output = self._write(module, "", source)
        if self.unused:
            raise NoProgramError(f"parameter {min(self.unused)} is unused")
        return output

    def _write(self, module: nn.Module, name: str, source: int) -> int:
        """Write a module and its seeds; without seeds inside it, it is a fragment."""
        prefix = f"{name}." if name else ""
        if any(slot.startswith(prefix) for slot in self.seeds):
            output = self._write_own(module, name, source)
        else:
            fragment = self._find_fragment(module, name, source)
            if not fragment.names <= self.unused:
                used = min(fragment.names - self.unused)
                raise NoProgramError(f"parameter {used} is missing or used twice")
            self.unused -= fragment.names
            output = self.writer.insert(fragment, [source])
        for number, seed in self.seeds.get(name, ()) if name else ():
            output = self._write_seed(seed, number, source, output)
        return output

    def _find_fragment(self, module: nn.Module, name: str, source: int) -> Fragment:
        shape, is_detached = self.writer.shapes[source], source in self.detached
        key = name, shape, is_detached
        if key not in self.fragments:
            detached = frozenset({0} if is_detached else ())
            own = _ModuleWriter(_Writer([shape]), self.layout, detached, {}, {})
            output = own._write_own(module, name, 0)
            names = frozenset(self.layout.shapes) - own.unused
            self.fragments[key] = own.writer.finish(output, names)
        return self.fragments[key]

    def _write_own(self, module: nn.Module, name: str, source: int) -> int:
        """Write a module without its own seeds."""
        own = vars(module)
        if own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own:
            raise NoProgramError("a module has hooks")
        prefix = f"{name}." if name else ""
        layer = _LAYERS.get(type(module))
        if layer is not None:
            return layer(self, module, prefix, source)
        forward = type(module).forward
        chain = _CHAINS.get(forward)
        if forward is nn.Sequential.forward:
            chain = tuple(name for name, _ in named_children(module))
        if isinstance(module, BlockCopy) and not _is_residual(module.block):
            chain = None
        if chain is None:
            raise NoProgramError(f"{type(module).__name__} has no op")
        output = source
        for child in chain:
            output = self._write(module.get_submodule(child), f"{prefix}{child}", output)
        if forward is ResidualBlock.forward:
            _require_apart(output, source)
            output = self.add(OpKind.ADD, source, other=output)
        return output

    def _write_seed(self, seed: SeedPlan, number: int, x: int, y: int) -> int:
        """Write the seed on a block with input x and output y; return the changed output."""
        shapes, detached = self.writer.shapes, self.detached
        key = shapes[x], shapes[y], x in detached, y in detached
        if key not in seed.fragments:
            seed.fragments[key] = _write_seed_fragment(seed, *key)
        return self.writer.insert(seed.fragments[key], [x, y], number)

    def add(self, kind: OpKind, source: int, **fields: Any) -> int:
        """Add an op that keeps the shape of its source."""
        is_detached = source in self.detached
        shape = self.writer.shapes[source]
        return self.writer.add_op(kind, shape, source, is_detached=is_detached, **fields)

    def _add_parameter(self, name: str) -> int:
        if name not in self.unused:
            raise NoProgramError(f"parameter {name} is missing or used twice")
        self.unused.remove(name)
        own, padded = self.layout.own[name], self.layout.shapes[name]
        if own[2:] != padded[2:]:
            raise NoProgramError(f"the kernels of {name} are padded")
        n_rows, first = (own[0], 1) if len(own) > 1 else (1, 0)
        sizes = prod(own[first:]), prod(padded[first:])
        place = (self.layout.part, self.offsets[name], n_rows, *sizes)
        self.writer.parameters.append(place)
        return len(self.writer.parameters) - 1

    def write_linear(self, layer: Any, prefix: str, source: int) -> int:
        """Write a linear layer."""
        n_outputs, n_inputs = self.layout.own[f"{prefix}weight"]
        if self.writer.shapes[source] != (n_inputs,):
            raise NoProgramError("a layer expects another input size")
        return self.writer.add_op(
            OpKind.LINEAR,
            (n_outputs,),
            source,
            weight=self._add_parameter(f"{prefix}weight"),
            bias=-1 if layer.bias is None else self._add_parameter(f"{prefix}bias"),
            is_detached=source in self.detached,
        )

    def write_conv(self, layer: Any, prefix: str, source: int) -> int:
        """Write a 3x3 convolution with padding 1, or a 1x1 convolution without groups."""
        n_channels, height, width = self._map_shape(source)
        n_outputs, n_inputs, *kernel = self.layout.own[f"{prefix}weight"]
        is_small = kernel == [3, 3] and layer.padding == (1, 1)
        is_pointwise = kernel == [1, 1] and layer.padding == (0, 0) and layer.groups == 1
        if not (is_small or is_pointwise) or layer.padding_mode != "zeros":
            raise NoProgramError("a convolution is neither 3x3 with padding 1 nor 1x1")
        if layer.stride != (1, 1) or layer.dilation != (1, 1):
            raise NoProgramError("a convolution has a stride or a dilation")
        if n_inputs * layer.groups != n_channels:
            raise NoProgramError("a convolution expects other channels")
        return self.writer.add_op(
            OpKind.CONV,
            (n_outputs, height, width),
            source,
            weight=self._add_parameter(f"{prefix}weight"),
            bias=-1 if layer.bias is None else self._add_parameter(f"{prefix}bias"),
            is_detached=source in self.detached,
            height=height,
            width=width,
            n_groups=layer.groups,
        )

    def write_batch_norm(self, layer: Any, prefix: str, source: int) -> int:
        """Write a batch norm of feature maps."""
        n_channels = self._map_shape(source)[0]
        if not layer.affine or not layer.track_running_stats or layer.momentum is None:
            raise NoProgramError("a batch norm has no parameters, statistics or momentum")
        if self.layout.own[f"{prefix}weight"] != (n_channels,):
            raise NoProgramError("a batch norm expects other channels")
        return self.add(
            OpKind.BATCH_NORM,
            source,
            other=self.writer.add_value((n_channels,)),
            weight=self._add_parameter(f"{prefix}weight"),
            bias=self._add_parameter(f"{prefix}bias"),
            buffer=self.layout.buffers.index(f"{prefix}running_mean"),
            number=layer.eps,
            momentum=layer.momentum,
        )

    def write_group_norm(self, layer: Any, prefix: str, source: int) -> int:
        """Write a norm over all channels and positions."""
        n_channels = self._map_shape(source)[0]
        if layer.num_groups != 1 or self.layout.own.get(f"{prefix}weight") != (n_channels,):
            raise NoProgramError("a group norm has several groups or no parameters")
        return self._add_norm(layer, prefix, source)

    def write_pool(self, layer: Any, prefix: str, source: int) -> int:
        """Write the mean over all positions."""
        n_channels = self._map_shape(source)[0]
        if layer.output_size not in (1, (1, 1)):
            raise NoProgramError("a pool has several outputs")
        return self._add_pool((n_channels, 1, 1), source)

    def write_flatten(self, layer: Any, prefix: str, source: int) -> int:
        """Write a copy of a map as a vector."""
        if (layer.start_dim, layer.end_dim) != (1, -1):
            raise NoProgramError("some axes are not flattened")
        return self._add_pool((prod(self._map_shape(source)),), source)

    def _add_pool(self, shape: Shape, source: int) -> int:
        is_detached = source in self.detached
        return self.writer.add_op(OpKind.POOL, shape, source, is_detached=is_detached)

    def write_squeeze_excite(self, layer: Any, prefix: str, source: int) -> int:
        """Write a map times a function of it with one number per channel."""
        _, height, width = self._map_shape(source)
        factors = self._write(layer.excite, f"{prefix}excite", source)
        return self.add(OpKind.SCALE, source, other=factors, repeat=height * width)

    def _map_shape(self, source: int) -> Shape:
        """Return the channels, height and width of a feature map."""
        shape = self.writer.shapes[source]
        if len(shape) != 3:
            raise NoProgramError("a layer expects a feature map")
        return shape

    def write_norm(self, layer: Any, prefix: str, source: int) -> int:
        """Write a layer norm over all features."""
        shape = self.writer.shapes[source]
        is_whole = len(shape) == 1 and self.layout.own.get(f"{prefix}weight") == shape
        if layer.bias is None or not is_whole:
            raise NoProgramError("a layer norm is not over all features, or has no parameters")
        return self._add_norm(layer, prefix, source)

    def _add_norm(self, layer: Any, prefix: str, source: int) -> int:
        return self.add(
            OpKind.NORM,
            source,
            other=self.writer.add_value((prod(self.writer.shapes[source]) + 1,)),
            weight=self._add_parameter(f"{prefix}weight"),
            bias=self._add_parameter(f"{prefix}bias"),
            number=layer.eps,
        )

    def write_relu(self, layer: Any, prefix: str, source: int) -> int:
        """Write a ReLU."""
        if layer.inplace:
            raise NoProgramError("an activation is in place")
        return self.add(OpKind.RELU, source)

    def write_gelu(self, layer: Any, prefix: str, source: int) -> int:
        """Write an exact GELU."""
        if layer.approximate != "none":
            raise NoProgramError("an activation is approximate")
        return self.add(
            OpKind.GELU, source, other=self.writer.add_value(self.writer.shapes[source])
        )


def _write_seed_fragment(
    seed: SeedPlan, x_shape: Shape, y_shape: Shape, is_x_detached: bool, is_y_detached: bool
) -> Fragment:
    """Return the fragment of a seed that is given its block's input x and output y."""
    writer, x, y = _Writer([x_shape, y_shape]), 0, 1
    flags = (seed.is_isolated or is_x_detached, seed.is_isolated or is_y_detached)
    detached = frozenset(value for value, is_detached in enumerate(flags) if is_detached)
    own = _ModuleWriter(writer, seed.layout, detached, {}, {})
    change = own.write(seed.template, y if seed.form == SeedForm.SERIAL else x)
    _require_apart(change, x, y)
    if writer.shapes[change] != y_shape:
        raise NoProgramError("a seed's output has another shape than its block's")
    if seed.style == BlendStyle.MULTIPLY_LINEAR:
        factor = own.add(OpKind.TANH, change)
        change = own.add(OpKind.PRODUCT, y, other=factor)
    elif seed.style == BlendStyle.LEARNED_GATE:
        if seed.gate is None:
            raise NoProgramError("a seed has no gate")
        gates = _ModuleWriter(writer, seed.gate[1], detached, {}, {})
        opening = gates.add(OpKind.GATE, gates.write(seed.gate[0], y))
        change = own.add(OpKind.SCALE, change, other=opening, repeat=1)
    kind = OpKind.PASS if seed.is_isolated else OpKind.BLEND
    # Isolation concerns what the seed reads; its block always gets the gradient of the result.
    output = writer.add_op(kind, y_shape, y, other=change, is_detached=is_y_detached)
    return writer.finish(output)


def _require_apart(value: int, *others: int) -> None:
    if value in others:
        raise NoProgramError("a block returns its input")


def _is_residual(block: nn.Module) -> bool:
    own = vars(block)
    has_hooks = own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own
    return type(block).forward is ResidualBlock.forward and not has_hooks


_TWO_LAYERS = ("first", "norm", "activation", "second")
_CHAINS: dict[Callable[..., Any], tuple[str, ...]] = {
    MLPHost.forward: ("stem", "blocks", "head"),
    CNNHost.forward: ("stem", "blocks", "pool", "head"),
    PlainBlock.forward: _TWO_LAYERS,
    ResidualBlock.forward: _TWO_LAYERS,
    WidenSeed.forward: _TWO_LAYERS,
    # What a copied residual block changes is its residual branch.
    BlockCopy.forward: tuple(f"block.{name}" for name in _TWO_LAYERS),
}
"""Children of modules that apply them in sequence, by forward function."""

_LAYERS: dict[type[nn.Module], Callable[[_ModuleWriter, Any, str, int], int]] = {
    nn.Linear: _ModuleWriter.write_linear,
    nn.Conv2d: _ModuleWriter.write_conv,
    nn.LayerNorm: _ModuleWriter.write_norm,
    nn.BatchNorm2d: _ModuleWriter.write_batch_norm,
    nn.GroupNorm: _ModuleWriter.write_group_norm,
    nn.ReLU: _ModuleWriter.write_relu,
    nn.GELU: _ModuleWriter.write_gelu,
    nn.Tanh: lambda writer, layer, prefix, source: writer.add(OpKind.TANH, source),
    nn.AdaptiveAvgPool2d: _ModuleWriter.write_pool,
    nn.Flatten: _ModuleWriter.write_flatten,
    nn.Identity: lambda writer, layer, prefix, source: source,
    SqueezeExciteSeed: _ModuleWriter.write_squeeze_excite,
    NoopSeed: lambda writer, layer, prefix, source: writer.add(OpKind.ZERO, source),
}

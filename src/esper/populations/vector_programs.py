"""Translating a host of linear layers into a program for the compiled kernel.

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
from esper.growth.blueprints.seeds import NoopSeed
from esper.growth.blueprints.widening import WidenSeed
from esper.growth.hosts import MLPHost, PlainBlock, ResidualBlock
from esper.growth.modules import named_children
from esper.lifecycle.factored_actions import BlendStyle
from esper.populations.rows import Shape

MAX_VALUES = 512
MAX_PARAMETERS = 512

OP_FIELDS = ("kind", "to", "from", "other", "weight", "bias", "is_detached", "slot")
OPS = np.dtype([(name, np.int64) for name in OP_FIELDS] + [("number", np.float64)])
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
    """``other`` times the one number per sample in ``from``."""
    PASS = 10
    """``from`` unchanged; ``other`` gets its gradient as well."""
    BLEND = 11
    """``from`` plus alpha times ``other``."""


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


@dataclass(frozen=True, eq=False)
class Fragment:
    """The ops of a module, which can be inserted anywhere in any program.

    Values are numbered from those that the module is given, parameters and alphas from its own.
    """

    sizes: list[int]
    """Sizes of all values."""
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

    def __init__(self, sizes: list[int], parameters: list[Any], ops: list[Any]) -> None:
        self.n_outputs = sizes[ops[-1][1]]
        self.sizes = np.array(sizes, np.int64)
        self.parameters = np.array(parameters, PARAMETERS)
        self.ops = np.array(ops, OPS)
        tables = (self.sizes, self.parameters, self.ops)
        counts = (*(len(table) for table in tables), ops[-1][1])
        self.header = np.array([(*counts, *(table.ctypes.data for table in tables))], PROGRAM)
        self.address: int = self.header.ctypes.data


def write_program(
    template: nn.Module,
    layout: RowLayout,
    n_inputs: int,
    seeds: Seeds,
    fragments: Fragments | None = None,
) -> Program:
    """Return the program of a host with some seeds.

    Args:
        template: The host.
        layout: Where its parameters are.
        n_inputs: Size of its input.
        seeds: Its seeds by slot name.
        fragments: Fragments of hosts with the same template and layout, which this call uses and
            adds to.

    Raises:
        NoProgramError: If a module has no ops.
    """
    writer = _Writer([n_inputs])
    known: Fragments = {} if fragments is None else fragments
    _ModuleWriter(writer, layout, frozenset({0}), seeds, known).write(template, 0)
    if len(writer.sizes) > MAX_VALUES or len(writer.parameters) > MAX_PARAMETERS:
        raise NoProgramError("the program is too long")
    if not writer.ops or not writer.parameters:
        raise NoProgramError("the program is empty")
    return Program(writer.sizes, writer.parameters, writer.ops)


class _Writer:
    """The values, parameters and ops of a program or fragment under construction."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """Start with the values that are given."""
        self.sizes = list(sizes)
        self.n_given = len(sizes)
        self.parameters: list[tuple[int, ...]] = []
        self.ops: list[tuple[Any, ...]] = []

    def add_value(self, size: int) -> int:
        """Add a value with ``size`` numbers per sample and return its index."""
        self.sizes.append(size)
        return len(self.sizes) - 1

    def add_op(
        self,
        kind: OpKind,
        size: int,
        source: int,
        *,
        other: int = 0,
        weight: int = 0,
        bias: int = -1,
        is_detached: bool = False,
        slot: int = 0,
        number: float = 0.0,
    ) -> int:
        """Add an op and return the index of its result."""
        to = self.add_value(size)
        self.ops.append((int(kind), to, source, other, weight, bias, is_detached, slot, number))
        return to

    def finish(self, output: int, names: frozenset[str] = frozenset()) -> Fragment:
        """Return what was written as a fragment."""
        return Fragment(self.sizes, self.n_given, self.parameters, self.ops, output, names)

    def insert(self, fragment: Fragment, given: Sequence[int], number: int = 0) -> int:
        """Insert a fragment that reads the given values, and return the index of its output.

        Args:
            fragment: The fragment.
            given: The values that it is given.
            number: Index of its alpha; the parts of its parameters follow from it.
        """
        values = [*given, *range(len(self.sizes), len(self.sizes) + len(fragment.sizes))]
        first = len(self.parameters)
        self.sizes += fragment.sizes[fragment.n_given :]
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
                constant,
            )
            for kind, to, source, other, weight, bias, is_detached, slot, constant in fragment.ops
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
        size, is_detached = self.writer.sizes[source], source in self.detached
        key = name, size, is_detached
        if key not in self.fragments:
            detached = frozenset({0} if is_detached else ())
            own = _ModuleWriter(_Writer([size]), self.layout, detached, {}, {})
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
        sizes, detached = self.writer.sizes, self.detached
        key = sizes[x], sizes[y], x in detached, y in detached
        if key not in seed.fragments:
            seed.fragments[key] = _write_seed_fragment(seed, *key)
        return self.writer.insert(seed.fragments[key], [x, y], number)

    def add(self, kind: OpKind, source: int, **fields: Any) -> int:
        """Add an op that keeps the size of its source."""
        is_detached = source in self.detached
        size = self.writer.sizes[source]
        return self.writer.add_op(kind, size, source, is_detached=is_detached, **fields)

    def _add_parameter(self, name: str) -> int:
        if name not in self.unused:
            raise NoProgramError(f"parameter {name} is missing or used twice")
        self.unused.remove(name)
        own, stride = self.layout.own[name], self.layout.shapes[name][-1]
        n_rows = own[0] if len(own) == 2 else 1
        place = (self.layout.part, self.offsets[name], n_rows, own[-1], stride)
        self.writer.parameters.append(place)
        return len(self.writer.parameters) - 1

    def write_linear(self, layer: Any, prefix: str, source: int) -> int:
        """Write a linear layer."""
        n_outputs, n_inputs = self.layout.own[f"{prefix}weight"]
        if n_inputs != self.writer.sizes[source]:
            raise NoProgramError("a layer expects another input size")
        return self.writer.add_op(
            OpKind.LINEAR,
            n_outputs,
            source,
            weight=self._add_parameter(f"{prefix}weight"),
            bias=-1 if layer.bias is None else self._add_parameter(f"{prefix}bias"),
            is_detached=source in self.detached,
        )

    def write_norm(self, layer: Any, prefix: str, source: int) -> int:
        """Write a layer norm over all features."""
        size = self.writer.sizes[source]
        if layer.bias is None or self.layout.own.get(f"{prefix}weight") != (size,):
            raise NoProgramError("a layer norm is not over all features, or has no parameters")
        return self.add(
            OpKind.NORM,
            source,
            other=self.writer.add_value(size + 1),
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
        return self.add(OpKind.GELU, source, other=self.writer.add_value(self.writer.sizes[source]))

    def write_zero(self, layer: Any, prefix: str, source: int) -> int:
        """Write zeros."""
        return self.add(OpKind.ZERO, source)

    def write_nothing(self, layer: Any, prefix: str, source: int) -> int:
        """Write nothing and return the input."""
        return source


def _write_seed_fragment(
    seed: SeedPlan, x_size: int, y_size: int, is_x_detached: bool, is_y_detached: bool
) -> Fragment:
    """Return the fragment of a seed that is given its block's input x and output y."""
    writer, x, y = _Writer([x_size, y_size]), 0, 1
    flags = (seed.is_isolated or is_x_detached, seed.is_isolated or is_y_detached)
    detached = frozenset(value for value, is_detached in enumerate(flags) if is_detached)
    own = _ModuleWriter(writer, seed.layout, detached, {}, {})
    change = own.write(seed.template, y if seed.form == SeedForm.SERIAL else x)
    _require_apart(change, x, y)
    if writer.sizes[change] != y_size:
        raise NoProgramError("a seed's output is not as wide as its block's")
    if seed.style == BlendStyle.MULTIPLY_LINEAR:
        factor = own.add(OpKind.TANH, change)
        change = own.add(OpKind.PRODUCT, y, other=factor)
    elif seed.style == BlendStyle.LEARNED_GATE:
        if seed.gate is None:
            raise NoProgramError("a seed has no gate")
        gates = _ModuleWriter(writer, seed.gate[1], detached, {}, {})
        opening = gates.add(OpKind.GATE, gates.write(seed.gate[0], y))
        change = writer.add_op(OpKind.SCALE, writer.sizes[change], opening, other=change)
    kind = OpKind.PASS if seed.is_isolated else OpKind.BLEND
    # Isolation concerns what the seed reads; its block always gets the gradient of the result.
    output = writer.add_op(kind, y_size, y, other=change, is_detached=is_y_detached)
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
    PlainBlock.forward: _TWO_LAYERS,
    ResidualBlock.forward: _TWO_LAYERS,
    WidenSeed.forward: _TWO_LAYERS,
    # What a copied residual block changes is its residual branch.
    BlockCopy.forward: tuple(f"block.{name}" for name in _TWO_LAYERS),
}
"""Children of modules that apply them in sequence, by forward function."""

_LAYERS: dict[type[nn.Module], Callable[[_ModuleWriter, Any, str, int], int]] = {
    nn.Linear: _ModuleWriter.write_linear,
    nn.LayerNorm: _ModuleWriter.write_norm,
    nn.ReLU: _ModuleWriter.write_relu,
    nn.GELU: _ModuleWriter.write_gelu,
    nn.Identity: _ModuleWriter.write_nothing,
    NoopSeed: _ModuleWriter.write_zero,
}

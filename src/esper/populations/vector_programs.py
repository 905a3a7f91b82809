"""Translating a host into a program for the compiled kernel.

A program is a list of ops on values; a value is a layer's output for a batch, and the first value
is the input. A host is read in two stages: its modules give *steps*, which say in what order known
layers use which parameters, and the steps give a program once the shapes are known. Hosts with
equal steps and shapes share a program. A host with any other module has none: torch computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from esper.growth.blueprints import SeedForm
from esper.growth.blueprints.seeds import NoopSeed, SqueezeExciteSeed
from esper.growth.hosts import CNNHost, MLPHost, PlainBlock, ResidualBlock
from esper.growth.seed_slot import AbsorbedSeed, SeedSlot
from esper.lifecycle.factored_actions import BlendStyle

MAX_VALUES = 512
MAX_PARAMETERS = 512
MAX_NUMBERS = 2**17
"""Most numbers per sample of all values; larger hosts gain nothing from staying in cache."""
MAX_WEIGHTS = 200_000
"""Most parameters for which the kernel is faster than torch, as benchmarks/README.md shows."""
MAX_PROGRAMS = 4_000
"""Most programs that are kept for hosts of the same structure to share."""

OPS = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("kind", "to", "from", "other", "weight", "bias", "is_detached", "slot"),
            *("height", "width", "n_groups", "mean", "variance", "repeat"),
        )
    ]
    + [("number", np.float64), ("momentum", np.float64)]
)
PARAMETERS = np.dtype(
    [(name, np.int64) for name in ("offset", "n_rows", "n_columns", "column", "index")]
    + [("factor", np.float64)]
)
PROGRAM = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("n_values", "n_parameters", "n_ops", "output", "plane"),
            *("sizes", "parameters", "ops"),
        )
    ]
)


class OpKind(IntEnum):
    """The kinds of ops, and of steps."""

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
    """``from`` plus alpha times ``other``; alpha is a slot's, or ``number`` if there is no slot."""
    CONV = 12
    BATCH_NORM = 13
    POOL = 14
    """The mean of as many numbers in a row as there are for each result."""
    DETACH = 15
    """Only a step: ``from``, to which no gradient flows."""


_READS_TWO = frozenset({OpKind.ADD, OpKind.PRODUCT, OpKind.SCALE, OpKind.PASS, OpKind.BLEND})
_KEEPS = frozenset({OpKind.NORM, OpKind.GELU, OpKind.BATCH_NORM})
"""Kinds whose ``other`` keeps what their backward pass needs."""


class NoProgramError(Exception):
    """A host that no program can express."""


class Step(NamedTuple):
    """One use of a layer; step n computes value n + 1."""

    kind: OpKind
    source: int
    other: int = 0
    weight: int = -1
    """Index of a parameter; -1 for none, as for the bias."""
    bias: int = -1
    slot: int = -1
    number: float = 0.0
    momentum: float = 0.0
    form: tuple[int, ...] = ()
    """What else distinguishes layers of this kind."""


class Program:
    """A program in the kernel's binary format, and its FLOPs for one sample."""

    def __init__(self, sizes: list[int], parameters: list[Any], ops: list[Any], plane: int) -> None:
        self._sizes = np.array(sizes, np.int64)
        self._parameters = np.array(parameters, PARAMETERS)
        self._ops = np.array(ops, OPS)
        tables = (self._sizes, self._parameters, self._ops)
        header = (*map(len, tables), ops[-1][1], plane)
        self._header = np.array([(*header, *(table.ctypes.data for table in tables))], PROGRAM)
        self.address: int = self._header.ctypes.data
        self.forward_flops = self.training_flops = 0.0


class TensorTable:
    """The parameters and buffers of a host by identity, and where each lies in its memory.

    Each parameter comes after the last, then each moment in the same order, then the buffers.
    """

    def __init__(self, model: nn.Module, n_planes: int) -> None:
        self.parameters: list[nn.Parameter] = []
        self.buffers: list[Tensor] = []
        self._add(model, set())
        self.shapes: tuple[tuple[int, ...], ...] = tuple(tuple(p.shape) for p in self.parameters)
        self.n_planes = n_planes
        self.sizes: list[int] = [prod(shape) for shape in self.shapes]
        self.plane = sum(self.sizes)
        """Number of parameters."""
        self.buffer_sizes: list[int] = [buffer.numel() for buffer in self.buffers]
        self.indices = {id(p): index for index, p in enumerate(self.parameters)}
        first = n_planes * self.plane
        offsets = accumulate(self.buffer_sizes, initial=first)
        self.buffer_offsets = {id(b): at for b, at in zip(self.buffers, offsets, strict=False)}
        self.length = first + sum(self.buffer_sizes)
        """Number of all numbers."""
        self.problem = self._find_problem()
        """Why the kernel cannot hold these tensors; None if it can."""

    def _add(self, module: nn.Module, known: set[int]) -> None:
        """Add the tensors of a module, each once, much faster than torch's own iteration."""
        own = module.__dict__
        for tensor in (*own["_parameters"].values(), *own["_buffers"].values()):
            if tensor is None or id(tensor) in known:
                continue
            known.add(id(tensor))
            if isinstance(tensor, nn.Parameter):
                self.parameters.append(tensor)
            elif tensor.is_floating_point():
                self.buffers.append(tensor)
        for child in own["_modules"].values():
            if child is not None:
                self._add(child, known)

    def _find_problem(self) -> str | None:
        tensors: list[Tensor] = [*self.parameters, *self.buffers]
        dtypes = {tensor.dtype for tensor in tensors}
        if len(dtypes) != 1:
            return "parameters and buffers have several dtypes"
        if any(tensor.device.type != "cpu" for tensor in tensors):
            return "parameters are not on the CPU"
        return None


_programs: dict[Any, Program | NoProgramError] = {}
"""The programs of all hosts of this process by what determines them."""


def write_program(
    model: nn.Module,
    table: TensorTable,
    inputs: tuple[int, ...],
    slots: Sequence[str],
    seeds: tuple[tuple[int, float], ...] = (),
) -> tuple[Program, list[Tensor]]:
    """Return the program of a host as it is, in training if gradients are enabled.

    Also return the buffers that count the batches of training of the batch norms in it.

    Args:
        model: The host.
        table: Its tensors.
        inputs: The shape of a sample: ``(features,)`` or ``(channels, height, width)``.
        slots: The names of its slots.
        seeds: For each parameter, the column of its gradient norm and the factor on its learning
            rate; by default those of the host's own.

    Raises:
        NoProgramError: If a module has no ops.
    """
    reader = _Reader(table, slots)
    reader.read(model, 0)
    key = (tuple(reader.steps), table.shapes, table.n_planes, inputs, seeds)
    found = _programs.get(key)
    if found is None:
        if len(_programs) >= MAX_PROGRAMS:
            _programs.clear()  # hosts hold the programs that they run
        try:
            found = _Writer(table, inputs, seeds).write(reader.steps)
        except NoProgramError as error:
            found = error
        _programs[key] = found
    if isinstance(found, NoProgramError):
        raise NoProgramError(str(found))
    return found, reader.counters


class _Reader:
    """Reads the steps of a host from its modules."""

    def __init__(self, table: TensorTable, slots: Sequence[str]) -> None:
        self.table = table
        self.slots = {name: number for number, name in enumerate(slots)}
        self.steps: list[Step] = []
        self.counters: list[Tensor] = []

    def add(self, kind: OpKind, source: int, **fields: Any) -> int:
        """Add a step and return the index of its value."""
        self.steps.append(Step(kind, source, **fields))
        return len(self.steps)

    def read(self, module: nn.Module, source: int) -> int:
        """Add the steps of a module and return its output."""
        own = module.__dict__
        if own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own:
            raise NoProgramError("a module has hooks")
        kind = type(module)
        if (layer := _LAYERS.get(kind)) is not None:
            return layer(self, module, source)
        forward = kind.forward
        chain = _CHAINS.get(forward)
        if forward is nn.Sequential.forward:
            chain = tuple(own["_modules"])
        if chain is None:
            raise NoProgramError(f"the engine has no {kind.__name__}")
        output = source
        for name in chain:
            output = self.read(own["_modules"][name], output)
        if forward is ResidualBlock.forward:
            output = self.add(OpKind.ADD, source, other=output)
        return output

    def weights(self, layer: nn.Module) -> dict[str, int]:
        """Return the indices of a layer's weight and bias, -1 for none."""
        own: dict[str, Tensor | None] = layer.__dict__["_parameters"]
        found = {"weight": -1, "bias": -1}
        for name in found:
            if (parameter := own[name]) is not None:
                if not parameter.requires_grad:
                    raise NoProgramError("a parameter is frozen")
                found[name] = self.table.indices[id(parameter)]
        return found

    def read_linear(self, layer: nn.Linear, source: int) -> int:
        """Add a linear layer."""
        return self.add(OpKind.LINEAR, source, **self.weights(layer))

    def read_conv(self, layer: nn.Conv2d, source: int) -> int:
        """Add a convolution."""
        if layer.padding_mode != "zeros" or layer.stride != (1, 1) or layer.dilation != (1, 1):
            raise NoProgramError("a convolution has a stride, a dilation or other padding")
        if isinstance(layer.padding, str):
            raise NoProgramError("a convolution's padding is not a number")
        form = (layer.groups, *layer.padding)
        return self.add(OpKind.CONV, source, **self.weights(layer), form=form)

    def read_batch_norm(self, layer: nn.BatchNorm2d, source: int) -> int:
        """Add a batch norm of feature maps."""
        mean, variance = layer.running_mean, layer.running_var
        if not layer.affine or mean is None or variance is None or layer.momentum is None:
            raise NoProgramError("a batch norm has no parameters, statistics or momentum")
        if layer.num_batches_tracked is not None:
            self.counters.append(layer.num_batches_tracked)
        at = self.table.buffer_offsets
        form = (at[id(mean)], at[id(variance)])
        numbers = {"number": layer.eps, "momentum": layer.momentum, "form": form}
        return self.add(OpKind.BATCH_NORM, source, **self.weights(layer), **numbers)

    def read_norm(self, layer: Any, source: int) -> int:
        """Add a layer norm over all features, or a group norm over all channels and positions."""
        is_group = isinstance(layer, nn.GroupNorm)
        if layer.weight is None or layer.bias is None or (is_group and layer.num_groups != 1):
            raise NoProgramError("a norm has several groups, or no weights or biases")
        own = self.weights(layer)
        return self.add(OpKind.NORM, source, **own, number=layer.eps, form=(1 + 2 * is_group,))

    def read_relu(self, layer: nn.ReLU, source: int) -> int:
        """Add a ReLU."""
        if layer.inplace:
            raise NoProgramError("an activation is in place")
        return self.add(OpKind.RELU, source)

    def read_gelu(self, layer: nn.GELU, source: int) -> int:
        """Add an exact GELU."""
        if layer.approximate != "none":
            raise NoProgramError("an activation is approximate")
        return self.add(OpKind.GELU, source)

    def read_pool(self, layer: nn.AdaptiveAvgPool2d, source: int) -> int:
        """Add the mean over all positions."""
        if layer.output_size not in (1, (1, 1)):
            raise NoProgramError("a pool has several outputs")
        return self.add(OpKind.POOL, source, form=(1,))

    def read_flatten(self, layer: nn.Flatten, source: int) -> int:
        """Add a copy of a sample as a vector."""
        if (layer.start_dim, layer.end_dim) != (1, -1):
            raise NoProgramError("some axes are not flattened")
        return self.add(OpKind.POOL, source, form=(0,))

    def read_squeeze_excite(self, layer: SqueezeExciteSeed, source: int) -> int:
        """Add a map times a function of it with one number per channel."""
        factors = self.read(layer.excite, source)
        return self.add(OpKind.SCALE, source, other=factors, form=(1,))

    def read_slot(self, slot: SeedSlot, source: int) -> int:
        """Add a block with the fossils and the seed that grow on it."""
        output = self.read(slot.block, source)
        for part, fossil in zip(slot.absorbed, slot.life.fossils, strict=True):
            change = self._read_seed(part, fossil.style, source, output)
            output = self.add(OpKind.BLEND, output, other=change, number=fossil.alpha)
        effect, _ = slot.current_effect()
        if effect == "none":
            return output
        if effect == "isolated":
            x, y = (self.add(OpKind.DETACH, value) for value in (source, output))
            change = self._read_seed(slot, slot.life.style, x, y)
            return self.add(OpKind.PASS, output, other=change)
        change = self._read_seed(slot, slot.life.style, source, output)
        return self.add(OpKind.BLEND, output, other=change, slot=self.slots[slot.name])

    def _read_seed(self, part: SeedSlot | AbsorbedSeed, style: BlendStyle, x: int, y: int) -> int:
        """Add what a seed on a block with input x and output y adds to y at alpha 1."""
        assert part.seed is not None, "the slot is empty"
        change = self.read(part.seed, y if part.form == SeedForm.SERIAL else x)
        if style == BlendStyle.MULTIPLY_LINEAR:
            return self.add(OpKind.PRODUCT, y, other=self.add(OpKind.TANH, change))
        if style == BlendStyle.LEARNED_GATE:
            assert part.gate is not None, "a gated seed has a gate"
            opening = self.add(OpKind.GATE, self.read(part.gate, y))
            return self.add(OpKind.SCALE, change, other=opening, form=(0,))
        return change


class _Writer:
    """Writes the program of steps for tensors of given shapes."""

    def __init__(
        self, table: TensorTable, inputs: tuple[int, ...], seeds: tuple[tuple[int, float], ...]
    ) -> None:
        self.table = table
        self.offsets = [0, *accumulate(table.sizes)]
        self.seeds = seeds or ((0, 1.0),) * len(table.shapes)
        self.shapes = [inputs]
        """The shape of each value for one sample."""
        self.has_gradient = [False]
        self.parameters: list[tuple[Any, ...]] = []
        self.ops: list[tuple[Any, ...]] = []
        self.used: set[int] = set()
        self.forward_flops = self.weight_flops = self.input_flops = 0

    def write(self, steps: Sequence[Step]) -> Program:
        """Return the program of these steps."""
        values = [0]
        """The value of each step's result."""
        detached = {0}
        """Results to which no gradient flows."""
        for number, step in enumerate(steps, start=1):
            source, other = values[step.source], values[step.other]
            if step.kind == OpKind.DETACH:
                values.append(source)
                detached.add(number)
                continue
            reads_two = step.kind in _READS_TWO
            if reads_two and source == other:
                raise NoProgramError("a block returns its input")
            is_detached = step.source in detached or not self.has_gradient[source]
            values.append(self._write_step(step, source, other, is_detached))
            others = reads_two and step.other not in detached and self.has_gradient[other]
            self.has_gradient[values[-1]] = step.weight >= 0 or not is_detached or others
        self._require_fit(values[-1])
        sizes = [prod(shape) for shape in self.shapes]
        program = Program(sizes, self.parameters, self.ops, self.table.plane)
        program.forward_flops = float(self.forward_flops)
        program.training_flops = program.forward_flops + self.weight_flops + self.input_flops
        return program

    def _require_fit(self, output: int) -> None:
        if not self.ops or not self.parameters or self.ops[-1][1] != output:
            raise NoProgramError("the program is empty")
        if len(self.shapes) > MAX_VALUES or len(self.parameters) > MAX_PARAMETERS:
            raise NoProgramError("the program is too long")
        if sum(map(prod, self.shapes)) > MAX_NUMBERS or self.table.plane > MAX_WEIGHTS:
            raise NoProgramError("the host is too large")
        if len(self.shapes[output]) != 1:
            raise NoProgramError("the output is not a vector")

    def _write_step(self, step: Step, source: int, other: int, is_detached: bool) -> int:
        """Add the op of a step and return the index of its value."""
        shape, kept = self._find_shapes(step, source, other)
        self._count_flops(step, shape, is_detached)
        height, width = self.shapes[source][1:] if len(self.shapes[source]) == 3 else (1, 1)
        groups = step.form[0] if step.kind == OpKind.CONV else 0
        mean, variance = step.form if step.kind == OpKind.BATCH_NORM else (0, 0)
        repeat = height * width if step.kind == OpKind.SCALE and step.form[0] else 1
        if step.kind in _KEEPS:
            other = self._add_value(kept)
        to = self._add_value(shape)
        weight, bias = (self._use(index) for index in (step.weight, step.bias))
        self.ops.append(
            (
                *(int(step.kind), to, source, other, weight, bias, is_detached, step.slot),
                *(height, width, groups, mean, variance, repeat, step.number, step.momentum),
            )
        )
        return to

    def _find_shapes(
        self, step: Step, source: int, other: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of a step's result and of what it keeps for the backward pass."""
        shape, shapes = self.shapes[source], self.table.shapes
        is_map = len(shape) == 3
        match step.kind:
            case OpKind.LINEAR:
                n_outputs, n_inputs = shapes[step.weight]
                _require(shape == (n_inputs,), "a layer expects another input size")
                return (n_outputs,), ()
            case OpKind.CONV:
                groups, *padding = step.form
                n_outputs, n_inputs, *kernel = shapes[step.weight]
                is_small = kernel == [3, 3] and padding == [1, 1]
                is_pointwise = kernel == [1, 1] and padding == [0, 0] and groups == 1
                _require(is_small or is_pointwise, "a convolution is neither 3x3 nor 1x1")
                is_fit = is_map and n_inputs * groups == shape[0]
                _require(is_fit, "a convolution expects other channels")
                return (n_outputs, *shape[1:]), ()
            case OpKind.BATCH_NORM:
                is_fit = is_map and shapes[step.weight] == shape[:1]
                _require(is_fit, "a batch norm expects other channels")
                return shape, shape[:1]
            case OpKind.NORM:
                is_fit = len(shape) == step.form[0] and shapes[step.weight] == shape[:1]
                _require(is_fit, "a norm is not over all features")
                return shape, (prod(shape) + 1,)
            case OpKind.POOL:
                if not step.form[0]:
                    return (prod(shape),), ()
                _require(is_map, "a pool expects a feature map")
                return (shape[0], 1, 1), ()
            case OpKind.SCALE:
                n_factors = shape[0] if step.form[0] else prod(shape[1:])
                _require(prod(self.shapes[other]) == n_factors, "factors do not fit")
                return shape, ()
            case OpKind.ADD | OpKind.PRODUCT | OpKind.PASS | OpKind.BLEND:
                _require(self.shapes[other] == shape, "a block's output has another shape")
                return shape, ()
            case _:
                return shape, shape

    def _count_flops(self, step: Step, shape: tuple[int, ...], is_detached: bool) -> None:
        """Add the FLOPs of a layer as torch's counter counts them."""
        if step.kind not in (OpKind.LINEAR, OpKind.CONV):
            return
        positions = prod(shape[1:])
        flops = 2 * prod(self.table.shapes[step.weight]) * positions
        self.forward_flops += flops
        # The counter takes the gradient of grouped weights for that of a whole convolution.
        self.weight_flops += flops * (step.form[0] if step.kind == OpKind.CONV else 1)
        self.input_flops += 0 if is_detached else flops

    def _add_value(self, shape: tuple[int, ...]) -> int:
        self.shapes.append(shape)
        self.has_gradient.append(False)
        return len(self.shapes) - 1

    def _use(self, index: int) -> int:
        """Add a parameter and return its index in the program; -1 for none."""
        if index < 0:
            return -1
        _require(index not in self.used, "a parameter is used twice")
        self.used.add(index)
        shape, (column, factor) = self.table.shapes[index], self.seeds[index]
        n_rows = shape[0] if len(shape) > 1 else 1
        n_columns = prod(shape[1:]) if len(shape) > 1 else prod(shape)
        self.parameters.append((self.offsets[index], n_rows, n_columns, column, index, factor))
        return len(self.parameters) - 1


def _require(is_fit: bool, problem: str) -> None:
    if not is_fit:
        raise NoProgramError(problem)


_TWO_LAYERS = ("first", "norm", "activation", "second")
_CHAINS: dict[Callable[..., Any], tuple[str, ...]] = {
    MLPHost.forward: ("stem", "blocks", "head"),
    CNNHost.forward: ("stem", "blocks", "pool", "head"),
    PlainBlock.forward: _TWO_LAYERS,
    ResidualBlock.forward: _TWO_LAYERS,
}
"""Children of modules that apply them in sequence, by forward function."""

_LAYERS: dict[type[nn.Module], Callable[[_Reader, Any, int], int]] = {
    nn.Linear: _Reader.read_linear,
    nn.Conv2d: _Reader.read_conv,
    nn.LayerNorm: _Reader.read_norm,
    nn.GroupNorm: _Reader.read_norm,
    nn.BatchNorm2d: _Reader.read_batch_norm,
    nn.ReLU: _Reader.read_relu,
    nn.GELU: _Reader.read_gelu,
    nn.Tanh: lambda reader, layer, source: reader.add(OpKind.TANH, source),
    nn.AdaptiveAvgPool2d: _Reader.read_pool,
    nn.Flatten: _Reader.read_flatten,
    nn.Identity: lambda reader, layer, source: source,
    SqueezeExciteSeed: _Reader.read_squeeze_excite,
    NoopSeed: lambda reader, layer, source: reader.add(OpKind.ZERO, source),
    SeedSlot: _Reader.read_slot,
}


def compiled_layers() -> list[str]:
    """Return the names of the PyTorch layers that programs can have."""
    return [kind.__name__ for kind in _LAYERS if kind.__module__.startswith("torch.")]

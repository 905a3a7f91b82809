"""Finding the layers whose zeroing turns a residual block into the identity.

There is no table of architectures. A copy of the block is run on the block's own output, and on
other values in the same range, while the parameters of some of its layers are zero. Layers are left
out of that set, in the order in which they run, as long as the block remains the identity, so that
what is zeroed in the end are the last layers of its residual branches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from esper.errors import summarize_error
from esper.growth.dry_run import call_model, hooked, recorded_calls
from esper.growth.modules import module_names, named_modules
from esper.growth.seed_slot import copy_plain
from esper.growth.surgery.places import BlockIdentity
from esper.modes import evaluation_mode

MAX_LAYERS = 64
"""Most layers of a block that is tried; a block with more has residual blocks inside it."""

NOISE = 0.1
"""Standard deviation added to all parameters, so that layers that are zero by chance differ."""

NORM_TOLERANCE = 1e-3
"""Largest relative change by a norm of normalized values; its epsilon makes it not quite zero."""

_LARGEST_CHANGE = 2.0
"""A redrawn weight whose standard deviation differs by more than this factor is rescaled."""

_NO_IDENTITY = (
    "zeroing its layers does not turn it into the identity; deepen needs a residual block, such as "
    "x + f(x) or norm(x + f(x))"
)


_NO_GRADIENT = (
    "no gradient would reach a copy that starts as the identity, because its branch ends in an "
    "activation that is flat at zero, such as ReLU"
)


@dataclass(frozen=True)
class BlockCall:
    """What a block was called with and what it returned, as copies."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor
    key: int | str
    """The argument that the output is added to."""

    def run(self, block: nn.Module, x: Tensor) -> Any:
        """Call a block with ``x`` in place of its input."""
        (args, kwargs), key = copy.deepcopy((self.args, self.kwargs)), self.key
        if isinstance(key, int):
            return block(*args[:key], x, *args[key + 1 :], **kwargs)
        return block(*args, **{**kwargs, key: x})


def main_output(output: Any) -> Tensor | None:
    """Return the tensor that a block hands on: its output, or the first of several."""
    if isinstance(output, (tuple, list)) and output:
        output = cast(Sequence[Any], output)[0]
    return output if isinstance(output, Tensor) else None


def find_identities(
    model: nn.Module, blocks: Mapping[str, nn.Module], sample_input: Any
) -> dict[str, BlockIdentity | str]:
    """Return how a copy of each block of a model becomes the identity, or why it cannot."""
    found: dict[str, BlockIdentity | str] = {n: _find_obstacle(model, b) for n, b in blocks.items()}
    tried = {name: block for name, block in blocks.items() if not found[name]}
    known: dict[tuple[Any, ...], BlockIdentity] = {}
    """By class and layers; most models repeat a block."""
    for name, call in _record_blocks(model, tried, sample_input).items():
        block = blocks[name]
        kind = (type(block), *(layer for layer, _ in own_parameters(block)))
        if isinstance(call, BlockCall):
            found[name] = identity = _find_identity(block, call, known.get(kind))
            if isinstance(identity, BlockIdentity):
                known[kind] = identity
        else:
            found[name] = call
    return found


def _find_obstacle(model: nn.Module, block: nn.Module) -> str:
    """Return why a block cannot be copied, as far as that is clear without running it."""
    layers = own_parameters(block)
    if not layers:
        return "it has no parameters"
    if not any(True for _ in block.children()) and type(block).__module__.startswith("torch."):
        return f"a {type(block).__name__} is not residual; name the block around it"
    if len(layers) > MAX_LAYERS:
        return f"it has {len(layers)} layers, more than {MAX_LAYERS}; name a block inside it"
    own = {id(part) for part in block.modules()}
    mine = {id(parameter) for parameter in block.parameters()}
    for name, module in module_names(model):
        if id(module) in own:
            continue
        for key, parameter in module.named_parameters(recurse=False):
            if id(parameter) in mine:
                return f"it shares a parameter with {name}.{key}; a copy would not"
    return ""


def _record_blocks(
    model: nn.Module, blocks: Mapping[str, nn.Module], sample_input: Any
) -> dict[str, BlockCall | str]:
    """Run a model and return what each block is called with, or why a copy cannot follow it.

    Copies are taken before the call, because a block may write to its arguments (a cache).
    """
    given: dict[str, Any] = {}
    counts = dict.fromkeys(blocks, 0)
    done: dict[str, BlockCall | str] = {}

    def before(name: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        counts[name] += 1
        try:
            given[name] = copy.deepcopy((args, kwargs))
        except Exception as error:
            given[name] = f"its arguments cannot be copied ({type(error).__name__})"

    def after(name: str, _: nn.Module, __: Any, ___: Any, output: Any) -> None:
        copied, result = given[name], main_output(output)
        done[name] = copied if isinstance(copied, str) else _read_call(copied, result)

    if blocks:
        with (
            hooked(blocks, before=before, after=after),
            evaluation_mode(model),
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
        ):
            call_model(model, sample_input)
    times = "the model calls it {} times per forward pass instead of once"
    return {name: done[name] if n == 1 else times.format(n) for name, n in counts.items()}


def _read_call(
    copied: tuple[tuple[Any, ...], dict[str, Any]], output: Tensor | None
) -> BlockCall | str:
    """Return the call of a block with copied arguments, or why a copy cannot follow the block."""
    args, kwargs = copied
    if output is None or output.ndim not in (2, 3, 4):
        return "it does not return a tensor of two to four axes"
    arguments: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}
    given = {key: x for key, x in arguments.items() if isinstance(x, Tensor)}
    key = next((key for key, x in given.items() if x.shape == output.shape), None)
    if key is None:
        shapes = ", ".join(str(list(x.shape)) for x in given.values()) or "no tensor"
        return f"it maps {shapes} to {list(output.shape)}, so a copy cannot read what it returns"
    # An operation in place may follow the block.
    return BlockCall(args, kwargs, output.clone(), key)


def _find_identity(
    block: nn.Module, call: BlockCall, hint: BlockIdentity | None
) -> BlockIdentity | str:
    trial = _Trial(block, call)
    with evaluation_mode(trial.twin), torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            identity = trial.find(hint)
            if identity is None:
                return _NO_IDENTITY
            return identity if identity is hint or trial.learns(identity) else _NO_GRADIENT
        # A block may reject its own output in any way.
        except Exception as error:
            return f"it fails on its own output: {summarize_error(error)}"


class _Trial:
    """A copy of a block, with other weights, that is run with some of its layers zeroed."""

    def __init__(self, block: nn.Module, call: BlockCall) -> None:
        self.call = call
        self.twin = copy_plain(block)
        self.layers = dict(own_parameters(self.twin))
        generator = torch.Generator().manual_seed(0)
        self.weights: dict[nn.Parameter, Tensor] = {}
        for parameter in self.twin.parameters():
            if parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.data = parameter.data + NOISE * noise.to(parameter)
            self.weights[parameter] = parameter.data.clone()
        y = call.output
        low, high = y.min(), y.max()
        drawn = torch.rand(y.shape, generator=generator).to(y)
        self.probes = [y, low + (high - low) * drawn]

    def find(self, hint: BlockIdentity | None = None) -> BlockIdentity | None:
        """Return how the block becomes the identity, or None if it cannot.

        ``hint`` is that of another block of the same class, which saves the search if it holds.
        """
        tolerance = _sum_tolerance(self.call.output.dtype)

        def holds(names: Sequence[str]) -> bool:
            return self._is_identity(names, (), tolerance)

        is_usual = hint is not None and not hint.norms and self.layers.keys() >= set(hint.zeroed)
        if hint is not None and is_usual and holds(hint.zeroed):
            return hint
        calls = self._run_layers()
        order = sorted(self.layers, key=lambda name: calls.order.get(_called(name, calls), -1))
        if not holds(order):
            return self._find_behind_norm(order, calls)
        zeroed = _shrink(order, holds)
        is_scalable = calls.outputs.keys() >= set(zeroed)
        return BlockIdentity(zeroed=tuple(zeroed), is_scalable=is_scalable) if zeroed else None

    def learns(self, identity: BlockIdentity) -> bool:
        """Return whether gradients reach what is zero in a copy of the block."""
        self._is_identity(identity.zeroed, identity.norms, 0.0)
        # Away from zero, where a block that ends in relu(x + f(x)) hands gradients on.
        x = self.probes[0].abs() + self.probes[1].abs() + 1.0
        zeroed = [
            parameter.requires_grad_()
            for name in identity.zeroed
            for parameter in self.layers[name].parameters(recurse=False)
            if parameter.is_floating_point()
        ]
        try:
            with torch.enable_grad():
                output = cast(Tensor, main_output(self.call.run(self.twin, x)))
            generator = torch.Generator().manual_seed(0)
            direction = torch.randn(output.shape, generator=generator).to(output)
            found = torch.autograd.grad(output, zeroed, direction, materialize_grads=True)
        except RuntimeError:  # cuDNN's recurrent layers have no gradient in evaluation mode
            return True
        return any(bool(gradient.any()) for gradient in found)

    def _find_behind_norm(self, order: list[str], calls: _LayerCalls) -> BlockIdentity | None:
        """Return how a block that ends in a norm becomes the identity on normalized input."""
        norms = [name for name in order if self._is_norm(name) and name in calls.outputs]
        if not norms or not torch.equal(calls.outputs[norms[-1]], calls.result):
            return None
        last, inner = norms[-1], norms[:-1]
        write_affine(self.layers[last], 1.0, 0.0)
        self.probes = [self.layers[last](probe) for probe in self.probes]
        layers = [name for name in order if name not in norms]
        tolerance = _norm_tolerance(self.call.output.dtype)

        def holds(zeroed: Sequence[str], reset: Sequence[str]) -> bool:
            return self._is_identity(zeroed, [*reset, last], tolerance)

        if not holds(layers, inner):
            return None
        kept = _shrink(inner, lambda names: holds(layers, names))
        zeroed = _shrink(layers, lambda names: holds(names, kept))
        if not zeroed:
            return None
        return BlockIdentity(zeroed=tuple(zeroed), norms=(*kept, last))

    def _is_norm(self, name: str) -> bool:
        """Return whether a layer could be a norm: it scales and shifts each feature."""
        own = dict(self.layers[name].named_parameters(recurse=False))
        width = self.call.output.shape[-1]
        shapes = {tuple(parameter.shape) for parameter in own.values()}
        return "weight" in own and own.keys() <= {"weight", "bias"} and shapes == {(width,)}

    def _run_layers(self) -> _LayerCalls:
        order: dict[str, int] = {}

        def note(name: str, *_: Any) -> None:
            order.setdefault(name, len(order))

        modules = {name: part for name, part in module_names(self.twin) if name}
        with hooked(modules, before=note), recorded_calls(self.layers) as recorded:
            result = main_output(self.call.run(self.twin, self.probes[0].clone()))
        outputs = {name: calls[-1].output for name, calls in recorded.items() if len(calls) == 1}
        return _LayerCalls(order, outputs, result)

    def _is_identity(self, zeroed: Sequence[str], norms: Sequence[str], tolerance: float) -> bool:
        for parameter, value in self.weights.items():
            parameter.copy_(value)
        for name in zeroed:
            for parameter in self.layers[name].parameters(recurse=False):
                parameter.zero_()
        for name in norms:
            write_affine(self.layers[name], 1.0, 0.0)
        return all(self._keeps(probe, tolerance) for probe in self.probes)

    def _keeps(self, probe: Tensor, tolerance: float) -> bool:
        given = probe.clone()
        version = given._version
        output = main_output(self.call.run(self.twin, given))
        if given._version != version:
            raise RuntimeError("it changes its input in place")
        if output is None or output.shape != probe.shape:
            return False
        error = (output - probe).abs().max().item()
        return error <= tolerance * max(1.0, probe.abs().max().item())


@dataclass(frozen=True)
class _LayerCalls:
    """One run of a block: the order of its modules, the outputs of its layers, its own output."""

    order: dict[str, int]
    outputs: dict[str, Any]
    result: Any


def _called(name: str, calls: _LayerCalls) -> str:
    """Return the innermost called module around a layer whose weights may be read directly."""
    while name and name not in calls.order:
        name = name.rpartition(".")[0]
    return name


def _shrink(names: Sequence[str], holds: Callable[[list[str]], bool]) -> list[str]:
    """Leave out names, the first ones first, as long as the rest holds."""
    kept = list(names)

    def drop(chunk: list[str]) -> None:
        nonlocal kept
        rest = [name for name in kept if name not in chunk]
        if holds(rest):
            kept = rest
        elif len(chunk) > 1:
            half = len(chunk) // 2
            drop(chunk[:half])
            drop(chunk[half:])

    if kept:
        drop(list(names))
    return kept


def _sum_tolerance(dtype: torch.dtype) -> float:
    """Return the largest error of ``x + 0``, which is exact in types with few digits, too."""
    return 64 * min(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


def _norm_tolerance(dtype: torch.dtype) -> float:
    """Return the largest error of a norm that is applied to what it has normalized."""
    return max(NORM_TOLERANCE, 2 * torch.finfo(dtype).eps)


def own_parameters(block: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return each module of a block that has parameters of its own, by name."""
    modules = named_modules(block).items()
    return [pair for pair in modules if any(True for _ in pair[1].parameters(recurse=False))]


@torch.no_grad()
def become_identity(block: nn.Module, identity: BlockIdentity) -> None:
    """Turn a block into the identity; the norm at its end, if there is one, is not changed."""
    for name in identity.zeroed:
        _zero(block.get_submodule(name))
    for name in identity.norms[:-1]:
        write_affine(block.get_submodule(name), 1.0, 0.0)


def read_affine(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Return copies of the weight and bias of a norm; a norm without a bias has zeros."""
    weight = cast(Tensor, norm.weight).detach().clone()
    bias = cast(Tensor | None, getattr(norm, "bias", None))
    return weight, torch.zeros_like(weight) if bias is None else bias.detach().clone()


@torch.no_grad()
def write_affine(norm: nn.Module, weight: Tensor | float, bias: Tensor | float) -> None:
    """Set the weight of a norm and, if it has one, its bias."""
    cast(Tensor, norm.weight).copy_(torch.as_tensor(weight))
    own = cast(Tensor | None, getattr(norm, "bias", None))
    if own is not None:
        own.copy_(torch.as_tensor(bias))


@torch.no_grad()
def draw_weights(block: nn.Module, identity: BlockIdentity) -> None:
    """Draw the weights of a copy behind its zeroed layers from torch's default generator.

    Layers draw their own initial weights if they can, otherwise from a normal distribution of the
    copied weights' standard deviation. Models that initialize layers in their own way keep the
    scale of their weights.
    """
    kept = {*identity.zeroed, *identity.norms}
    for name, module in own_parameters(block):
        if name not in kept:
            _redraw(module)


@torch.no_grad()
def _zero(module: nn.Module) -> None:
    for parameter in module.parameters(recurse=False):
        parameter.zero_()


@torch.no_grad()
def _redraw(module: nn.Module) -> None:
    before = {
        name: parameter.detach().std().item()
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.ndim > 1 and parameter.numel() > 1
    }
    reset = getattr(module, "reset_parameters", None)
    if callable(reset):
        reset()
    for name, deviation in before.items():
        parameter = module.get_parameter(name)
        if not callable(reset):
            parameter.normal_(std=deviation)
            continue
        drawn = parameter.std().item()
        is_close = deviation / _LARGEST_CHANGE <= drawn <= deviation * _LARGEST_CHANGE
        if drawn > 0.0 and deviation > 0.0 and not is_close:
            parameter.mul_(deviation / drawn)

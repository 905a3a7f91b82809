"""Finding the layers whose zeroing turns a residual block into the identity.

There is no table of architectures. A copy of the block is run on the block's own output, and on
other values in the same range, while the parameters of some of its layers are zero. Layers are left
out of that set, in the order in which they run, as long as the block remains the identity, so that
what is zeroed in the end are the last layers of its residual branches.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from esper.errors import summarize_error
from esper.growth.block_paths import is_immutable
from esper.growth.blueprints.deepening import (
    CACHE_INDEX,
    BlockCopy,
    own_parameters,
    replace_input,
    write_affine,
)
from esper.growth.dry_run import call_model, hooked, record_calls, recorded_calls, tensors_in
from esper.growth.module_lists import find_list, inserted_entry
from esper.growth.modules import module_names, unchanged_buffers
from esper.growth.seed_slot import copy_plain
from esper.growth.sites import BlockIdentity, SlotSite
from esper.modes import evaluation_mode

MAX_LAYERS = 64
"""Most layers of a block that is tried; a block with more has residual blocks inside it."""

NOISE = 0.1
"""Standard deviation added to all parameters, so that layers that are zero by chance differ."""

NORM_TOLERANCE = 1e-3
"""Largest relative change by a norm of normalized values; its epsilon makes it not quite zero."""

_NO_IDENTITY = (
    "zeroing its layers does not turn it into the identity; deepen needs a residual block, such as "
    "x + f(x) or norm(x + f(x))"
)


@dataclass(frozen=True)
class BlockCall:
    """What a block was called with and what it returned, as copies."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor

    def run(self, block: nn.Module, key: int | str, x: Tensor) -> Any:
        """Call a block with ``x`` in place of its input."""
        args, kwargs = copy.deepcopy((self.args, self.kwargs))
        args, kwargs = replace_input(args, kwargs, key, x)
        return block(*args, **kwargs)


def main_output(output: Any) -> Tensor | None:
    """Return the tensor that a block hands on: its output, or the first of several."""
    if isinstance(output, (tuple, list)) and output:
        output = cast(Sequence[Any], output)[0]
    return output if isinstance(output, Tensor) else None


def add_identities(
    model: nn.Module,
    sites: Sequence[SlotSite],
    sample_input: Any,
    *,
    shares_arguments: bool = True,
) -> list[SlotSite]:
    """Return sites with the way in which a copy of each block becomes the identity, if it can.

    Args:
        model: The model.
        sites: Blocks of it.
        sample_input: Input for it.
        shares_arguments: Whether a copy would be called by its block, with the same arguments; if
            not, the model calls it as it calls others.
    """
    blocks = {site.name: model.get_submodule(site.name) for site in sites}
    reasons = {site.name: _find_obstacle(model, site, blocks[site.name]) for site in sites}
    tried = {name: block for name, block in blocks.items() if not reasons[name]}
    calls = record_blocks(model, tried, sample_input, shares_arguments=shares_arguments)
    done: list[SlotSite] = []
    known: dict[tuple[Any, ...], BlockIdentity] = {}
    """By class and layers; most models repeat a block."""
    for site in sites:
        block, call = blocks[site.name], calls.get(site.name, reasons[site.name])
        kind = (type(block), *(name for name, _ in own_parameters(block)))
        found: BlockIdentity | str = call if isinstance(call, str) else ""
        if isinstance(call, BlockCall):
            found = _find_identity(site, block, call, known.get(kind))
        if isinstance(found, str):
            done.append(replace(site, why_not_residual=found))
        else:
            known[kind] = found
            assert isinstance(call, BlockCall)
            arguments = [*call.args, *call.kwargs.values()]
            has_cache = not all(map(is_immutable, arguments))
            identity = replace(found, has_cache=has_cache)
            done.append(replace(site, identity=identity, why_not_residual=""))
    return done


def try_entries(model: nn.Module, sites: Sequence[SlotSite], sample_input: Any) -> list[SlotSite]:
    """Return sites that know whether the list that holds their block can take one more entry."""
    residual = [site for site in sites if site.identity is not None]
    before = _run(model, sample_input) if residual else []
    return [
        replace(site, identity=replace(site.identity, is_entry=True))
        if site.identity is not None and _takes_entry(model, site, sample_input, before)
        else site
        for site in sites
    ]


def _find_obstacle(model: nn.Module, site: SlotSite, block: nn.Module) -> str:
    """Return why a block cannot be copied, as far as that is clear without running it."""
    if site.input_shape is None:
        return f"a copy cannot read the block's output: {site.why_no_parallel}"
    if site.input_shape != site.output_shape:
        return (
            f"it maps shape {list(site.input_shape)} to {list(site.output_shape)}, so a copy "
            "cannot read its output; deepen needs a block that keeps the shape"
        )
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


def record_blocks(
    model: nn.Module,
    blocks: Mapping[str, nn.Module],
    sample_input: Any,
    *,
    shares_arguments: bool = True,
) -> dict[str, BlockCall | str]:
    """Run a model and return copies of what each block is called with, or why there is none.

    Copies are taken before the call, because a block may write to its arguments (a cache).
    """
    given: dict[str, Any] = {}
    done: dict[str, BlockCall | str] = {}

    def before(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        arguments = [*args, *kwargs.values()]
        problem = _find_foreign(module, arguments) if shares_arguments else ""
        try:
            given[name] = problem or copy.deepcopy((args, kwargs))
        except Exception as error:
            given[name] = f"its arguments cannot be copied ({type(error).__name__})"

    def after(name: str, _: nn.Module, __: Any, ___: Any, output: Any) -> None:
        found = given[name]
        # An operation in place may follow the block.
        if isinstance(found, str) or main_output(output) is None:
            done[name] = found if isinstance(found, str) else "it returns no tensor"
        else:
            done[name] = BlockCall(*found, output=cast(Tensor, main_output(output)).clone())

    if blocks:
        with (
            hooked(blocks, before=before, after=after),
            evaluation_mode(model),
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
        ):
            call_model(model, sample_input)
    return done


def _find_foreign(block: nn.Module, arguments: Sequence[Any]) -> str:
    """Return which argument a copy of a block cannot share with it; empty if there is none.

    A block may write to an object. Caches of Transformers have a layer for each copy.
    """
    has_index = any(CACHE_INDEX in part.__dict__ for part in block.modules())
    for argument in arguments:
        is_cache = has_index and hasattr(argument, "layers")
        if not (is_immutable(argument) or is_cache):
            return (
                f"it is called with a {type(argument).__name__}, which it could change; a copy can "
                "share tensors and plain values only"
            )
    return ""


def _find_identity(
    site: SlotSite, block: nn.Module, call: BlockCall, hint: BlockIdentity | None
) -> BlockIdentity | str:
    assert site.input_key is not None, "the block's input is known"
    trial = _Trial(block, call, site.input_key)
    with evaluation_mode(trial.twin), torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            return trial.find(hint) or _NO_IDENTITY
        # A block may reject its own output in any way.
        except Exception as error:
            return f"it fails on its own output: {summarize_error(error)}"


class _Trial:
    """A copy of a block, with other weights, that is run with some of its layers zeroed."""

    def __init__(self, block: nn.Module, call: BlockCall, key: int | str) -> None:
        self.call, self.key = call, key
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
        self.drawn = torch.randn(y.shape, generator=generator).to(y)

    def find(self, hint: BlockIdentity | None = None) -> BlockIdentity | None:
        """Return how the block becomes the identity, or None if it cannot.

        ``hint`` is that of another block of the same class, which saves the search if it holds.
        """
        tolerance = _sum_tolerance(self.call.output.dtype)

        def holds(names: Sequence[str]) -> bool:
            return self._is_identity(names, (), tolerance)

        zeroed = [] if hint is None or hint.norms else list(hint.zeroed)
        if not zeroed or not self.layers.keys() >= set(zeroed) or not holds(zeroed):
            calls = self._run_layers()
            order = sorted(self.layers, key=lambda name: calls.order.get(_called(name, calls), -1))
            if not holds(order):
                return self._find_behind_norm(order, calls)
            zeroed = _shrink(order, holds)
        if not zeroed:
            return None
        self.probes = [self.drawn]
        return BlockIdentity(zeroed=tuple(zeroed), is_universal=holds(zeroed))

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
        return BlockIdentity(zeroed=tuple(zeroed), norms=(*kept, last), is_universal=False)

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
            result = main_output(self.call.run(self.twin, self.key, self.probes[0].clone()))
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
        output = main_output(self.call.run(self.twin, self.key, given))
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


def _takes_entry(model: nn.Module, site: SlotSite, sample_input: Any, before: list[Tensor]) -> bool:
    """Return whether the model computes the same with one more entry, which is the identity."""
    place = find_list(model, site.name)
    if place is None:
        return False
    assert site.identity is not None
    assert site.input_key is not None
    block = model.get_submodule(site.name)
    twin = BlockCopy(copy_plain(block), site.identity, site.input_key)
    norm = block.get_submodule(site.identity.norms[-1]) if site.identity.norms else None
    kept = None if norm is None else (twin.scale, twin.shift)
    dtype = before[0].dtype
    tolerance = _sum_tolerance(dtype) if norm is None else _norm_tolerance(dtype)
    with unchanged_buffers(model), inserted_entry(place, twin.block):
        if norm is not None:
            write_affine(norm, 1.0, 0.0)
        try:
            entries = dict(place.container.named_children())
            calls = record_calls(model, {"": model, **entries}, sample_input)
        # A model may rely on the number of its blocks in any way.
        except Exception:
            return False
        finally:
            if norm is not None:
                assert kept is not None
                write_affine(norm, *kept)
    if any(len(calls[name]) != 1 for name in entries):
        return False
    return _same_outputs(before, tensors_in(calls[""][0].output), tolerance)


def _sum_tolerance(dtype: torch.dtype) -> float:
    """Return the largest error of ``x + 0``, which is exact in types with few digits, too."""
    return 64 * min(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


def _norm_tolerance(dtype: torch.dtype) -> float:
    """Return the largest error of a norm that is applied to what it has normalized."""
    return max(NORM_TOLERANCE, 2 * torch.finfo(dtype).eps)


def _run(model: nn.Module, sample_input: Any) -> list[Tensor]:
    return tensors_in(record_calls(model, {"": model}, sample_input)[""][0].output)


def _same_outputs(before: list[Tensor], after: list[Tensor], tolerance: float) -> bool:
    if [t.shape for t in before] != [t.shape for t in after]:
        return False
    return all(
        bool((a - b).abs().max() <= tolerance * b.abs().max().clamp_min(1.0))
        for a, b in zip(after, before, strict=True)
        if b.numel()
    )

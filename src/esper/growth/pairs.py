"""Finding pairs of layers between which units can be added.

There is no table of architectures. The model is run with one unit of a producer set to NaN, which
spreads to whatever depends on that unit. Layers that read it are its consumers; they return what
they return without NaN, so that the NaN goes no further. A pair is one whose unit reaches nothing
else, at exactly its own place. A trial with random new units then shows that the model takes them,
that they leave the old units alone, and that merging them gives the same function.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from esper.errors import SlotError, did_you_mean, summarize_error
from esper.growth.blending import AlphaSchedule
from esper.growth.dry_run import call_model, hooked, record_calls, tensors_in
from esper.growth.export.merging import Ties
from esper.growth.export.pair_merging import merged_layers
from esper.growth.host_slots import HostSlots
from esper.growth.modules import module_names, named_modules, seeded
from esper.growth.sites import Pair, PairLayer, SlotSite, TensorKind
from esper.growth.slot_states import SlotLife
from esper.growth.unit_layers import describe_layer, is_norm, why_no_units
from esper.lifecycle.stages import Stage
from esper.modes import evaluation_mode

ARROW, PLUS = ">", "+"

_ACROSS_UNITS = ("LayerNorm", "GroupNorm", "RMSNorm")


def is_pair_name(name: object) -> bool:
    """Return whether a name is written like that of a pair."""
    return isinstance(name, str) and ARROW in name


def split_pair_name(name: str) -> tuple[str, tuple[str, ...]]:
    """Return the producer and the consumers of a pair's name.

    Raises:
        SlotError: If it does not have the form ``producer>consumer+consumer``.
    """
    producer, _, rest = name.partition(ARROW)
    consumers = tuple(rest.split(PLUS))
    if not producer or not all(consumers) or ARROW in rest:
        raise SlotError(
            f"{name!r} names no pair of layers; write 'producer>consumer', such as '0>2', with '+' "
            "between several consumers."
        )
    plain = re.sub(r"\s+|-(?=>)|=(?=>)", "", name)
    if plain != name:
        raise SlotError(f"{name!r} names no pair of layers; write {plain!r}.")
    return producer, consumers


@dataclass
class _Trace:
    """What the NaN of one unit reached, in the order of calls."""

    readers: dict[str, list[Tensor]] = field(default_factory=dict[str, list[Tensor]])
    """The inputs of the layers and norms that read the unit."""
    obstacles: list[str] = field(default_factory=list[str])
    """Other modules with parameters that read it."""
    crossed: set[str] = field(default_factory=set[str])
    """Every module whose input or output has it."""
    is_in_output: bool = False


class PairFinder:
    """Finds the pairs of one model by running it on a sample."""

    def __init__(self, model: nn.Module, sample_input: Any) -> None:
        self.model = model
        self.sample_input = sample_input
        self.modules = {name: module for name, module in named_modules(model).items() if name}
        layers = {
            name: module
            for name, module in self.modules.items()
            if why_no_units(module) is None or is_norm(module)
        }
        self._calls = record_calls(model, {**layers, "": model}, sample_input)
        self._ties = Ties(model)

    def find_all(self) -> dict[str, Pair]:
        """Return every pair of the model by its name, in the order of modules."""
        found: dict[str, Pair] = {}
        for name, module in self.modules.items():
            if why_no_units(module) is None:
                pair = self.find(name)
                if isinstance(pair, Pair) and self.find_trial_problem(pair) is None:
                    found[pair.name] = pair
        return found

    def require(self, name: str) -> Pair:
        """Return the pair with this name.

        Raises:
            SlotError: If there is none; the message says why.
        """
        producer, consumers = split_pair_name(name)
        for part in (producer, *consumers):
            if part not in self.modules:
                hint = did_you_mean(part, self.modules)
                raise SlotError(
                    f"{type(self.model).__name__} has no submodule {part!r}, which {name!r} "
                    f"names.{hint}"
                )
        pair = self.find(producer)
        if isinstance(pair, Pair) and set(consumers) != {layer.name for layer in pair.consumers}:
            between = ", ".join(repr(layer.name) for layer in pair.consumers)
            raise SlotError(
                f"{name!r} is not a pair: the units of {producer!r} are read by {between}; write "
                f"{pair.name!r}."
            )
        problem = self.find_trial_problem(pair) if isinstance(pair, Pair) else pair
        if problem is not None:
            raise SlotError(f"{name!r} cannot have a slot: {problem}")
        assert isinstance(pair, Pair)
        return pair

    def find(self, producer: str) -> Pair | str:
        """Return the pair of a producer, or why it has none."""
        module = self.modules[producer]
        problem = why_no_units(module)
        if problem is not None:
            return f"units cannot be added to {producer!r}: {problem}."
        problem = self._find_layer_problem(producer)
        if problem is not None:
            return problem
        layer = self._describe(producer)
        unit = layer.n_out // 2
        try:
            trace = self._trace(producer, layer, unit)
        except Exception as error:
            return f"the model fails if {producer!r} returns NaN ({summarize_error(error)})."
        return self._judge(layer, unit, trace)

    def site_of(self, pair: Pair, name: str | None = None) -> SlotSite:
        """Return the site of a slot on a pair."""
        output = self._calls[pair.producer.name][0].output
        kind = TensorKind.VECTOR if output.ndim == 2 else TensorKind.SEQUENCE
        if pair.producer.unit_axis != -1:
            kind = TensorKind.FEATURE_MAP
        return SlotSite(
            name=name or pair.name,
            kind=kind,
            output_shape=tuple(output.shape),
            input_shape=pair.producer.input_shape,
            input_key=0,
            pair=pair,
        )

    def find_trial_problem(self, pair: Pair) -> str | None:
        """Try random new units in a pair; return why that does not work, or None if it does."""
        return find_trial_problem(self.model, self.site_of(pair), self.sample_input)

    def _describe(self, name: str) -> PairLayer:
        call = self._calls[name][0]
        return describe_layer(name, self.modules[name], next(iter(call.tensors().values())))

    def _find_layer_problem(self, name: str) -> str | None:
        """Return why a layer of a known kind cannot get units, or None if it can."""
        module, calls = self.modules[name], self._calls[name]
        names = [other for other, each in module_names(self.model) if each is module]
        if len(names) > 1:
            return f"{name!r} is also registered as {names[1]!r}."
        if len(calls) != 1:
            return f"{name!r} is called {len(calls)} times per forward pass instead of once."
        if len(calls[0].args) + len(calls[0].kwargs) != 1 or len(calls[0].tensors()) != 1:
            return f"{name!r} is called with more than one tensor."
        if not self._ties.may_change([module]):
            return f"{name!r} has hooks, or shares a weight with another module (tied weights)."
        return None

    def _trace(self, producer: str, layer: PairLayer, unit: int) -> _Trace:
        """Run the model with one unit of the producer set to NaN."""
        trace = _Trace()

        def poison(_: str, __: nn.Module, ___: Any, ____: Any, output: Tensor) -> Tensor:
            output = output.clone()
            output.select(layer.unit_axis, unit).fill_(math.nan)
            return output

        with (
            hooked(self.modules, after=partial(self._observe, trace)),
            hooked({producer: self.modules[producer]}, after=poison),
            evaluation_mode(self.model),
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
        ):
            output = call_model(self.model, self.sample_input)
        trace.crossed.add(producer)
        trace.is_in_output = any(map(_has_nan, tensors_in(output)))
        return trace

    def _observe(
        self, trace: _Trace, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any
    ) -> Any:
        """Note what a module reads and returns; keep the NaN from passing a consumer."""
        read = [x for x in tensors_in([*args, *kwargs.values()]) if _has_nan(x)]
        if not read:
            if any(map(_has_nan, tensors_in(output))):
                trace.crossed.add(name)
            return None
        trace.crossed.add(name)
        if why_no_units(module) is None or is_norm(module):
            inputs = trace.readers.setdefault(name, [])
            inputs.append(read[0])
            calls = self._calls[name]
            is_pinned = not is_norm(module) and len(inputs) <= len(calls)
            return calls[len(inputs) - 1].output if is_pinned else None
        is_leaf = not any(module.children()) or isinstance(module, nn.MultiheadAttention)
        if is_leaf and any(True for _ in module.parameters()):
            trace.obstacles.append(name)
        return None

    def _judge(self, layer: PairLayer, unit: int, trace: _Trace) -> Pair | str:
        """Return the pair that a trace shows, or why there is none."""
        for name in trace.obstacles:
            kind = type(self.modules[name]).__name__
            why = "cannot get more units"
            if kind.endswith(_ACROSS_UNITS):
                why = "normalizes across units"
            return f"the units of {layer.name!r} reach {name!r} ({kind}), which {why}."
        if trace.is_in_output:
            return (
                f"the units of {layer.name!r} reach the model's output without passing a layer "
                "that reads them."
            )
        found: list[PairLayer] = []
        for name, inputs in trace.readers.items():
            problem = self._find_layer_problem(name)
            if problem is not None:
                return f"the units of {layer.name!r} are read by {name!r}, but {problem}"
            placed = _place(self._describe(name), inputs[0], unit, layer.n_out)
            if placed is None:
                return (
                    f"{name!r} does not read the units of {layer.name!r} one by one: what is "
                    "between them mixes or repeats units."
                )
            found.append(placed)
        norms = tuple(each for each in found if is_norm(self.modules[each.name]))
        consumers = tuple(each for each in found if each not in norms)
        if not consumers:
            return f"no layer reads the units of {layer.name!r}."
        return Pair(
            producer=layer,
            consumers=consumers,
            norms=norms,
            units=layer.n_out,
            crossed=tuple(name for name in self.modules if name in trace.crossed),
        )


def _place(layer: PairLayer, x: Tensor, unit: int, n_units: int) -> PairLayer | None:
    """Return a layer with the place of the producer's units in its input, if they have one.

    ``x`` is its input, which is NaN at the inputs of one of the units.
    """
    axis = layer.unit_axis % x.ndim
    others = [other for other in range(x.ndim) if other != axis]
    places = torch.isnan(x).any(dim=others) if others else torch.isnan(x)
    indices = [index for index, is_nan in enumerate(places) if bool(is_nan)]
    first, per_unit = indices[0], len(indices)
    offset = first - unit * per_unit
    is_block = indices == list(range(first, first + per_unit))
    if not is_block or offset < 0 or offset + n_units * per_unit > layer.n_in:
        return None
    return replace(layer, offset=offset, per_unit=per_unit)


def find_trial_problem(model: nn.Module, site: SlotSite, sample_input: Any) -> str | None:
    """Try random new units at a site; return why that does not work, or None if it does."""
    host = HostSlots(model, [site])
    (slot,) = host.pairs.slots
    before = _run(model, sample_input)
    try:
        with seeded(0):  # units that do not cancel, as if they had been trained in isolation
            slot.plant("widen_large", slot.life.style)
            with torch.no_grad():
                for parameter in slot.seed_parameters():
                    parameter.copy_(0.5 * torch.randn_like(parameter))
        _set_stage(host, site.name, Stage.TRAINING, alpha=0.0)
        host.place(site.name, is_used=True)
        isolated = _run(model, sample_input, needs_grad=True)
        _set_stage(host, site.name, Stage.HOLDING, alpha=1.0)
        slot.shows_live = False
        grown = _run(model, sample_input)
    except Exception as error:
        return (
            f"the model fails with more units there, {summarize_error(error)}: a size is fixed in "
            "its code, or the units are added to others, as in a residual stream."
        )
    finally:
        host.place(site.name, is_used=False)
    if not _are_close(before, isolated):
        return "more units there change what the model computes from the old ones."
    if not slot.shows_live:
        return f"the model reads the weights of {site.modules[0]!r} without calling it."
    with _replaced(model, merged_layers(host.pairs, lambda slot, group: True)):
        try:
            merged = _run(model, sample_input)
        except Exception as error:
            return f"the model fails with wider layers there ({summarize_error(error)})."
    if not _are_close(grown, merged):
        return "new units cannot be merged into the layers: that would change the function."
    return None


def _set_stage(host: HostSlots, slot: str, stage: Stage, *, alpha: float) -> None:
    life = SlotLife(stage=stage, blueprint="widen_large", schedule=AlphaSchedule(target=alpha))
    host.lives.set_life(slot, life)
    host.refresh()


@contextmanager
def _replaced(model: nn.Module, layers: Mapping[str, nn.Module]) -> Generator[None]:
    """Replace layers of a model by others inside the context."""
    own = {name: model.get_submodule(name) for name in layers}
    try:
        for name, layer in layers.items():
            _put(model, name, layer)
        yield
    finally:
        for name, layer in own.items():
            _put(model, name, layer)


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, module)


def _run(model: nn.Module, sample_input: Any, *, needs_grad: bool = False) -> list[Tensor]:
    with (
        evaluation_mode(model),
        torch.set_grad_enabled(needs_grad),
        torch.random.fork_rng(devices=[]),
    ):
        outputs = tensors_in(call_model(model, sample_input))
    return [output.detach().nan_to_num() for output in outputs]


def _are_close(first: list[Tensor], second: list[Tensor]) -> bool:
    """Return whether tensors agree up to the rounding errors of a deep model."""
    if [tensor.shape for tensor in first] != [tensor.shape for tensor in second]:
        return False
    for one, other in zip(first, second, strict=True):
        if one.numel():
            scale = max(one.abs().max().item(), other.abs().max().item())
            error = (one - other).abs().max().item()
            if error > math.sqrt(torch.finfo(one.dtype).eps) * scale:
                return False
    return True


def _has_nan(tensor: Tensor) -> bool:
    return bool(torch.isnan(tensor).any())

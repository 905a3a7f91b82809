"""Finding the places of a model that can be widened, by running it.

There is no table of architectures. The model is run with one unit of a writer set to NaN, which
spreads to whatever depends on that unit. Layers that take it in are its readers; they return what
they return without NaN, so that the NaN goes no further. Units that reach the same entry of a
reader are the same unit: the gate and the other factor of a gated MLP, or all layers that write to
a residual stream. A trial with new units then shows that the model takes them and computes the
same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from esper.errors import summarize_error
from esper.growth.dry_run import Call, call_model, hooked, recorded_calls, tensors_in
from esper.growth.modules import module_names, named_modules, unchanged_buffers
from esper.growth.sites import TensorKind, kind_of
from esper.growth.surgery import experts
from esper.growth.surgery.checking import NoiseRuns, largest_difference, tolerance_for
from esper.growth.surgery.configuration import has_configuration
from esper.growth.surgery.edits import Edits
from esper.growth.surgery.heads import find_head_layout, possible_places
from esper.growth.surgery.layers import (
    Entries,
    Role,
    count_units,
    is_keeper,
    is_reader,
    is_recurrent,
    is_writer,
    keeps,
    reads,
    unit_axis,
    writes,
)
from esper.growth.surgery.places import (
    Place,
    name_places,
    outer_block,
    repeated_entries,
    star,
)
from esper.growth.surgery.units import add_units, tensor_of
from esper.modes import evaluation_mode

TRIAL_UNITS = 2
"""New units of a trial; a model that has sizes in its code does not take them."""


@dataclass
class _Trace:
    """What the NaN of one unit reached."""

    positions: dict[str, frozenset[int]] = field(default_factory=dict[str, frozenset[int]])
    """Where it arrived in what each reader or keeper takes in."""
    obstacles: list[str] = field(default_factory=list[str])
    """Other layers that take it in."""
    crossed: set[str] = field(default_factory=set[str])
    """Modules with parameters of their own and submodules that it passed."""
    is_in_output: bool = False


@dataclass(frozen=True)
class _Reach:
    """A writer and where its units arrive."""

    writer: str
    units: int
    blocks: int
    """How many rows each unit has in the writer: two in a fused gate."""
    places: dict[str, tuple[tuple[int, ...], int]]
    """The starts in each reader or keeper, and the entries that each unit has there."""
    crossed: frozenset[str]


class PlaceFinder:
    """Finds the places of one model by running it on a sample."""

    def __init__(self, model: nn.Module, sample_input: Any) -> None:
        self.model = model
        self.sample_input = sample_input
        self.problems: dict[str, str] = {}
        """Why units cannot be added to a writer, by its name."""
        self.unclear: dict[str, str] = {}
        """Those of the problems that another sample would solve."""
        self._mixed: dict[str, list[str]] = {}
        """Writers whose units may be heads, by the layer that reads them."""
        modules = named_modules(model)
        self._modules = {name: module for name, module in modules.items() if name}
        self._layers = {
            name: module
            for name, module in self._modules.items()
            if (is_writer(module) or is_reader(module) or is_keeper(module))
            and not isinstance(modules[name.rpartition(".")[0]], nn.MultiheadAttention)
        }
        self._watched = {
            name: module
            for name, module in self._modules.items()
            if any(True for _ in module.parameters(recurse=False)) or name in self._layers
        }
        self._tied = _tied_tensors(model)
        for name, module in modules.items():
            if isinstance(module, nn.MultiheadAttention):
                self.problems[name or "MultiheadAttention"] = (
                    "nn.MultiheadAttention keeps the heads that it has, because they have as many "
                    "entries together as its input."
                )
        with self._quietly(), recorded_calls({**self._layers, "": model}) as calls:
            call_model(model, sample_input)
        self._calls: dict[str, list[Call]] = calls
        self.before = tensors_in(calls[""][0].output)
        """What the model returns."""
        self.noise = NoiseRuns(model, sample_input, self._layers, calls, self._quietly)

    def find_all(self) -> list[Place]:
        """Return every place of the model, in the order of modules."""
        blocks = repeated_entries(self.model)
        alike: dict[tuple[Any, ...], list[str]] = {}
        for name, module in self._modules.items():
            if name in self._layers and is_writer(module):
                block = outer_block(name, blocks)
                key = star(block, blocks), name[len(block) :], type(module), count_units(module)
                alike.setdefault(key, []).append(name)
            elif experts.has_stacks(module):
                block = outer_block(name, blocks)
                alike.setdefault((star(block, blocks), name[len(block) :]), []).append(name)
        others: dict[str, list[str]] = {}
        for names in alike.values():
            # What keeps a layer as it is, such as a second call, need not hold for all of its kind.
            able = [name for name in names if not self._find_layer_problem(name)]
            first = able[0] if able else names[0]
            others[first] = [name for name in names if name != first]
        found: list[Place] = []

        def copies_of(place: Place) -> list[Place] | None:
            """Return the same place in blocks like its own; None if it does not lie in one."""
            inside = {outer_block(layer, blocks) for layer in place.layers}
            if len(inside) > 1 or "" in inside:
                return None
            (block,) = inside
            moved = [_moved(place, block, name) for name in others[place.writers[0]]]
            return [copy for copy in moved if self._fits(copy, place)]

        def add_copies(place: Place) -> bool:
            """Add a place with its copies; return whether it lies in a block."""
            copies = copies_of(place)
            if copies is not None:
                found.extend([place, *copies])
            return copies is not None

        apart: list[_Reach] = []
        layers = [name for name in others if name in self._layers]
        for name in others.keys() - layers:
            trials = experts.possible_places(name, self._modules[name])
            works = partial(self._find_trial_problem, n_new=experts.TRIAL_UNITS)
            place = next((trial for trial in trials if works(trial) is None), None)
            if place is None:
                self.problems[name] = "its stacked weights have no units that can become more."
            elif not add_copies(place):
                found.append(place)
        for same in _merge(self._trace_all(layers)):
            place = self._try(same)
            if isinstance(place, str) and any(reach.writer in self.unclear for reach in same):
                self.problems |= {reach.writer: place for reach in same}
            elif not isinstance(place, Place) or not add_copies(place):
                apart += same
                apart += self._trace_all(name for reach in same for name in others[reach.writer])
        placed = {name for place in found for name in place.writers}
        for place in self._find_heads(placed, lambda place: copies_of(place) or []):
            if not add_copies(place):
                found.append(place)
        placed = {name for place in found for name in place.writers}
        apart = [reach for reach in apart if reach.writer not in placed]
        for same in _merge(apart):
            place = self._try(same)
            if isinstance(place, Place):
                found.append(place)
            else:
                self.problems |= {reach.writer: place for reach in same}
        order = {name: index for index, name in enumerate(self._modules)}
        found.sort(key=lambda place: order[place.writers[0]])
        self.problems = dict(sorted(self.problems.items(), key=lambda pair: order.get(pair[0], -1)))
        names = name_places(self.model, found)
        return [replace(place, name=name) for place, name in zip(found, names, strict=True)]

    def output_kinds(self) -> dict[str, TensorKind]:
        """Return the layout of what each layer returned, if it has one."""
        found: dict[str, TensorKind] = {}
        for name in self._layers:
            outputs = [x for call in self._calls[name] for x in tensors_in(call.output)]
            kind = kind_of(outputs[0]) if outputs else None
            found[name] = TensorKind.VECTOR if kind is None else kind
        return found

    @contextmanager
    def _quietly(self) -> Generator[None]:
        """Run the model without any lasting effect."""
        with (
            evaluation_mode(self.model),
            unchanged_buffers(self.model),
            sdpa_kernel(SDPBackend.MATH),  # fused kernels do not pass NaN on
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
        ):
            yield

    def _trace_all(self, names: Iterable[str]) -> list[_Reach]:
        found: list[_Reach] = []
        for name in names:
            reach = self._find_reach(name)
            if isinstance(reach, str):
                self.problems[name] = reach
            else:
                found.append(reach)
        return found

    def _find_reach(self, name: str) -> _Reach | str:
        """Return where the units of a writer arrive, or why they cannot become more."""
        problem = self._find_layer_problem(name)
        if problem is not None:
            return problem
        n_rows = count_units(self._layers[name])
        probes = sorted({0, n_rows // 2, n_rows - 1})
        traces: dict[int, _Trace] = {}
        for unit in probes:
            try:
                traces[unit] = self._trace(name, unit)
            except Exception as error:
                return f"the model fails if {name!r} returns NaN ({summarize_error(error)})."
            if unit == 0:
                self._note_mixed(name, traces[0])
            problem = self._find_trace_problem(name, traces[unit])
            if problem is not None:
                return problem
        is_fused = n_rows % 2 == 0 and traces[0].positions == traces[n_rows // 2].positions
        blocks = 2 if is_fused and n_rows > 1 else 1
        units = n_rows // blocks
        places: dict[str, tuple[tuple[int, ...], int]] = {}
        for layer in traces[0].positions:
            found = {unit % units: trace.positions.get(layer) for unit, trace in traces.items()}
            located = _locate(found)
            if located is None:
                return (
                    f"{layer!r} does not read the units of {name!r} one by one: what is between "
                    "them mixes units."
                )
            places[layer] = located
        crossed = frozenset(traces[0].crossed)
        return _Reach(name, units, blocks, places, crossed)

    def _note_mixed(self, name: str, trace: _Trace) -> None:
        """Remember a writer whose first unit arrives at one reader alone; it may have heads."""
        if len(trace.positions) == 1 and not trace.is_in_output:
            (reader,) = trace.positions
            if is_reader(self._layers[reader]) and not self._find_layer_problem(reader):
                self._mixed.setdefault(reader, []).append(name)

    def _find_heads(
        self, placed: set[str], copies_of: Callable[[Place], Sequence[Place]]
    ) -> list[Place]:
        """Return the heads of attention layers, of writers that were traced and have no place."""
        found: list[Place] = []
        for reader, writers in self._mixed.items():
            mixed = [name for name in writers if name not in placed]

            def reach(name: str, row: int, reader: str = reader) -> frozenset[int]:
                return self._trace(name, row).positions.get(reader, frozenset())

            if not mixed or is_recurrent(self._layers[reader]):
                continue
            sizes = {name: count_units(self._layers[name]) for name in mixed}
            (read,) = reads(self._layers[reader])
            n_read = tensor_of(self.model, f"{reader}.{read.tensor}").shape[read.axis]
            layout = find_head_layout(n_read, sizes, reach)
            if layout is None:
                continue
            problem: str | None = ""
            for trial, shared in possible_places(self.model, reader, layout):
                problem = self._find_trial_problem(trial)
                if problem is not None:
                    problem = self._find_trial_problem(shared, *copies_of(shared))
                    # The configurations of Transformers follow once all is done.
                    trial = trial if has_configuration(self.model) else shared
                if problem is None:
                    found.append(trial)
                    break
            for name in layout.starts:
                self.problems.pop(name, None)
                if problem is not None:
                    self.problems[name] = f"it writes attention heads, but {problem}"
        return found

    def _find_layer_problem(self, name: str) -> str | None:
        module, calls = self._modules[name], self._calls.get(name)
        names = [other for other, each in module_names(self.model) if each is module]
        if len(names) > 1:
            return f"{name!r} is also registered as {names[1]!r}."
        if calls is not None and len(calls) != 1:
            return f"{name!r} is called {len(calls)} times per forward pass instead of once."
        if any(id(tensor) in self._tied for tensor in module.parameters()):
            return f"{name!r} shares a tensor with another module (tied weights)."
        return None

    def _find_trace_problem(self, name: str, trace: _Trace) -> str | None:
        for obstacle in trace.obstacles:
            kind = type(self._modules[obstacle]).__name__
            return f"its units reach {obstacle!r} ({kind}), which combines them."
        if trace.is_in_output:
            return "its units reach the model's output without passing a layer that reads them."
        if not any(is_reader(self._layers[layer]) for layer in trace.positions):
            return "no layer reads its units."
        for layer in trace.positions:
            problem = self._find_layer_problem(layer)
            if problem is not None:
                return f"its units are read by {layer!r}, but {problem}"
        return None

    def _trace(self, writer: str, unit: int) -> _Trace:
        """Run the model with one unit of a writer set to NaN."""
        trace, module = _Trace(), self._layers[writer]

        def poison(_: str, __: nn.Module, ___: Any, ____: Any, output: Any) -> Any:
            return _poisoned(output, unit_axis(module), unit, count_units(module))

        with (
            hooked(self._watched, after=partial(self._observe, trace)),
            hooked({writer: module}, after=poison),
            self._quietly(),
        ):
            output = call_model(self.model, self.sample_input)
        trace.is_in_output = any(map(_has_nan, tensors_in(output)))
        return trace

    def _observe(
        self, trace: _Trace, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any
    ) -> Any:
        """Note what a module takes in; keep the NaN from passing a reader."""
        read = [x for x in tensors_in([*args, *kwargs.values()]) if _has_nan(x)]
        if not read:
            return None
        if name in self._layers and (is_reader(module) or is_keeper(module)):
            x = read[0]
            axis = unit_axis(module) % x.ndim
            found = torch.isnan(x).movedim(axis, 0).flatten(1).any(1).nonzero()[:, 0]
            trace.positions[name] = trace.positions.get(name, frozenset()) | {*found.tolist()}
            calls = self._calls[name]
            return calls[0].output if is_reader(module) and len(calls) == 1 else None
        if any(module.children()) and not isinstance(module, nn.MultiheadAttention):
            trace.crossed.add(name)
        else:
            trace.obstacles.append(name)
        return None

    def _try(self, same: Sequence[_Reach]) -> Place | str:
        """Return the place of writers whose units are the same; otherwise, the reason."""
        if len({reach.units for reach in same}) > 1:
            return "layers that write the same units have different numbers of them."
        place = self._place_of(same)
        problem = self._find_trial_problem(place)
        direct = self._direct_entries(same) if problem is not None else ()
        if direct:
            place = replace(place, entries=(*place.entries, *direct))
            problem = self._find_trial_problem(place)
        return place if problem is None else problem

    def _place_of(self, same: Sequence[_Reach]) -> Place:
        entries: list[Entries] = []
        for reach in same:
            for each in writes(self._layers[reach.writer]):
                tensor = f"{reach.writer}.{each.tensor}"
                starts = [each.start + block * reach.units for block in range(reach.blocks)]
                entries += [replace(each, tensor=tensor, start=start) for start in starts]
        taken = {name: located for reach in same for name, located in reach.places.items()}
        for name, (starts, size) in taken.items():
            module = self._layers[name]
            for each in reads(module) if is_reader(module) else keeps(module):
                tensor = f"{name}.{each.tensor}"
                for start in starts:
                    entries.append(replace(each, tensor=tensor, start=start, size=size))
        order = {name: index for index, name in enumerate(self._modules)}
        return Place(
            units=same[0].units,
            entries=tuple(entries),
            writers=tuple(sorted((reach.writer for reach in same), key=order.__getitem__)),
            readers=tuple(
                name
                for name in sorted(taken, key=order.__getitem__)
                if is_reader(self._layers[name])
            ),
        )

    def _direct_entries(self, same: Sequence[_Reach]) -> tuple[Entries, ...]:
        """Return parameters with an axis of this size that modules use themselves on the way."""
        found: list[Entries] = []
        for name in sorted({name for reach in same for name in reach.crossed}):
            for own, parameter in self._modules[name].named_parameters(recurse=False):
                axes = [a for a, size in enumerate(parameter.shape) if size == same[0].units]
                if len(axes) == 1:
                    found.append(Entries(f"{name}.{own}", axes[0], Role.KEEP))
        return tuple(found)

    def _find_trial_problem(self, *places: Place, n_new: int = TRIAL_UNITS) -> str | None:
        """Add a few units to places, run the model, and remove them again."""
        counts, edits = dict.fromkeys(places, n_new), Edits(self.model)
        try:
            add_units(edits, counts, generator=self._generator())
            with self._quietly():
                after = tensors_in(call_model(self.model, self.sample_input))
            is_exact = largest_difference(self.before, after) <= tolerance_for(self.before)
            is_general = is_exact and self.noise.find_difference(counts) is None
        except Exception as error:
            return (
                f"the model fails with more units ({summarize_error(error)}): a size is fixed in "
                "its code, or another tensor has these units."
            )
        finally:
            edits.undo()
        if not is_general:
            where = " on other inputs" if is_exact else ""
            return f"more units would change what the model computes{where}."
        return self._find_idle_writer(places[0])

    def _find_idle_writer(self, place: Place) -> str | None:
        """Return what to say if the sample leaves open what the code around a place does.

        With one position, attention returns the same whatever it compares.
        """
        n_units = None if place.heads is None else place.heads.size
        for reader in place.readers:
            for writer in self._mixed.get(reader, []):
                if not self.noise.matters(writer, reader, n_units):
                    self.unclear[place.writers[0]] = problem = (
                        f"what {writer!r} returns does not matter on this sample; give one with "
                        "several positions."
                    )
                    return problem
        return None

    def _generator(self) -> torch.Generator:
        return torch.Generator(device=_device_of(self.model)).manual_seed(0)

    def _fits(self, copy: Place, place: Place) -> bool:
        """Return whether a place that was found in one block is there in another; note why not."""
        for own, other in zip(copy.entries, place.entries, strict=True):
            try:
                sizes = [
                    tensor_of(self.model, each.tensor).shape[each.axis] for each in (own, other)
                ]
            except (AttributeError, IndexError):
                return False
            if sizes[0] != sizes[1]:
                return False
        problems = {name: self._find_layer_problem(name) for name in copy.writers}
        found = {name: problem for name, problem in problems.items() if problem is not None}
        self.problems |= found
        return not found


def _locate(found: Mapping[int, frozenset[int] | None]) -> tuple[tuple[int, ...], int] | None:
    """Return where units start in a layer's input and the entries of each, given some units'.

    Unit ``u`` has the entries ``start + u * size`` to ``start + (u + 1) * size`` of each start.
    """
    first = found.get(0)
    if not first:
        return None
    runs: list[list[int]] = []
    for position in sorted(first):
        if runs and position == runs[-1][-1] + 1:
            runs[-1].append(position)
        else:
            runs.append([position])
    size = len(runs[0])
    starts = tuple(run[0] for run in runs)
    for unit, positions in found.items():
        wanted = frozenset(start + unit * size + k for start in starts for k in range(size))
        if positions != wanted:
            return None
    return starts, size


def _merge(reaches: Sequence[_Reach]) -> list[list[_Reach]]:
    """Return the writers whose units arrive at the same entries, together."""
    groups: list[tuple[set[tuple[str, int, int]], list[_Reach]]] = []
    for reach in reaches:
        own = {(n, start, size) for n, (starts, size) in reach.places.items() for start in starts}
        members = [reach]
        for group in [group for group in groups if group[0] & own]:
            groups.remove(group)
            own |= group[0]
            members = group[1] + members
        groups.append((own, members))
    return [members for _, members in groups]


def _moved(place: Place, block: str, writer: str) -> Place:
    """Return the place that a writer of the same name in another block would have."""
    other = ".".join(writer.split(".")[: block.count(".") + 1])

    def move(name: str) -> str:
        return other + name[len(block) :]

    return place.renamed(move)


def _poisoned(output: Any, axis: int, unit: int, n_units: int) -> Any:
    """Return a copy of an output in which one unit is NaN."""
    if isinstance(output, tuple):
        parts = cast(tuple[Any, ...], output)
        return tuple(_poisoned(part, axis, unit, n_units) for part in parts)
    output = output.clone()
    # A recurrent layer that runs in both directions returns its units twice.
    for index in range(unit, output.shape[axis], n_units):
        output.select(axis, index).fill_(math.nan)
    return output


def _has_nan(tensor: Tensor) -> bool:
    return bool(torch.isnan(tensor).any())


def _tied_tensors(model: nn.Module) -> set[int]:
    """Return the tensors of a model that have more than one name, by identity."""
    counts: dict[int, int] = {}
    for _, module in module_names(model):
        for tensor in module.parameters(recurse=False):
            counts[id(tensor)] = counts.get(id(tensor), 0) + 1
    return {key for key, count in counts.items() if count > 1}


def _device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))

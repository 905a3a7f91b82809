"""A host design and its seeds as modules that compute many hosts at once."""

from __future__ import annotations

import copy
from functools import partial
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from esper.errors import UnsupportedHostError, summarize_error
from esper.growth.blueprints import SeedForm
from esper.growth.dry_run import record_calls
from esper.growth.host_slots import slots
from esper.growth.modules import named_tensors
from esper.growth.seed_slot import SeedSlot
from esper.growth.slot_states import SlotStates
from esper.lifecycle.factored_actions import BlendStyle
from esper.populations.rows import ActiveRows, Row, RowStore, cut_corner, find_misfit, shapes_of
from esper.populations.stacked_slots import GroupKey, Layer, StackedSeed, StackedSlot
from esper.populations.stacking import (
    KnownKinds,
    kind_of,
    require_plain_parameters,
    stack_module,
    structure_of,
)

HOST_COUNTS = (2, 1)
"""Numbers of hosts to test with; a single one has a different memory layout."""

SCALE = 0.3
TOLERANCE = 1e-6

_differences = KnownKinds()


def find_difference(
    template: nn.Module, sample: Tensor, design: nn.Module | None = None
) -> str | None:
    """Return how a module differs from its stacked form, or None if it does not.

    The answer is computed once for modules of one kind. Of floating-point samples, only the shape
    matters. If a design is given, a module of the same structure with larger tensors, that is
    stacked instead: the module's tensors are padded to its size, and padding may get no gradient.
    """
    wide = template if design is None else design
    numbers = b"" if sample.is_floating_point() else sample.detach().cpu().numpy().tobytes()
    key = kind_of(template), kind_of(wide), sample.shape, sample.dtype, numbers
    return _differences.find(key, lambda: _find_difference(template, sample, wide))


def _find_difference(template: nn.Module, sample: Tensor, wide: nn.Module) -> str | None:
    generator = torch.Generator().manual_seed(0)
    misfit = find_misfit(shapes_of(named_tensors(template)), shapes_of(named_tensors(wide)))
    if misfit is not None:
        return misfit
    for is_training, n_hosts in product((True, False), HOST_COUNTS):
        hosts = [_drawn(template, generator).train(is_training) for _ in range(n_hosts)]
        inputs = _draw_inputs(sample, n_hosts, generator)
        try:
            problem = _compare(hosts, inputs, copy.deepcopy(wide).double().train(is_training))
        except Exception as error:
            problem = f"it fails with more leading axes: {summarize_error(error)}"
        if problem is not None:
            return problem
    return None


def _compare(hosts: list[nn.Module], inputs: Tensor, design: nn.Module) -> str | None:
    store, rows = RowStore(design, ()), ActiveRows()
    store.put({index: Row.of_module(host) for index, host in enumerate(hosts)})
    stacked = stack_module(design, rows, {}).train(design.training)
    rows.select(store, slice(None), needs_grad=True)
    expected = [host(x) for host, x in zip(hosts, inputs, strict=True)]
    if not all(isinstance(output, Tensor) for output in expected):
        return "it does not return a tensor"
    wanted, outputs = torch.stack(expected), stacked(inputs)
    problem = _find_gap("its output", outputs, wanted)
    if problem is not None or not wanted.requires_grad:
        return problem
    weights = torch.rand(
        wanted.shape, dtype=wanted.dtype, generator=torch.Generator().manual_seed(1)
    )
    (wanted * weights).sum().backward()
    (outputs * weights).sum().backward()
    for name, parameter in hosts[0].named_parameters():
        if parameter.grad is None:
            return f"its output does not depend on {name}"
    return _compare_gradients(hosts, store, rows) or _compare_buffers(hosts[0], store)


def _compare_gradients(hosts: list[nn.Module], store: RowStore, rows: ActiveRows) -> str | None:
    assert rows.leaf is not None
    assert rows.leaf.grad is not None
    marks = {name: torch.ones_like(p) for name, p in hosts[0].named_parameters()}
    if rows.leaf.grad[:, store.flatten(marks) == 0].any():
        return "padding would get a gradient"
    by_name = [{n: p.grad for n, p in host.named_parameters()} for host in hosts]
    wanted = torch.stack([store.flatten(cast(dict[str, Tensor], own)) for own in by_name])
    return _find_gap("its gradient", rows.leaf.grad, wanted)


def _compare_buffers(host: nn.Module, store: RowStore) -> str | None:
    for name, buffer in host.named_buffers():
        own = cut_corner(store.buffers[name][0], tuple(buffer.shape))
        problem = _find_gap(f"its {name}", own.double(), buffer.double())
        if problem is not None:
            return problem
    return None


def _find_gap(what: str, given: Tensor, wanted: Tensor) -> str | None:
    if given.shape != wanted.shape:
        return f"{what} has shape {list(given.shape)} instead of {list(wanted.shape)}"
    gap = (given - wanted).abs().max().item() if wanted.numel() else 0.0
    scale = max(1.0, wanted.abs().max().item()) if wanted.numel() else 1.0
    return None if gap <= TOLERANCE * scale else f"{what} differs by {gap:.2g}"


def _drawn(template: nn.Module, generator: torch.Generator) -> nn.Module:
    """Return a copy with other weights and other running statistics."""
    host = copy.deepcopy(template).double()
    with torch.no_grad():
        for parameter in host.parameters():
            parameter += SCALE * torch.randn(parameter.shape, generator=generator)
        for buffer in host.buffers():
            if buffer.is_floating_point():
                buffer += torch.rand(buffer.shape, generator=generator)
    return host


def _draw_inputs(sample: Tensor, n_hosts: int, generator: torch.Generator) -> Tensor:
    """Return different samples for each host, ``[hosts, samples, ...]``."""
    shape = (n_hosts, *sample.shape)
    if sample.is_floating_point():
        return torch.randn(shape, generator=generator, dtype=torch.float64)
    return torch.stack([sample.roll(index, 0) for index in range(n_hosts)])


class LoopedModule(nn.Module):
    """Computes any module with one tensor argument in a loop over the active rows."""

    def __init__(self, rows: ActiveRows, template: nn.Module) -> None:
        super().__init__()
        self.rows = rows
        self.template: dict[str, Any] = {"module": template}  # in a dict, so it is not a submodule

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of each host's module for its own samples."""
        module = self.template["module"].train(self.training)
        tensors = {**self.rows.parameters, **self.rows.buffers}
        outputs = [
            functional_call(module, {name: t[index] for name, t in tensors.items()}, (own,))
            for index, own in enumerate(x)
        ]
        return torch.stack(outputs)


MAX_STRUCTURES = 64
"""Number of structures whose test result is cached; the oldest is dropped first."""


class StackedDesign:
    """A host design and its seeds, stacked."""

    def __init__(self, template: nn.Module, sample: Tensor) -> None:
        """Stack the design of a host, given a few samples of its input.

        Raises:
            UnsupportedHostError: If the design cannot be stacked.
        """
        pairs = [site.name for site in slots(template).sites if site.pair is not None]
        if pairs:
            raise UnsupportedHostError(
                f"{type(template).__name__} cannot be stacked: its slot {pairs[0]!r} is on a pair "
                "of layers; use SequentialPopulation."
            )
        require_plain_parameters(template)
        self.template = template
        self.sample = sample
        self.slots = slots(template)
        self.rows = ActiveRows()
        self.places = {name: StackedSlot() for name in self.slots}
        self.net = stack_module(template, self.rows, self.places)
        self._seeds: dict[GroupKey, StackedSeed] = {}
        self._gates: dict[Layer, StackedSeed] = {}
        self._group_units: dict[tuple[str, str, int], int] = {}
        """The units of a seed's group, by slot, blueprint and units."""
        self._units: dict[tuple[str, str, int], int] = {}
        """Hidden units that a seed adds, by slot, blueprint and units of the fossils before it."""
        difference = find_difference(template, sample)
        if difference is not None:
            raise UnsupportedHostError(
                f"{type(template).__name__} cannot be stacked: {difference}; use "
                "SequentialPopulation."
            )
        self._problems = KnownKinds(MAX_STRUCTURES)
        self._problems.find(structure_of(template), lambda: None)

    def require_host(self, model: nn.Module, host: int) -> None:
        """Raise if a host cannot be computed as a padded host of the design.

        Raises:
            UnsupportedHostError: If it cannot.
        """
        try:
            require_plain_parameters(model)
        except UnsupportedHostError as error:
            raise UnsupportedHostError(f"host {host} cannot be stacked: {error}") from error
        problem = self._problems.find(structure_of(model), lambda: self._find_problem(model))
        if problem is None and slots(model).sites != self.slots.sites:
            problem = "its slots are not the design's (pass design to make_host)"
        if problem is not None:
            raise UnsupportedHostError(
                f"host {host} does not fit the population's design: {problem}; use "
                "SequentialPopulation."
            )

    def group_key(self, layer: Layer, blueprint: str, units: int) -> GroupKey:
        """Return the group of a seed in a layer, on fossils with ``units`` hidden units."""
        known = layer.slot, blueprint, units
        if known not in self._group_units:
            self._group_units[known] = units if self._depends_on_units(*known) else 0
        return GroupKey(layer, blueprint, self._group_units[known])

    def added_units(self, slot: str, blueprint: str, units: int) -> int:
        """Return the hidden units that a seed adds to its block, whose fossils have ``units``."""
        known = slot, blueprint, units
        if known not in self._units:
            self._units[known] = self._plant(*known).absorb()
        return self._units[known]

    def is_full(self, slot: str, blueprint: str, units: int) -> bool:
        """Return whether a seed takes the last hidden units that a block may be widened by."""
        limit = self.slots.lives.growth_config.max_widening
        if limit is None:
            return False
        units += self.added_units(slot, blueprint, units)
        return self.slots[slot].site.limited(limit).widened(units).room == 0

    def seed(self, key: GroupKey) -> StackedSeed:
        """Return the stacked form of a group's seeds."""
        if key not in self._seeds:
            first = self._seeds.get(key._replace(layer=Layer(key.layer.slot, 0)))
            if first is not None:
                self._seeds[key] = first.copied()
            else:
                place = self._plant(key.layer.slot, key.blueprint, key.units)
                assert place.seed is not None
                stack = partial(_stack, shape=place.seed_input_shape)
                self._seeds[key] = StackedSeed(place.form, place.seed, stack)
        return self._seeds[key]

    def gate(self, layer: Layer) -> StackedSeed:
        """Return the stacked form of the learned gates of a layer."""
        if layer not in self._gates:
            place = self.new_slot(layer.slot, self.slots.lives)
            place.restyle(BlendStyle.LEARNED_GATE)
            assert place.gate is not None
            stack = partial(_stack, shape=place.site.output_shape)
            self._gates[layer] = StackedSeed(SeedForm.SERIAL, place.gate, stack)
        return self._gates[layer]

    def _plant(self, slot: str, blueprint: str, units: int) -> SeedSlot:
        """Return a slot with a seed that belongs to no host, on fossils with so many units."""
        place = self.new_slot(slot, self.slots.lives)
        limit = self.slots.lives.growth_config.max_widening
        place.site = place.site.limited(limit).widened(units)
        with torch.random.fork_rng(devices=[]):
            place.plant(blueprint, BlendStyle.ADD_LINEAR)
        return place

    def _depends_on_units(self, slot: str, blueprint: str, units: int) -> bool:
        """Return whether a seed differs from one on a block without fossils."""
        if units == 0:
            return False
        seeds = [self._plant(slot, blueprint, count).seed for count in (0, units)]
        forms = [
            (structure_of(seed), shapes_of(named_tensors(seed)))
            for seed in seeds
            if seed is not None
        ]
        return forms[0] != forms[1]

    def new_slot(self, slot: str, lives: SlotStates) -> SeedSlot:
        """Return an empty slot of the design that follows these lives."""
        template = self.slots[slot]
        return SeedSlot(template.site, template.block, lives, self.slots.model)

    def _find_problem(self, model: nn.Module) -> str | None:
        own, wanted = slots(model), self.slots
        if list(own) != list(wanted):
            return f"it has slots {', '.join(own)} instead of {', '.join(wanted)}"
        difference = find_difference(model, self.sample, self.template)
        if difference is not None:
            return difference
        shapes = _slot_shapes(model, self.sample)
        for slot, expected in _slot_shapes(self.template, self.sample).items():
            if shapes[slot] != expected:
                return f"its slot {slot!r} sees tensors of other shapes"
        return None


def _stack(module: nn.Module, rows: ActiveRows, shape: tuple[int, ...]) -> nn.Module:
    """Return a seed's stacked form or, if it has none, a loop over hosts."""
    try:
        require_plain_parameters(module)
        stacked = stack_module(module, rows, {})
        if find_difference(module, torch.zeros(3, *shape[1:])) is None:
            return stacked
    except UnsupportedHostError:
        pass
    return LoopedModule(rows, module)


def _slot_shapes(model: nn.Module, sample: Tensor) -> dict[str, list[torch.Size]]:
    """Return the input and output shapes of each slot's block."""
    blocks = {name: slot.block for name, slot in slots(model).items()}
    calls = record_calls(model, blocks, sample)
    return {
        name: [t.shape for call in own for t in (*call.tensors().values(), call.output)]
        for name, own in calls.items()
    }

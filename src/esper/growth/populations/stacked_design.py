"""A host design and the seeds that grow in it, as modules that compute many hosts at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from esper.errors import SlotError, UnsupportedHostError
from esper.growth.blueprints import SeedForm, find_blueprint
from esper.growth.dry_run import record_calls
from esper.growth.host_slots import slots
from esper.growth.populations.looped import LoopedModule
from esper.growth.populations.rows import ActiveRows
from esper.growth.populations.stacked_slots import GroupKey, StackedSeed, StackedSlot
from esper.growth.populations.stacking import require_plain_parameters, stack_module
from esper.growth.populations.structures import Structure, structure_of
from esper.growth.populations.trial import find_difference
from esper.growth.seed_slot import SeedSlot
from esper.lifecycle.factored_actions import BlendStyle

MAX_STRUCTURES = 64
"""Structures whose trial is remembered; the oldest is forgotten first."""


class StackedDesign:
    """A host design and its seeds, stacked."""

    def __init__(self, template: nn.Module, sample: Tensor) -> None:
        """Stack a design; ``sample`` is a few samples of its input.

        Raises:
            UnsupportedHostError: If it cannot be computed for many hosts at once.
        """
        require_plain_parameters(template)
        self.template = template
        self.sample = sample
        self.slots = slots(template)
        self.rows = ActiveRows()
        self.places = {name: StackedSlot() for name in self.slots}
        self.net = stack_module(template, self.rows, self.places)
        self._seeds: dict[GroupKey, StackedSeed] = {}
        self._gates: dict[str, StackedSeed] = {}
        self._keys: dict[tuple[str, str], GroupKey] = {}
        difference = find_difference(template, sample)
        if difference is not None:
            raise UnsupportedHostError(
                f"a {type(template).__name__} cannot be computed for many hosts at once: "
                f"{difference}. Use SequentialPopulation."
            )
        self._problems: dict[Structure, str | None] = {structure_of(template): None}

    def require_host(self, model: nn.Module, host: int) -> None:
        """Refuse a host that cannot be computed as a corner of the design.

        Raises:
            UnsupportedHostError: If it cannot.
        """
        try:
            require_plain_parameters(model)
        except UnsupportedHostError as error:
            raise UnsupportedHostError(f"host {host} cannot be stacked: {error}") from error
        structure = structure_of(model)
        if structure not in self._problems:
            while len(self._problems) >= MAX_STRUCTURES:
                del self._problems[next(iter(self._problems))]
            self._problems[structure] = self._find_problem(model)
        problem = self._problems[structure]
        if problem is None and slots(model).sites != self.slots.sites:
            problem = "its slots are not the design's (make_host has the keyword design)"
        if problem is not None:
            raise UnsupportedHostError(
                f"host {host} cannot be computed as a smaller host of the population's design: "
                f"{problem}; use SequentialPopulation."
            )

    def group_key(self, slot: str, blueprint: str) -> GroupKey:
        """Return the group in which a seed computes: that of its family if it is a corner of it."""
        if (slot, blueprint) not in self._keys:
            family = find_blueprint(blueprint).family
            is_part = bool(family) and self._is_corner(slot, blueprint, family)
            self._keys[slot, blueprint] = GroupKey(slot, family if is_part else blueprint)
        return self._keys[slot, blueprint]

    def seed(self, key: GroupKey) -> StackedSeed:
        """Return the stacked form of a group's seeds."""
        if key not in self._seeds:
            place = self._plant(key.slot, key.blueprint)
            assert place.seed is not None
            self._seeds[key] = _stack(place.seed, place.form, _read_shape(place))
        return self._seeds[key]

    def gate(self, slot: str) -> StackedSeed:
        """Return the stacked form of the learned gates of a slot."""
        if slot not in self._gates:
            place = self._fresh_place(slot)
            place.restyle(BlendStyle.LEARNED_GATE)
            assert place.gate is not None
            self._gates[slot] = _stack(place.gate, SeedForm.SERIAL, place.site.output_shape)
            self.places[slot].gate = self._gates[slot].module
        return self._gates[slot]

    def _plant(self, slot: str, blueprint: str) -> SeedSlot:
        """Return a slot with a seed of a blueprint, in no host."""
        place = self._fresh_place(slot)
        with torch.random.fork_rng(devices=[]):
            place.plant(blueprint, BlendStyle.ADD_LINEAR)
        return place

    def _fresh_place(self, slot: str) -> SeedSlot:
        template = self.slots[slot]
        return SeedSlot(template.site, template.block, self.slots.lives, self.slots.model)

    def _is_corner(self, slot: str, blueprint: str, family: str) -> bool:
        """Return whether a family's largest seed, padded with zeros, computes a smaller one."""
        try:
            fits = find_blueprint(family).why_not(self.slots[slot].site) is None
        except SlotError:
            return False
        if not fits:
            return False
        small, large = (self._plant(slot, name) for name in (blueprint, family))
        assert small.seed is not None
        if small.form != large.form:
            return False
        stacked = self.seed(GroupKey(slot, family))
        if isinstance(stacked.module, LoopedModule):
            return False
        return find_difference(small.seed, _sample(_read_shape(small)), large.seed) is None

    def _find_problem(self, model: nn.Module) -> str | None:
        own, wanted = slots(model), self.slots
        if list(own) != list(wanted):
            return f"it has the slots {', '.join(own)} in place of {', '.join(wanted)}"
        difference = find_difference(model, self.sample, self.template)
        if difference is not None:
            return difference
        shapes = _slot_shapes(model, self.sample)
        for slot, expected in _slot_shapes(self.template, self.sample).items():
            if shapes[slot] != expected:
                return f"tensors of other shapes pass through its slot {slot!r}"
        return None


def _stack(module: nn.Module, form: SeedForm, shape: tuple[int, ...]) -> StackedSeed:
    """Return a seed's stacked form or, if it has none, the seed for each host by itself."""
    part = StackedSeed(form, module)
    try:
        require_plain_parameters(module)
        part.module = stack_module(module, part.rows, {})
        is_exact = find_difference(module, _sample(shape)) is None
    except UnsupportedHostError:
        is_exact = False
    if not is_exact:
        part.module = LoopedModule(part.rows, module)
    return part


def _read_shape(place: SeedSlot) -> tuple[int, ...]:
    """Return the shape of what a seed reads, batch included."""
    site = place.site
    shape = site.output_shape if place.form == SeedForm.SERIAL else site.input_shape
    assert shape is not None
    return shape


def _sample(shape: tuple[int, ...]) -> Tensor:
    return torch.zeros(3, *shape[1:])


def _slot_shapes(model: nn.Module, sample: Tensor) -> dict[str, list[torch.Size]]:
    """Return the shapes that enter and leave the block of each slot."""
    blocks = {name: slot.block for name, slot in slots(model).items()}
    calls = record_calls(model, blocks, sample)
    return {
        name: [t.shape for call in own for t in (*call.tensors().values(), call.output)]
        for name, own in calls.items()
    }

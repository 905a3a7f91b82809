"""What the life of a seed does to the rows of a stacked population."""

from __future__ import annotations

from typing import TYPE_CHECKING

from esper.growth.host_slots import draw_seed_number
from esper.growth.randomness import seeded
from esper.growth.seed_slot import SeedSlot
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.growth_action import GrowthAction

if TYPE_CHECKING:
    from esper.growth.populations.stacked import StackedPopulation


class StackedKeeper:
    """Keeps the seeds of one host of a stacked population."""

    def __init__(self, population: StackedPopulation, host: int) -> None:
        self.population = population
        self.state = population.state
        self.host = host

    def add_seed(self, slot: str, action: GrowthAction) -> None:
        """Build the action's blueprint; it waits until it may learn."""
        seed, count = self.population.specs[self.host].seed, self.state.n_germinated[self.host]
        place = self._fresh_place(slot)
        with seeded(draw_seed_number(seed, count)):
            place.plant(action.blueprint, action.style)
        self.state.n_germinated[self.host] = count + 1
        self.state.pending[self.host, slot] = place

    def remove_seed(self, slot: str) -> None:
        """Take a seed's rows away."""
        self.state.drop_seed(self.host, slot)

    def restyle_seed(self, slot: str, style: BlendStyle) -> None:
        """Make the gate if the style has one and there is none; remove it if it has none."""
        if style != BlendStyle.LEARNED_GATE:
            self.state.drop_gate(self.host, slot)
        elif self.state.lives[self.host][slot].style != style:
            place = self._fresh_place(slot)
            place.restyle(style)
            assert place.gate is not None
            self.state.put_gate(self.host, slot, place.gate)

    def commit_seed(self, slot: str) -> None:
        """Change nothing: what a committed seed learns by is read from its stage."""

    def find_start_problem(self, slot: str) -> str | None:
        """Return why a germinated seed may not start learning, or None if it may."""
        return self.state.pending[self.host, slot].find_start_problem()

    def _fresh_place(self, slot: str) -> SeedSlot:
        template = self.population.design.slots[slot]
        lives, model = self.state.lives[self.host], self.population.design.slots.model
        return SeedSlot(template.site, template.block, lives, model)

"""The slots of one model: acting on them, letting epochs pass, switching them off."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
from torch import nn

from esper.config.checks import require_int
from esper.config.growth import GrowthConfig
from esper.errors import SlotError
from esper.growth.blueprints import SeedForm, blueprint_names, fitting_blueprints
from esper.growth.modules import seeded
from esper.growth.seed_slot import SeedSlot
from esper.growth.sites import SlotSite
from esper.growth.slot_lives import Outcome, SlotLife, SlotLives
from esper.lifecycle.factored_actions import AlphaCurve, BlendStyle, GrowthAction, Op
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import LIVE_STAGES, Stage

ATTRIBUTE = "_esper_slots"
"""Where a model keeps its slots. It is no module: parameters and hooks are the model's own."""


_LISTENERS = ("listeners", "action_listeners")


class HostSlots(Mapping[str, SeedSlot]):
    """All slots of a model, by name, in order.

    ``at`` names each site's block by its parent module and the name it has there, so that slots
    inside one another find their blocks whichever of them is in use.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: list[SlotSite],
        *,
        growth_config: GrowthConfig | None = None,
        seed_limit: int | None = None,
        seed: int = 0,
    ) -> None:
        require_int("seed", seed, least=0)
        self.model = model
        self.seed = seed
        self.n_germinated = 0
        self.lives = SlotLives(slot_config_for(sites, seed_limit), growth_config)
        self.listeners: list[Callable[[], None]] = []
        """Called after parameters came or went."""
        self.action_listeners: list[Callable[[], None]] = []
        """Called after an action was done."""
        self._slots: dict[str, SeedSlot] = {}
        self._places: dict[str, tuple[nn.Module, str]] = {}
        for site in sites:
            parent_name, _, attribute = site.name.rpartition(".")
            self._places[site.name] = (model.get_submodule(parent_name), attribute)
            self._slots[site.name] = SeedSlot(
                site, model.get_submodule(site.name), self.lives, model
            )

    def __getitem__(self, slot: str) -> SeedSlot:
        self.slot_config.slot_index(slot)
        return self._slots[slot]

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def __deepcopy__(self, memo: dict[int, Any]) -> HostSlots:
        """Copy the slots with the model; whoever listens to this one does not know the copy."""
        twin = HostSlots.__new__(HostSlots)
        memo[id(self)] = twin
        for name, value in self.__dict__.items():
            twin.__dict__[name] = [] if name in _LISTENERS else copy.deepcopy(value, memo)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, **{name: [] for name in _LISTENERS}}

    @property
    def slot_config(self) -> SlotConfig:
        """The slots as action masks know them."""
        return self.lives.slot_config

    @property
    def sites(self) -> list[SlotSite]:
        """The place of each slot."""
        return [slot.site for slot in self._slots.values()]

    def germinate(
        self,
        slot: str,
        blueprint: str,
        *,
        style: BlendStyle = BlendStyle.ADD_LINEAR,
        tempo_epochs: int = 3,
        alpha_target: float = 1.0,
    ) -> Outcome:
        """Build a seed in a slot; the model's function stays as it is."""
        return self.apply(
            GrowthAction(
                op=Op.GERMINATE,
                slot=slot,
                blueprint=blueprint,
                style=style,
                tempo_epochs=tempo_epochs,
                alpha_target=alpha_target,
            )
        )

    def advance(self, slot: str) -> Outcome:
        """Let a seed go on: from germinated to training, to blending, to holding."""
        return self.apply(GrowthAction(op=Op.ADVANCE, slot=slot))

    def set_alpha_target(
        self,
        slot: str,
        alpha_target: float,
        *,
        style: BlendStyle | None = None,
        speed_epochs: int = 0,
        curve: AlphaCurve = AlphaCurve.LINEAR,
    ) -> Outcome:
        """Change how strongly a seed is blended in, and by which style (its own if not given)."""
        return self.apply(
            GrowthAction(
                op=Op.SET_ALPHA_TARGET,
                slot=slot,
                style=self[slot].life.style if style is None else style,
                alpha_target=alpha_target,
                alpha_speed_epochs=speed_epochs,
                alpha_curve=curve,
            )
        )

    def prune(
        self, slot: str, *, speed_epochs: int = 0, curve: AlphaCurve = AlphaCurve.LINEAR
    ) -> Outcome:
        """Fade a seed out over some epochs and remove it."""
        return self.apply(
            GrowthAction(op=Op.PRUNE, slot=slot, alpha_speed_epochs=speed_epochs, alpha_curve=curve)
        )

    def fossilize(self, slot: str) -> Outcome:
        """Commit a held seed: it is part of the model from now on."""
        return self.apply(GrowthAction(op=Op.FOSSILIZE, slot=slot))

    def apply(self, action: GrowthAction) -> Outcome:
        """Do what an action says; a gate may turn it into a wait, with a reason.

        Raises:
            IllegalActionError: If the state of the slots does not allow the action.
        """
        outcome = self.lives.apply(action, self)
        if outcome.was_done:
            for listener in self.action_listeners:
                listener()
        return outcome

    def tick(self) -> None:
        """Let one epoch pass."""
        self.lives.tick(self)

    def abandon_growing(self) -> list[str]:
        """Prune every seed that is not committed, at once; return the slots it was done to."""
        growing = [name for name, life in self.lives.items() if life.is_growing]
        for name in growing:
            self.lives.abandon(name, self)
        return growing

    @contextmanager
    def switched_off(self, slot: str) -> Generator[None]:
        """Compute the model without a slot's seed while the context lasts."""
        with self[slot].switched_off():
            yield

    def add_seed(self, slot: str, action: GrowthAction) -> None:
        """Build the action's blueprint and put the slot in the block's place."""
        with seeded(draw_seed_number(self.seed, self.n_germinated)):
            self[slot].plant(action.blueprint, action.style)
        self.n_germinated += 1
        self.place(slot)
        self._notify()

    def remove_seed(self, slot: str) -> None:
        """Take the seed away and put the block back."""
        self[slot].clear()
        self.take_out(slot)
        self._notify()

    def restyle_seed(self, slot: str, style: BlendStyle) -> None:
        """Make what a style needs and remove what it does not."""
        self[slot].restyle(style)
        self._notify()

    def commit_seed(self, slot: str) -> None:
        """Count the seed as part of the host."""
        self._notify()

    def find_start_problem(self, slot: str) -> str | None:
        """Return why a germinated seed may not start learning, or None if it may."""
        return self[slot].find_start_problem()

    def place(self, slot: str) -> None:
        """Put a slot in its block's place in the model."""
        parent, attribute = self._places[slot]
        # While the slot was out of the model, the model may have changed its mode.
        self[slot].training = self[slot].block.training
        setattr(parent, attribute, self[slot])

    def replant(self) -> None:
        """Build the seed of each slot whose life says that it has one; weights come later."""
        for name, life in self.lives.items():
            if life.has_seed:
                with seeded(0):
                    self[name].plant(life.blueprint, life.style)
                self.place(name)
        self._notify()

    def put_back(
        self,
        slot: str,
        life: SlotLife,
        seed: nn.Module | None,
        gate: nn.Module | None,
        form: SeedForm,
    ) -> None:
        """Put a slot back into a state it was in, with the modules that stood there."""
        self.lives.set_life(slot, replace(life))
        place = self[slot]
        place.seed, place.gate, place.form = seed, gate, form
        if seed is not None:
            self.place(slot)
        else:
            self.take_out(slot)
        self._notify()

    def growing_parameters(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of each seed that is not committed, by slot."""
        return {
            name: slot.seed_parameters()
            for name, slot in self._slots.items()
            if slot.seed is not None and slot.stage != Stage.FOSSILIZED
        }

    @property
    def n_live(self) -> int:
        """Seeds that are neither committed nor given up."""
        return sum(life.stage in LIVE_STAGES for _, life in self.lives.items())

    def take_out(self, slot: str) -> None:
        """Put a slot's block back in its own place in the model."""
        parent, attribute = self._places[slot]
        setattr(parent, attribute, self[slot].block)

    def _notify(self) -> None:
        for listener in self.listeners:
            listener()


def slot_config_for(sites: list[SlotSite], seed_limit: int | None) -> SlotConfig:
    """Return the slots as action masks know them, with the blueprints that fit each."""
    return _slot_config_for(tuple(sites), seed_limit, blueprint_names())


@lru_cache(maxsize=64)
def _slot_config_for(
    sites: tuple[SlotSite, ...], seed_limit: int | None, names: tuple[str, ...]
) -> SlotConfig:
    return SlotConfig(
        tuple(site.name for site in sites),
        seed_limit=seed_limit,
        blueprints=names,
        fits={site.name: fitting_blueprints(site, names) for site in sites},
    )


def draw_seed_number(seed: int, n_germinated: int) -> int:
    """Return the number that decides the weights of a host's next seed."""
    return int(np.random.SeedSequence([seed, n_germinated]).generate_state(1)[0])


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model that ``torch.compile`` wrapped, or the model itself."""
    return cast(nn.Module, getattr(model, "_orig_mod", model))


def slots(model: nn.Module) -> HostSlots:
    """Return the slots of a model.

    Raises:
        SlotError: If the model has none.
    """
    found = unwrapped(model).__dict__.get(ATTRIBUTE)
    if not isinstance(found, HostSlots):
        raise SlotError(
            f"this {type(model).__name__} has no slots; call esper.add_slots(model, at=..., "
            "sample_input=...) first."
        )
    return found

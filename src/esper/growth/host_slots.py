"""The slots of one model: acting on them, advancing epochs, disabling seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from esper.config.checks import NonNegativeInt, Seed, check
from esper.config.growth import GrowthConfig
from esper.errors import SlotError
from esper.growth.blueprints import SeedForm, blueprint_names, fitting_blueprints
from esper.growth.modules import forget_graphs, named_modules, named_tensors, seeded
from esper.growth.pair_slot import ADDITIVE_STYLE, PairNetwork, PairSlot
from esper.growth.seed_slot import AbsorbedSeed, BlockWrapper, SeedSlot
from esper.growth.sharding import is_shard_root, reshard, shard
from esper.growth.sites import SlotSite
from esper.growth.slot_states import Outcome, SlotLife, SlotStates
from esper.lifecycle.factored_actions import AlphaCurve, BlendStyle, GrowthAction, Op
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage

ATTRIBUTE = "_esper_slots"
"""The model attribute that holds its slots. They are not a module, so they add no parameters."""

WITHIN = "widening adds hidden units to the model's own layers"
BESIDE = "seeds grow beside the block"
BEHIND = "copies of the block grow behind it"
"""Where seeds of a slot grow, in words."""

DDP_IGNORES = "_ddp_params_and_buffers_to_ignore"
"""The model attribute that names what DistributedDataParallel leaves alone when it wraps it."""


@dataclass(frozen=True)
class SlotSnapshot:
    """The life of a slot and the modules that it holds."""

    life: SlotLife
    seed: nn.Module | None
    gate: nn.Module | None
    form: SeedForm
    fossils: tuple[AbsorbedSeed, ...]

    @classmethod
    def of(cls, slot: SeedSlot) -> SlotSnapshot:
        """Return the current state of a slot."""
        return cls(replace(slot.life), slot.seed, slot.gate, slot.form, tuple(slot.absorbed))


class HostSlots(Mapping[str, SeedSlot]):
    """All slots of a model, by name, in order.

    Each slot remembers its block's parent module and attribute name, so that nested slots find
    their blocks whichever of them are in use.
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
        check("seed", seed, Seed)
        self.model = model
        self.seed = seed
        self.n_germinated = 0
        self.lives = SlotStates(slot_config_for(sites, seed_limit), growth_config)
        self.listeners: list[Callable[[], None]] = []
        """Called after parameters were added or removed."""
        self.action_listeners: list[Callable[[], None]] = []
        """Called after an action was carried out."""
        self._hidden: set[str] = set()
        """Names of grown tensors that DistributedDataParallel would leave alone."""
        self._slots: dict[str, SeedSlot] = {}
        self._places: dict[str, tuple[nn.Module, str]] = {}
        for site in sites:
            block_name = site.modules[0]
            parent_name, _, attribute = block_name.rpartition(".")
            self._places[site.name] = (model.get_submodule(parent_name), attribute)
            kind = SeedSlot if site.pair is None else PairSlot
            block = model.get_submodule(block_name)
            self._slots[site.name] = kind(site, block, self.lives, model)
        self.pairs = PairNetwork(
            model, [slot for slot in self._slots.values() if isinstance(slot, PairSlot)]
        )
        """The slots on pairs of layers."""

    def __getitem__(self, slot: str) -> SeedSlot:
        self.slot_config.slot_index(slot)
        return self._slots[slot]

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def __repr__(self) -> str:
        stages = ", ".join(f"{name}: {self.lives[name].stage.name.lower()}" for name in self)
        return f"HostSlots({stages})"

    def __str__(self) -> str:
        return "\n".join(
            f"{name}: {self.lives[name].stage.name.lower()}; {place_of(slot.site)}"
            for name, slot in self.items()
        )

    def __getstate__(self) -> dict[str, Any]:
        # A copy has no listeners.
        return {**self.__dict__, "listeners": [], "action_listeners": []}

    @property
    def slot_config(self) -> SlotConfig:
        """The slot configuration that action masks read."""
        return self.lives.slot_config

    @property
    def sites(self) -> list[SlotSite]:
        """The site of each slot."""
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
        """Build a seed in a slot; the model's output does not change."""
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

    def start_wider(self, slot: str, blueprint: str) -> None:
        """Add hidden units to a model that has not been trained, as if it had been built with them.

        The seed is committed at once, and may be followed by another. On a pair of layers, all
        weights are then distributed like those of layers built this wide, so the model's output
        changes.
        """
        if self[slot].stage == Stage.FOSSILIZED:
            self.lives.absorb(slot, self)
        self.germinate(slot, blueprint)
        self.commit_start(slot)

    def commit_start(self, slot: str) -> None:
        """Commit a newly germinated seed of a model that has not been trained."""
        self.lives.commit(slot, self)
        if isinstance(place := self[slot], PairSlot):
            with seeded(draw_seed_number(self.seed, self.n_germinated - 1)):
                place.draw_weights(is_start=True)

    def advance(self, slot: str) -> Outcome:
        """Advance a seed to its next stage: training, blending or holding."""
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
        """Change a seed's alpha target and, if given, its blend style."""
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
        """Fade a seed out over ``speed_epochs`` epochs and remove it."""
        return self.apply(
            GrowthAction(op=Op.PRUNE, slot=slot, alpha_speed_epochs=speed_epochs, alpha_curve=curve)
        )

    def fossilize(self, slot: str) -> Outcome:
        """Commit a held seed, making it a permanent part of the model."""
        return self.apply(GrowthAction(op=Op.FOSSILIZE, slot=slot))

    def commit(self, slot: str) -> None:
        """Make a newly germinated seed part of the model at once, at its alpha target.

        The model's output does not change if the seed is still zero, as a new one is.

        Raises:
            SlotError: If the seed is not newly germinated, or would change the model's output.
        """
        place = self[slot]
        problem = None if place.seed is None else place.find_start_problem()
        if problem is not None:
            raise SlotError(f"the seed in slot {slot!r} cannot be committed: {problem}.")
        self.lives.commit(slot, self)
        for listener in self.action_listeners:
            listener()

    def absorb(self, slot: str) -> None:
        """Make a committed seed part of its block at once, so that another can grow there.

        Raises:
            SlotError: If the slot holds no committed seed.
        """
        self.lives.absorb(slot, self)
        self.refresh()
        for listener in self.action_listeners:
            listener()

    def apply(self, action: GrowthAction) -> Outcome:
        """Carry out an action; if a gate blocks it, do nothing and return the reason.

        Raises:
            IllegalActionError: If the state of the slots does not allow the action.
        """
        reshard(self.model)
        if action.op in (Op.GERMINATE, Op.SET_ALPHA_TARGET) and self[action.slot].site.pair:
            action = replace(action, style=ADDITIVE_STYLE.get(action.style, action.style))
        outcome = self.lives.apply(action, self)
        self.refresh()
        if outcome.was_done:
            for listener in self.action_listeners:
                listener()
        return outcome

    def tick(self) -> None:
        """Advance all slots by one epoch."""
        reshard(self.model)
        self.lives.tick(self)
        self.refresh()

    def abandon_growing(self) -> list[str]:
        """Prune every uncommitted seed immediately and return the names of their slots."""
        return self.lives.abandon_growing(self)

    def end_growth(self, *, keep: bool) -> None:
        """End growth: commit every seed that is blended in at its alpha, and remove the others.

        Args:
            keep: Whether seeds that are blended in are committed; if not, they are removed too.
        """
        self.lives.end_growth(self, keep=keep)

    @contextmanager
    def without(self, is_left_out: Callable[[str, SlotLife], bool]) -> Generator[None]:
        """Disable the seeds of which a function of the slot's name and life says so."""
        with ExitStack() as stack:
            for name, life in self.lives.items():
                if is_left_out(name, life):
                    stack.enter_context(self[name].switched_off())
            yield

    def add_seed(self, slot: str, action: GrowthAction) -> None:
        """Build the action's blueprint and insert the slot into the model."""
        with seeded(draw_seed_number(self.seed, self.n_germinated)):
            self[slot].plant(action.blueprint, action.style)
        self.n_germinated += 1
        shard(self[slot].called_parts(), self.model)
        self.place(slot, is_used=True)
        self._notify(slot)

    def remove_seed(self, slot: str) -> None:
        """Remove the seed, and take the slot out of the model if nothing else is in it."""
        self[slot].clear()
        self.place(slot, is_used=self[slot].is_in_use)
        self._notify(slot)

    def restyle_seed(self, slot: str, style: BlendStyle) -> None:
        """Create the gate if the style needs one; remove it otherwise."""
        self[slot].restyle(style)
        shard(self[slot].called_parts(), self.model)
        self._notify(slot)

    def commit_seed(self, slot: str) -> None:
        """Link the seed to neighbouring ones and notify listeners that it is part of the host."""
        reshard(self.model)
        is_linked = self[slot].connect()
        if is_linked:
            shard(self[slot].called_parts(), self.model)
        self._notify(slot if is_linked else None)

    def absorb_seed(self, slot: str) -> int:
        """Make a committed seed part of its block; return the hidden units that it added."""
        n_units = self[slot].absorb()
        self._notify(slot)
        return n_units

    def is_full(self, slot: str) -> bool:
        """Return whether a slot's block, with its seed, may not be widened any further."""
        return self[slot].is_full()

    def find_start_problem(self, slot: str) -> str | None:
        """Return why a germinated seed may not start training, or None if it may."""
        return self[slot].find_start_problem()

    def explain_misfit(self, slot: str, blueprint: str) -> str:
        """Return why a blueprint does not fit a slot."""
        return self[slot].explain_misfit(blueprint)

    def place(self, slot: str, *, is_used: bool) -> None:
        """Put a slot into the model instead of its block or its pair's layers, or these back."""
        place = self[slot]
        if isinstance(place, PairSlot):
            self.pairs.place(place, is_used=is_used)
            return
        parent, attribute = self._places[slot]
        # The model's mode may have changed while the slot was out of it.
        place.training = place.block.training
        setattr(parent, attribute, place if is_used else place.block)

    def rebuild_seeds(self) -> None:
        """Build the seeds that the slots' lives call for; their weights are loaded later."""
        for name, life in self.lives.items():
            if life.has_seed or life.fossils:
                with seeded(0):
                    self[name].rebuild()
                shard(self[name].called_parts(), self.model)
                self.place(name, is_used=True)
        self._notify()

    def restore_slot(self, slot: str, state: SlotSnapshot) -> None:
        """Restore an earlier state of a slot, with the modules that it held."""
        self.lives.set_life(slot, replace(state.life))
        place = self[slot]
        has_changed = place.seed is not state.seed or place.gate is not state.gate
        has_changed |= tuple(place.absorbed) != state.fossils
        place.seed, place.gate, place.form = state.seed, state.gate, state.form
        place.set_fossils(state.fossils)
        self.place(slot, is_used=place.is_in_use)
        self._notify(slot if has_changed else None)

    def remove_all(self) -> None:
        """Remove every seed, committed ones included, so that the model is as before growth."""
        for name in reversed(list(self)):
            self.restore_slot(name, SlotSnapshot(SlotLife(), None, None, SeedForm.SERIAL, ()))
        self.n_germinated = 0

    def growing_parameters(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters of each uncommitted seed, by slot."""
        return {
            name: slot.seed_parameters()
            for name, slot in self._slots.items()
            if slot.seed is not None and slot.stage != Stage.FOSSILIZED
        }

    def grown_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of all seeds and fossils."""
        return [p for slot in self._slots.values() for p in slot.grown_parameters()]

    def grown_buffers(self) -> list[Tensor]:
        """Return the buffers of all seeds and fossils."""
        parts = [
            part
            for slot in self._slots.values()
            for part in (slot.seed, slot.gate, slot.fossils)
            if part is not None
        ]
        return [buffer for part in parts for buffer in part.buffers()]

    def require_free_blocks(self) -> None:
        """Reject slots that are sharded together with their block, which has to run without them.

        Raises:
            SlotError: Naming the slot.
        """
        for name, module in named_modules(self.model).items():
            if isinstance(module, BlockWrapper) and is_shard_root(module):
                raise SlotError(
                    f"fully_shard was called on {name!r}, which is a slot; call it before seeds "
                    f"germinate, or on the block in it, {name + '.block'!r}."
                )

    def digest(self) -> int:
        """Return a number that tells structures apart, exact as a float."""
        sizes = [list(parameter.shape) for parameter in self.model.parameters()]
        text = json.dumps([list(self), self.lives.to_json(), sizes])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")

    def refresh(self) -> None:
        """Tell what runs the model, such as a compiled graph, that lives may have changed."""
        self.pairs.refresh()
        for slot in self._slots.values():
            slot.refresh()

    def _notify(self, changed: str | None = None) -> None:
        """Tell everybody that parameters may have changed, and which slot's modules did."""
        self.refresh()
        for place in () if changed is None else self[changed].site.modules:
            forget_graphs(self.model, place)
        self.hide_from_ddp((*self.grown_parameters(), *self.grown_buffers()))
        for listener in self.listeners:
            listener()

    def hide_from_ddp(self, tensors: Iterable[Tensor]) -> None:
        """Let DistributedDataParallel leave only these alone if it wraps the model from now on.

        It could not follow seeds that are pruned, and fails on those that do not train yet, so the
        governor averages the gradients and copies the buffers of everything that was grown.
        """
        ids = {id(tensor) for tensor in tensors}
        names = {name for name, t in named_tensors(self.model).items() if id(t) in ids}
        others = set(getattr(self.model, DDP_IGNORES, ())) - self._hidden
        self._hidden = names
        if names or others:
            setattr(self.model, DDP_IGNORES, sorted(names | others))
        else:
            self.model.__dict__.pop(DDP_IGNORES, None)


def place_of(site: SlotSite) -> str:
    """Return where the seeds of a slot grow, in words."""
    if site.can_widen:
        return WITHIN
    return BEHIND if site.is_for_depth else BESIDE


def slot_config_for(sites: list[SlotSite], seed_limit: int | None) -> SlotConfig:
    """Return the slot configuration for these sites, with the blueprints that fit each."""
    check("seed_limit", seed_limit, NonNegativeInt | None)
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
    """Return the random seed for the weights of a host's next seed."""
    return int(np.random.SeedSequence([seed, n_germinated]).generate_state(1)[0])


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside the wrappers of ``torch.compile`` and DistributedDataParallel."""
    while True:
        if isinstance(model, (DataParallel, DistributedDataParallel)):
            model = cast(nn.Module, model.module)
        elif (inner := model.__dict__.get("_modules", {}).get("_orig_mod")) is not None:
            model = cast(nn.Module, inner)
        else:
            return model


def own_slots(model: nn.Module) -> HostSlots | None:
    """Return the slots of a model that is not wrapped; None if it has none."""
    found = model.__dict__.get(ATTRIBUTE)
    return found if isinstance(found, HostSlots) else None


def remove_slots(model: nn.Module) -> None:
    """Remove the slots of a model and all that has grown in them; do nothing if it has none."""
    found = own_slots(model)
    if found is not None:
        found.remove_all()
        del model.__dict__[ATTRIBUTE]


def slots(model: nn.Module) -> HostSlots:
    """Return the slots of a model.

    Raises:
        SlotError: If the model has none.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(32, 4)
        >>> model = esper.add_slots(model, at=["0>2"], sample_input=x)
        >>> list(esper.slots(model))
        ['0>2']
    """
    found = own_slots(unwrapped(model))
    if found is None:
        raise SlotError(
            f"{type(model).__name__} has no slots; call esper.add_slots(model, at=..., "
            "sample_input=...) first."
        )
    return found

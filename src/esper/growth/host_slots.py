"""The slots of one model: acting on them, advancing epochs, disabling seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from esper.config.checks import NonNegativeInt, Seed, check
from esper.config.growth import GrowthConfig
from esper.errors import SlotError
from esper.growth.block_slot import BlockSlot
from esper.growth.blueprints import SeedForm, blueprint_names, fitting_blueprints
from esper.growth.modules import forget_graphs, named_modules, named_tensors, seeded
from esper.growth.seed_slot import SeedParts, SeedSlot
from esper.growth.sharding import find_mesh, is_shard_root, reshard, shard
from esper.growth.sites import SlotSite, SlotSize
from esper.growth.slot_states import Outcome, SlotLife, SlotStates
from esper.growth.surgery.configuration import follow_sizes, has_configuration
from esper.growth.surgery.edits import Edits
from esper.growth.surgery.places import renamed
from esper.growth.surgery.runs import find_insertions
from esper.growth.surgery_slots import SurgerySlot, UnitSlot
from esper.lifecycle.factored_actions import AlphaCurve, BlendStyle, GrowthAction, Op
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage

ATTRIBUTE = "_esper_slots"
"""The model attribute that holds its slots. They are not a module, so they add no parameters."""

ADDITIVE_STYLE: dict[BlendStyle, BlendStyle] = {
    BlendStyle.MULTIPLY_LINEAR: BlendStyle.ADD_LINEAR,
    BlendStyle.LEARNED_GATE: BlendStyle.ADD_LINEAR,
}
"""The style that units and blocks have instead of one that does not exist for them."""

Slot = SeedSlot | UnitSlot | BlockSlot
"""A place where a model grows: beside a block, or in its own layers."""

DDP_IGNORES = "_ddp_params_and_buffers_to_ignore"
"""The model attribute that names what DistributedDataParallel leaves alone when it wraps it."""


class HostSlots(Mapping[str, Slot]):
    """All slots of a model, by name, in order.

    A slot beside a block remembers the block's parent module and attribute name, so that nested
    slots find their blocks whichever of them are in use.
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
        self.edit_listeners: list[Callable[[Edits], None]] = []
        """Called with each change of the model's own layers, before ``listeners``."""
        self.journal: list[Edits] | None = None
        """The changes of the model's own layers that can be undone; None to keep none."""
        self._is_rebuilding = False
        """Whether lives say what is not there yet."""
        self.version = 0
        """Counts changes of structure."""
        self._slots: dict[str, Slot] = {}
        self._places: dict[str, tuple[nn.Module, str]] = {}
        for site in sites:
            self._slots[site.name] = self._make_slot(site)

    def _make_slot(self, site: SlotSite) -> Slot:
        if site.what == "units":
            return UnitSlot(site, self.lives, self.model)
        if site.what == "blocks":
            return BlockSlot(site, self.lives, self.model)
        parent_name, _, attribute = site.name.rpartition(".")
        self._places[site.name] = (self.model.get_submodule(parent_name), attribute)
        return SeedSlot(site, self.model.get_submodule(site.name), self.lives, self.model)

    def __getitem__(self, slot: str) -> Slot:
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
            f"{name}: {slot.stage.name.lower()}; {describe_site(slot.site, slot_size(slot).hidden)}"
            for name, slot in self.items()
        )

    def __getstate__(self) -> dict[str, Any]:
        # A copy has no listeners.
        lists: dict[str, Any] = {
            name: [] for name in ("listeners", "action_listeners", "edit_listeners")
        }
        return {**self.__dict__, **lists, "journal": None}

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
        problem = self[slot].find_start_problem() if self[slot].life.has_seed else None
        if problem is not None:
            raise SlotError(f"the seed in slot {slot!r} cannot be committed: {problem}.")
        self.lives.commit(slot, self)
        self._on_action()

    def absorb(self, slot: str) -> None:
        """Make a committed seed part of its block at once, so that another can grow there.

        Raises:
            SlotError: If the slot holds no committed seed.
        """
        self.lives.absorb(slot, self)
        self.refresh()
        self._on_action()

    def apply(self, action: GrowthAction) -> Outcome:
        """Carry out an action; if a gate blocks it, do nothing and return the reason.

        Raises:
            IllegalActionError: If the state of the slots does not allow the action.
        """
        reshard(self.model)
        is_styled = action.op in (Op.GERMINATE, Op.SET_ALPHA_TARGET)
        is_missing = is_styled and action.style in ADDITIVE_STYLE
        if is_missing and isinstance(self[action.slot], SurgerySlot):
            action = replace(action, style=ADDITIVE_STYLE[action.style])
        outcome = self.lives.apply(action, self)
        if action.op in (Op.WAIT, Op.FINISH):  # nothing has changed
            return outcome
        self.refresh()
        if outcome.was_done:
            self._on_action()
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
        """Build the action's blueprint, beside a block or in the model's own layers."""
        place = self[slot]
        with seeded(draw_seed_number(self.seed, self.n_germinated)):
            if isinstance(place, SurgerySlot):
                n_new = place.count_wanted(action.blueprint)
                self._grow(place, n_new)
                place.life.live_units = n_new
            else:
                place.plant(action.blueprint, action.style)
        self.n_germinated += 1
        if isinstance(place, SeedSlot):
            shard(place.called_parts(), self.model)
            self.place(slot, is_used=True)
            self._notify((slot,))

    def remove_seed(self, slot: str) -> None:
        """Take the seed out of the model, and the slot if nothing else is in it."""
        place = self[slot]
        if isinstance(place, SurgerySlot):
            self._operate(place, -place.life.live_units, place.shrink)
            place.life.live_units = 0
            return
        place.clear()
        self.place(slot, is_used=place.is_in_use)
        self._notify((slot,))

    def restyle_seed(self, slot: str, style: BlendStyle) -> None:
        """Create the gate if the style needs one; remove it otherwise."""
        place = self[slot]
        if isinstance(place, SeedSlot):
            place.restyle(style)
            shard(place.called_parts(), self.model)
            self._notify((slot,))

    def commit_seed(self, slot: str) -> None:
        """Make a seed a permanent part of the model."""
        reshard(self.model)
        place = self[slot]
        if isinstance(place, SurgerySlot):
            is_plain = place.alpha == 1.0 and not place.is_scaled
            place.remove_scales()
            place.settle()
            if is_plain:  # nothing of the model changes
                return
        self._notify()

    def absorb_seed(self, slot: str) -> int:
        """Make a committed seed part of its block; return the units or blocks that it added."""
        place = self[slot]
        if isinstance(place, SurgerySlot):
            return place.life.live_units
        n_units = place.absorb()
        self._notify((slot,))
        return n_units

    def _grow(self, place: UnitSlot | BlockSlot, n_new: int) -> None:
        self._operate(place, n_new, partial(place.grow, n_new=n_new))

    def _operate(
        self, place: UnitSlot | BlockSlot, n_new: int, change: Callable[[Edits], None]
    ) -> None:
        """Change the model's own layers, with all that follows them; or nothing at all."""
        if find_mesh(self.model) is not None:
            raise SlotError(
                f"slot {place.name!r} cannot grow: the model is sharded, and new units or blocks "
                "cannot join its shards; grow it before fully_shard, or train it with "
                "DistributedDataParallel."
            )
        place.require_unchanged()
        edits = Edits(self.model)
        self._remove_scales()  # of the sizes that layers have now; copies of blocks get none
        try:
            sizes = place.find_sizes(n_new) if has_configuration(self.model) else []
            change(edits)
            self._follow(edits, place)
            if sizes and not follow_sizes(edits, sizes):
                raise SlotError(
                    f"slot {place.name!r} cannot grow so: no configuration of "
                    f"{type(self.model).__name__} gives these sizes."
                )
            for listener in self.edit_listeners:
                listener(edits)
        except BaseException:
            edits.undo()
            self.refresh()
            raise
        if self.journal is not None:
            self.journal.append(edits)
        self._notify((place.name,))

    def _remove_scales(self) -> None:
        for place in self._slots.values():
            if isinstance(place, SurgerySlot):
                place.remove_scales()

    def _follow(self, edits: Edits, place: UnitSlot | BlockSlot) -> None:
        """Let all slots know where their layers are now."""
        for counts in edits.counts:
            insertions = find_insertions(counts)
            for other in self._slots.values():
                if isinstance(other, UnitSlot):
                    other.move(edits, counts, insertions)
        for container, sources in edits.moves:
            for other in self._slots.values():
                if isinstance(other, SurgerySlot) and other is not place:
                    other.follow_blocks(edits, container, sources)
            parent = self.model.get_submodule(container)
            for name, (owner, attribute) in list(self._places.items()):
                if owner is parent:
                    moved = renamed(attribute, "", sources)
                    self._places[name] = owner, moved
                    edits.on_undo(partial(self._places.__setitem__, name, (owner, attribute)))

    def undo_to(self, n_kept: int) -> None:
        """Undo the changes of the journal but the first ones, exactly."""
        assert self.journal is not None, "the changes are kept"
        if len(self.journal) > n_kept:
            self._remove_scales()
            while len(self.journal) > n_kept:
                self.journal.pop().undo()
            self._notify(tuple(self))

    def place(self, slot: str, *, is_used: bool) -> None:
        """Put a slot into the model instead of its block, or the block back."""
        place = self[slot]
        assert isinstance(place, SeedSlot), "the slot is beside a block"
        parent, attribute = self._places[slot]
        # The model's mode may have changed while the slot was out of it.
        place.training = place.block.training
        setattr(parent, attribute, place if is_used else place.block)

    def rebuild_seeds(self) -> None:
        """Build what the slots' lives call for; weights are loaded later.

        Blocks are copied first, so that units are added to all of them.
        """
        order = {BlockSlot: 0, UnitSlot: 1, SeedSlot: 2}
        self._is_rebuilding = True
        for name, place in sorted(self.items(), key=lambda pair: order[type(pair[1])]):
            life = self.lives[name]
            with seeded(0):
                if isinstance(place, SurgerySlot):
                    for n_new in [fossil.units for fossil in life.fossils]:
                        self._grow(place, n_new)
                    if life.has_seed and life.live_units:
                        self._grow(place, life.live_units)
                    continue
                if life.has_seed or life.fossils:
                    place.rebuild()
                    shard(place.called_parts(), self.model)
                    self.place(name, is_used=True)
        self._is_rebuilding = False
        self._notify()

    def snapshot(self) -> dict[str, tuple[SlotLife, SeedParts | None]]:
        """Return the life of each slot, and the modules that one beside a block holds."""
        return {
            name: (slot.life.copied(), slot.seed_parts if isinstance(slot, SeedSlot) else None)
            for name, slot in self._slots.items()
        }

    def restore_slot(self, slot: str, life: SlotLife, parts: SeedParts | None) -> None:
        """Restore an earlier state of a slot, with the modules that it held.

        Changes of the model's own layers are undone by :meth:`undo_to`.
        """
        self.lives.set_life(slot, life.copied())
        place, has_changed = self[slot], False
        if isinstance(place, SeedSlot) and parts is not None:
            has_changed = place.seed_parts != parts
            place.seed_parts = parts
            self.place(slot, is_used=place.is_in_use)
        self._notify((slot,) if has_changed else ())

    def remove_all(self) -> None:
        """Remove everything that has grown beside blocks, and the hooks that blend units in."""
        for name, place in reversed(list(self.items())):
            if isinstance(place, SurgerySlot):
                place.remove_scales()
            else:
                self.restore_slot(name, SlotLife(), (None, None, SeedForm.SERIAL, ()))
        self.n_germinated = 0

    def cut_back(self) -> None:
        """Take out everything that has grown, committed or not."""
        self.remove_all()
        for name, place in self.items():
            life = self.lives[name]
            n_grown = life.units + (life.live_units if life.has_seed else 0)
            if isinstance(place, SurgerySlot) and n_grown:
                self.lives.set_life(name, replace(life, live_units=n_grown, fossils=()))
                if isinstance(place, BlockSlot):
                    place.live = place.copies
                self.remove_seed(name)
            self.lives.set_life(name, SlotLife())

    def growing_parameters(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters that are the uncommitted seed's alone, by slot."""
        return {
            name: own
            for name, slot in self._slots.items()
            if slot.stage != Stage.FOSSILIZED and (own := slot.seed_parameters())
        }

    def grown_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of everything that grew beside blocks."""
        return [p for slot in self._beside() for p in slot.grown_parameters()]

    def grown_buffers(self) -> list[Tensor]:
        """Return the buffers of everything that grew beside blocks."""
        parts = [
            part
            for slot in self._beside()
            for part in (slot.seed, slot.gate, slot.fossils)
            if part is not None
        ]
        return [buffer for part in parts for buffer in part.buffers()]

    def _beside(self) -> list[SeedSlot]:
        return [slot for slot in self._slots.values() if isinstance(slot, SeedSlot)]

    def require_free_blocks(self) -> None:
        """Reject slots that are sharded together with their block, which has to run without them.

        Raises:
            SlotError: Naming the slot.
        """
        for name, module in named_modules(self.model).items():
            if isinstance(module, SeedSlot) and is_shard_root(module):
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
        if self._is_rebuilding:
            return
        for slot in self._slots.values():
            slot.refresh()

    def _on_action(self) -> None:
        for listener in self.action_listeners:
            listener()

    def _notify(self, changed: Iterable[str] = ()) -> None:
        """Tell everybody that parameters may have changed, and which slots' modules did."""
        self.version += 1
        self.refresh()
        for place in {place for name in changed for place in self[name].site.modules}:
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
        if not (ids or self._hidden):
            return
        names = {name for name, t in named_tensors(self.model).items() if id(t) in ids}
        others = set(getattr(self.model, DDP_IGNORES, ())) - self._hidden
        self._hidden = names
        if names or others:
            setattr(self.model, DDP_IGNORES, sorted(names | others))
        else:
            self.model.__dict__.pop(DDP_IGNORES, None)


def describe_site(site: SlotSite, size: int | None = None) -> str:
    """Return what grows in a slot, in words; its size may be another one now."""
    size = site.size if size is None else size
    if site.group is not None:
        places = len(site.group.places)
        what = "units" if site.group.heads is None else "heads"
        return f"{size:,} {what}" + (f" in each of {places} places" if places > 1 else "")
    return "modules beside the block" if site.blocks is None else f"{size:,} blocks"


def slot_size(slot: Slot) -> SlotSize:
    """Return the present size of a slot."""
    if isinstance(slot, SeedSlot):
        return SlotSize(kind=slot.site.kind, hidden=0, unit_parameters=0)
    return SlotSize(kind=slot.site.kind, hidden=slot.size, unit_parameters=slot.count_next())


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
    """Remove the slots of a model and what grows beside blocks; do nothing if it has none.

    Units and blocks that were added stay; they are the model's own.
    """
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

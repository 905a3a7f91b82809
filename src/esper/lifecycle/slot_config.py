"""Which slots a host has, and what may grow in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from esper.config.checks import require_bool, require_int
from esper.errors import SlotError, UnknownSlotError, did_you_mean

BUILTIN_BLUEPRINTS: tuple[str, ...] = (
    "noop",
    "norm",
    "attention",
    "depthwise",
    "bottleneck",
    "conv_small",
    "conv_light",
    "conv_heavy",
    "lora_small",
    "lora_large",
    "mlp_small",
    "mlp_large",
    "self_attention",
    "low_rank",
    "widen_small",
    "widen_medium",
    "widen_large",
)
"""The names of the recipes that come with Esper, in the order of the blueprint head's choices."""


@dataclass(frozen=True)
class SlotConfig:
    """The slots of a host design. Everything but the slots' names has a default."""

    slot_ids: tuple[str, ...]
    """The name of each slot, in the order of the slot head's choices."""

    enabled: frozenset[str] | None = field(default=None, kw_only=True)
    """Slots in which a seed may germinate; None for all."""

    seed_limit: int | None = field(default=None, kw_only=True)
    """How many live seeds a host may have at once; None for no limit."""

    blueprints: tuple[str, ...] = field(default=BUILTIN_BLUEPRINTS, kw_only=True)
    """The name of each blueprint, in the order of the blueprint head's choices."""

    fits: Mapping[str, Collection[str]] = field(
        default_factory=dict[str, Collection[str]], kw_only=True, hash=False
    )
    """The blueprints that fit a slot, by slot; a slot that is not named takes every blueprint."""

    allow_finish: bool = field(default=True, kw_only=True)
    """Whether the controller may end a host's training early."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "slot_ids", _names("slot_ids", self.slot_ids))
        object.__setattr__(self, "blueprints", _names("blueprints", self.blueprints))
        _require_distinct("slot_ids", self.slot_ids)
        _require_distinct("blueprints", self.blueprints)
        if self.enabled is not None:
            object.__setattr__(self, "enabled", frozenset(_names("enabled", self.enabled)))
            for slot in sorted(self.enabled):
                self.slot_index(slot)
        if self.seed_limit is not None:
            require_int("seed_limit", self.seed_limit, least=0)
        require_bool("allow_finish", self.allow_finish)
        fits = {
            slot: frozenset(_names(f"fits[{slot!r}]", names)) for slot, names in self.fits.items()
        }
        object.__setattr__(self, "fits", fits)
        for slot, names in fits.items():
            self.slot_index(slot)
            for name in sorted(names):
                self.blueprint_index(name)

    @property
    def max_slots(self) -> int:
        """How many slots there are."""
        return len(self.slot_ids)

    def slot_index(self, slot: str) -> int:
        """Return the choice of the slot head that means ``slot``."""
        return _index("slot", slot, self.slot_ids)

    def blueprint_index(self, blueprint: str) -> int:
        """Return the choice of the blueprint head that means ``blueprint``."""
        return _index("blueprint", blueprint, self.blueprints)

    def is_enabled(self, slot: str) -> bool:
        """Return whether a seed may germinate in ``slot``, as far as this configuration goes."""
        fitting = self.fits.get(slot, self.blueprints)
        return (self.enabled is None or slot in self.enabled) and len(fitting) > 0

    def does_fit(self, blueprint: str, slot: str) -> bool:
        """Return whether ``blueprint`` may grow in ``slot``."""
        return blueprint in self.fits.get(slot, self.blueprints)


def _names(what: str, given: object) -> tuple[str, ...]:
    """Return names as a tuple; refuse a single string, which is a sequence of letters."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise SlotError(f"{what} is {given!r}; a tuple of names is needed.")
    names = tuple(cast(Iterable[object], given))
    for name in names:
        if not isinstance(name, str):
            raise SlotError(f"{what} names {name!r}; names are strings.")
    return cast(tuple[str, ...], names)


def _require_distinct(what: str, names: tuple[str, ...]) -> None:
    if not names:
        raise SlotError(f"{what} is empty; at least one name is needed.")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SlotError(f"{what} names {', '.join(map(repr, repeated))} twice; names must differ.")


def _index(what: str, name: str, names: tuple[str, ...]) -> int:
    if name not in names:
        hint = did_you_mean(name, names)
        raise UnknownSlotError(f"there is no {what} {name!r}; there are {', '.join(names)}.{hint}")
    return names.index(name)

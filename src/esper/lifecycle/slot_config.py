"""The slots of a host design and the blueprints that fit them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from esper.config.catalogue import BLUEPRINTS
from esper.config.checks import NonNegativeInt, check
from esper.errors import SlotError, UnknownSlotError, did_you_mean

BUILTIN_BLUEPRINTS = tuple(BLUEPRINTS)
"""Names of the built-in blueprints, in the order of the blueprint head's choices."""


@dataclass(frozen=True)
class SlotConfig:
    """The slots of a host design. Only the slot names are required."""

    slot_ids: tuple[str, ...]
    """Slot names, in the order of the slot head's choices."""

    enabled: frozenset[str] | None = field(default=None, kw_only=True)
    """Slots in which a seed may germinate; None for all."""

    seed_limit: int | None = field(default=None, kw_only=True)
    """Maximum number of live seeds in a host; None for no limit."""

    blueprints: tuple[str, ...] = field(default=BUILTIN_BLUEPRINTS, kw_only=True)
    """Blueprint names, in the order of the blueprint head's choices."""

    fits: Mapping[str, Collection[str]] = field(
        default_factory=dict[str, Collection[str]], kw_only=True, hash=False
    )
    """Blueprints that fit each slot; a slot without an entry takes every blueprint."""

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
        check("seed_limit", self.seed_limit, NonNegativeInt | None)
        check("allow_finish", self.allow_finish, bool)
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
        """Number of slots."""
        return len(self.slot_ids)

    def slot_index(self, slot: str) -> int:
        """Return the slot head's choice for ``slot``."""
        return _index("slot", slot, self.slot_ids)

    def blueprint_index(self, blueprint: str) -> int:
        """Return the blueprint head's choice for ``blueprint``."""
        return _index("blueprint", blueprint, self.blueprints)

    def is_enabled(self, slot: str) -> bool:
        """Return whether this configuration lets a seed germinate in ``slot``."""
        fitting = self.fits.get(slot, self.blueprints)
        return (self.enabled is None or slot in self.enabled) and len(fitting) > 0

    def does_fit(self, blueprint: str, slot: str) -> bool:
        """Return whether ``blueprint`` may grow in ``slot``."""
        return blueprint in self.fits.get(slot, self.blueprints)


def _names(what: str, given: object) -> tuple[str, ...]:
    """Return names as a tuple; reject a single string, which would iterate over its letters."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise SlotError(f"{what} is {given!r}; it must be a tuple of names.")
    try:
        names = tuple(cast(Iterable[object], given))
    except TypeError as error:  # a tensor without axes
        raise SlotError(f"{what} is {given!r}; it must be a tuple of names.") from error
    for name in names:
        if not isinstance(name, str):
            raise SlotError(f"{what} contains {name!r}; names must be strings.")
    return cast(tuple[str, ...], names)


def _require_distinct(what: str, names: tuple[str, ...]) -> None:
    if not names:
        raise SlotError(f"{what} is empty; it needs at least one name.")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise SlotError(
            f"{what} contains {', '.join(map(repr, repeated))} twice; names must be unique."
        )


def _index(what: str, name: str, names: tuple[str, ...]) -> int:
    if name not in names:
        hint = did_you_mean(name, names)
        raise UnknownSlotError(
            f"there is no {what} {name!r}; choose from {', '.join(names)}.{hint}"
        )
    return names.index(name)

"""Blueprints: recipes for seeds, registered by name.

A blueprint's builder is given the :class:`~esper.growth.sites.SlotSite` and returns a module of one
tensor: a *serial* seed reads the block's output, a *parallel* one the block's input. The module
returns the change it proposes to the block's output, in that output's shape, and must return zeros
when it is new. Other packages register theirs under the entry point group ``esper.blueprints``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import EntryPoint, entry_points

from torch import nn

from esper.errors import SlotError, did_you_mean
from esper.growth.sites import SlotSite, TensorKind

ENTRY_POINT_GROUP = "esper.blueprints"


class SeedForm(Enum):
    """What a seed reads."""

    SERIAL = "serial"
    """The block's output."""
    PARALLEL = "parallel"
    """The block's input."""


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """A recipe for a seed."""

    name: str
    kinds: frozenset[TensorKind]
    """The kinds of block output it fits."""
    form: SeedForm
    build: Callable[[SlotSite], nn.Module]
    """Makes the seed for a site; its weights come from torch's default generator."""
    summary: str
    """What the seed is, in a few words."""
    family: str = ""
    """The largest blueprint of the same structure: padded with zeros, its seed computes this one
    too, so that stacked hosts can share a group. Empty if it is this one. A family that does not
    hold at a site is not used there."""

    def why_not(self, site: SlotSite) -> str | None:
        """Return why the blueprint does not fit a site, or None if it does."""
        if site.kind not in self.kinds:
            return f"it does not fit a {site.kind.value}"
        if self.form == SeedForm.PARALLEL and site.why_no_parallel:
            return site.why_no_parallel
        return None


_REGISTRY: dict[str, Blueprint] = {}
_is_discovered = False


def register_blueprint(blueprint: Blueprint) -> Blueprint:
    """Make a blueprint known by its name; a name can be taken once."""
    if blueprint.name in _REGISTRY:
        raise SlotError(f"blueprint {blueprint.name!r} is registered already; choose another name.")
    _REGISTRY[blueprint.name] = blueprint
    return blueprint


def blueprint_names() -> tuple[str, ...]:
    """Return the names of all blueprints: the built-in ones first, then other packages'."""
    _discover()
    return tuple(_REGISTRY)


def find_blueprint(name: str) -> Blueprint:
    """Return the blueprint of this name.

    Raises:
        SlotError: If there is none.
    """
    _discover()
    if name not in _REGISTRY:
        hint = did_you_mean(name, _REGISTRY)
        raise SlotError(f"there is no blueprint {name!r}; there are {', '.join(_REGISTRY)}.{hint}")
    return _REGISTRY[name]


def fitting_blueprints(site: SlotSite, names: Iterable[str]) -> tuple[str, ...]:
    """Return those of the named blueprints that fit a site."""
    return tuple(name for name in names if find_blueprint(name).why_not(site) is None)


def _discover() -> None:
    """Register what other packages offer, once."""
    global _is_discovered
    if _is_discovered:
        return
    _is_discovered = True  # first, because a package may ask for blueprints while it is loaded
    try:
        found = [_load(entry) for entry in entry_points(group=ENTRY_POINT_GROUP)]
    except SlotError:
        _is_discovered = False
        raise
    for blueprint in found:
        register_blueprint(blueprint)


def _load(entry: EntryPoint) -> Blueprint:
    """Return the blueprint that another package offers."""
    what = f"entry point {entry.name!r} of group {ENTRY_POINT_GROUP!r}"
    try:
        loaded = entry.load()
    except Exception as error:
        raise SlotError(
            f"{what} cannot be loaded ({error}); repair or remove {entry.value!r}."
        ) from error
    if not isinstance(loaded, Blueprint):
        raise SlotError(f"{what} is a {type(loaded).__name__}; it must be an esper.Blueprint.")
    return loaded

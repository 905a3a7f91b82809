"""Blueprints: recipes for seeds, registered by name.

Most are modules beside a block. Such a blueprint's builder takes a
:class:`~esper.growth.sites.SlotSite` and returns a module with one tensor argument: a *serial* seed
reads the block's output, a *parallel* seed the block's input. The module returns a change to the
block's output, in the shape of that output, and must return zeros before training. Others add units
or blocks to the model's own layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch import nn

from esper.config.catalogue import BLUEPRINTS
from esper.errors import SlotError, blame_user_code, did_you_mean, type_of
from esper.growth.sites import SiteKind, SlotSite, TensorKind

_THINGS: dict[SiteKind, str] = {
    "units": "hidden units",
    "blocks": "copies of blocks",
    "module": "modules beside a block",
}


class SeedForm(Enum):
    """What a seed reads.

    Examples:
        >>> [form.name for form in esper.SeedForm]
        ['SERIAL', 'PARALLEL']
    """

    SERIAL = "serial"
    """The block's output."""
    PARALLEL = "parallel"
    """The block's input."""

    def input_shape(self, site: SlotSite) -> tuple[int, ...]:
        """Return the shape of the tensor that a seed of this form reads, including the batch."""
        shape = site.output_shape if self is SeedForm.SERIAL else site.input_shape
        assert shape is not None, "parallel seeds need a site with a known input"
        return shape


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """A recipe for a seed.

    Examples:
        >>> blueprint = esper.Blueprint(
        ...     name="linear",
        ...     kinds=frozenset({esper.TensorKind.VECTOR}),
        ...     form=esper.SeedForm.SERIAL,
        ...     build=lambda site: nn.Linear(site.width, site.width),
        ...     summary="a linear map of the block's output",
        ... )
        >>> blueprint.name
        'linear'
    """

    name: str
    kinds: frozenset[TensorKind]
    """Kinds of block output that it fits."""
    form: SeedForm
    build: Callable[[SlotSite], nn.Module]
    """Builds the seed for a site, drawing its weights from torch's default generator."""
    summary: str
    """A short description of the seed."""
    grows: SiteKind = "module"
    """What it adds: a module beside a block, or units or blocks of the model's own, which no
    builder makes."""
    share: float = 0.0
    """Units that it adds, relative to those that there are."""

    def why_not(self, site: SlotSite) -> str | None:
        """Return why the blueprint does not fit a site, or None if it does."""
        if self.grows != site.what:
            return f"it adds {_THINGS[self.grows]}, and {site.name!r} is for {_THINGS[site.what]}"
        if self.grows != "module":
            return None
        if site.kind not in self.kinds:
            return f"it does not fit a {site.kind.value}"
        if self.form == SeedForm.PARALLEL and site.why_no_parallel:
            return site.why_no_parallel
        return None

    def build_seed(self, site: SlotSite) -> nn.Module:
        """Build the seed for a site.

        Raises:
            SlotError: If the builder raises anything or does not return a module.
        """
        try:
            seed: object = self.build(site)
        except Exception as error:
            blame_user_code(
                SlotError,
                error,
                f"blueprint {self.name!r}",
                f"when it was built for slot {site.name!r}; fix its builder.",
            )
        if not isinstance(seed, nn.Module):
            raise SlotError(
                f"blueprint {self.name!r} returned {type_of(seed)} for slot "
                f"{site.name!r}; it must return a torch.nn.Module."
            )
        return seed


def built_in(
    name: str,
    build: Callable[[SlotSite], nn.Module],
    **traits: Any,
) -> Blueprint:
    """Return a blueprint of the catalogue, with what it is built by and its other traits."""
    kinds, form, summary = BLUEPRINTS[name]
    return Blueprint(
        name=name,
        kinds=frozenset(kind for kind in TensorKind if _word(kind) in kinds),
        form=SeedForm(form),
        build=build,
        summary=summary,
        **traits,
    )


def _word(kind: TensorKind) -> str:
    """Return a kind without the shape of its tensors."""
    return kind.value.partition(" [")[0]


_REGISTRY: dict[str, Blueprint] = {}


def register_blueprint(blueprint: Blueprint) -> Blueprint:
    """Register a blueprint under its name, which must be unused.

    Raises:
        SlotError: If the name is already registered.

    Examples:
        >>> blueprint = esper.Blueprint(
        ...     name="linear",
        ...     kinds=frozenset({esper.TensorKind.VECTOR}),
        ...     form=esper.SeedForm.SERIAL,
        ...     build=lambda site: nn.Linear(site.width, site.width),
        ...     summary="a linear map of the block's output",
        ... )
        >>> esper.register_blueprint(blueprint) is blueprint
        True
        >>> "linear" in esper.blueprint_names()
        True
    """
    if blueprint.name in _REGISTRY:
        raise SlotError(f"blueprint {blueprint.name!r} is already registered; choose another name.")
    _REGISTRY[blueprint.name] = blueprint
    return blueprint


def blueprint_names() -> tuple[str, ...]:
    """Return the names of all blueprints: built-in ones first.

    Examples:
        >>> "widen_small" in esper.blueprint_names()
        True
    """
    return tuple(_REGISTRY)


def find_blueprint(name: str) -> Blueprint:
    """Return the blueprint with this name.

    Raises:
        SlotError: If there is none.
    """
    if name not in _REGISTRY:
        hint = did_you_mean(name, _REGISTRY)
        raise SlotError(
            f"there is no blueprint {name!r}; choose from {', '.join(_REGISTRY)}.{hint}"
        )
    return _REGISTRY[name]


def fitting_blueprints(site: SlotSite, names: Iterable[str]) -> tuple[str, ...]:
    """Return the named blueprints that fit a site."""
    return tuple(name for name in names if find_blueprint(name).why_not(site) is None)

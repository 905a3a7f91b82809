"""Which blueprint a controller without an opinion of its own grows in a slot."""

from __future__ import annotations

from collections.abc import Sequence

from esper.config.controllers import PREFERRED_BLUEPRINTS
from esper.errors import ConfigError, did_you_mean
from esper.lifecycle.slot_config import BUILTIN_BLUEPRINTS, SlotConfig


def rank_blueprints(
    slot_config: SlotConfig, slot: str, preferred: Sequence[str] = PREFERRED_BLUEPRINTS
) -> list[str]:
    """Return the blueprints that fit a slot: the preferred ones first, then as they are numbered.

    Raises:
        ConfigError: If a preferred blueprint is neither the host's nor one that Esper has.
    """
    known = {*slot_config.blueprints, *BUILTIN_BLUEPRINTS}
    for name in preferred:
        if name not in known:
            hint = did_you_mean(name, known)
            allowed = ", ".join(slot_config.blueprints)
            raise ConfigError(f"there is no blueprint {name!r}; the host has {allowed}.{hint}")
    ranked = dict.fromkeys([*preferred, *slot_config.blueprints])
    return [
        name
        for name in ranked
        if name in slot_config.blueprints and slot_config.does_fit(name, slot)
    ]

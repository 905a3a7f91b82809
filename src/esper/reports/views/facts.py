"""What a run is: its settings, and the names that indices in its records stand for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from esper.config.run import RunConfig
from esper.config.toml import read_toml
from esper.reports.views.plain import lists_in, names_in
from esper.telemetry import RunTelemetry
from esper.telemetry.records import RunRecord


@dataclass(frozen=True, kw_only=True)
class Names:
    """What indices of a run's records stand for; what the run did not record is empty."""

    slots: list[str]
    """By the choices of the slot head."""
    blueprints: list[str]
    """By the choices of the blueprint head."""
    heads: list[str]
    """The heads of an action, in their order."""
    ops: list[str]
    """By the choices of the op head."""
    choices: dict[str, list[str]]
    """The choices of each head whose names are known."""
    reads: dict[str, list[str]]
    """The heads that each op reads."""


def run_of(telemetry: RunTelemetry) -> RunRecord | None:
    """Return what the run is, or None if it has not said so yet."""
    return telemetry.last(RunRecord)


def names_of(run: RunRecord | None) -> Names:
    """Return the names that a run's record gives."""
    if run is None:
        return Names(slots=[], blueprints=[], heads=[], ops=[], choices={}, reads={})
    slots, blueprints, ops = map(names_in, (run.slots, run.blueprints, run.ops))
    return Names(
        slots=slots,
        blueprints=blueprints,
        heads=names_in(run.heads),
        ops=ops,
        choices=(
            {"slot": slots, "blueprint": blueprints, "op": ops}
            if run.choices is None
            else lists_in(run.choices)
        ),
        reads=lists_in(run.reads),
    )


def settings_of(run: RunRecord) -> RunConfig:
    """Return the settings that decided a run.

    Raises:
        ConfigError: If this version of Esper does not know one of them.
    """
    return _read_settings(run.config)


@lru_cache(maxsize=64)
def _read_settings(text: str) -> RunConfig:
    return read_toml(text, source="the run's record")

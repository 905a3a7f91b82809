"""What could be done with every host alike: the settings among which an evaluation chooses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from esper.config.controllers import HeuristicConfig
from esper.growth.populations import FirstSeed
from esper.lifecycle.factored_actions import ALPHA_TARGETS, TEMPO_EPOCHS, Op
from esper.lifecycle.growth_action import GrowthAction
from esper.tamiyo import Controller, FixedSchedule, Heuristic, Planting, WaitController
from esper.tamiyo.policy.observations import ObservationLayout


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to treat hosts: what they start with, and whose rules they follow then."""

    planted: tuple[Planting, ...] = ()
    """Seeds that hosts start with, committed."""
    grown: tuple[Planting, ...] = ()
    """Seeds that a fixed schedule grows."""
    heuristic: HeuristicConfig | None = None
    """Rules that the heuristic follows; None for no heuristic."""

    def first_seeds(self) -> tuple[FirstSeed, ...]:
        """Return what hosts start with."""
        return tuple(
            FirstSeed(action=germination(planting), number=number)
            for number, planting in enumerate(self.planted)
        )

    def make(self, layout: ObservationLayout) -> Controller:
        """Return who steers the hosts."""
        if self.heuristic is not None:
            return Heuristic(layout, self.heuristic)
        return FixedSchedule(layout, self.grown) if self.grown else WaitController()

    def to_json(self) -> dict[str, Any]:
        """Return everything that decides what the candidate does, as plain values."""
        values = asdict(self)
        for plantings in (values["planted"], values["grown"]):
            for planting in plantings:
                planting["style"] = planting["style"].value
        return values

    def words(self, stop: int) -> str:
        """Return what it is, and after how many epochs hosts stop at the latest."""
        end = f"stop after {stop}"
        if self.heuristic is not None:
            return f"{_changes(self.heuristic)}; {end} at the latest"
        if self.planted:
            return f"{_places(self.planted)} from the start, {end}"
        if self.grown:
            return f"{_schedule(self.grown)}, {end}"
        return f"nothing grown, {end}"


def germination(planting: Planting) -> GrowthAction:
    """Return the action by which a seed germinates."""
    return GrowthAction(
        op=Op.GERMINATE,
        slot=planting.slot,
        blueprint=planting.blueprint,
        style=planting.style,
        tempo_epochs=planting.tempo_epochs,
        alpha_target=planting.alpha_target,
    )


def _places(plantings: Iterable[Planting]) -> str:
    """Return what is where, such as "widen_large in blocks.0 and blocks.1"."""
    parts = [
        f"{blueprint} in {' and '.join(planting.slot for planting in same)}"
        for blueprint, same in groupby(plantings, lambda planting: planting.blueprint)
    ]
    return ", ".join(parts)


def _schedule(plantings: tuple[Planting, ...]) -> str:
    first = plantings[0]
    words = f"{_places(plantings)} from epoch {first.epoch}, blended in {first.tempo_epochs} epochs"
    is_whole = first.alpha_target == ALPHA_TARGETS[-1]
    return words if is_whole else f"{words} to alpha {first.alpha_target:g}"


def _changes(config: HeuristicConfig) -> str:
    """Return the settings in which a heuristic differs from the usual one."""
    usual, own = asdict(HeuristicConfig()), asdict(config)
    changed = {name: value for name, value in own.items() if value != usual[name]}
    if "blueprints" in changed:
        changed["blueprints"] = f"{changed['blueprints'][0]} first"
    words = ", ".join(f"{name} {_short(value)}" for name, value in changed.items())
    return words or "its usual settings"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


FASTEST = TEMPO_EPOCHS[0]
"""Epochs of the shortest first ramp of alpha."""

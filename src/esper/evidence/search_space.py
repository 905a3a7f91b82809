"""The settings that tuned arms choose from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby, product
from typing import Any

import numpy as np

from esper.config.controllers import PREFERRED_BLUEPRINTS, HeuristicConfig
from esper.lifecycle.factored_actions import ALPHA_TARGETS, TEMPO_EPOCHS, GrowthAction, Op
from esper.lifecycle.slot_config import SlotConfig
from esper.populations import FirstSeed
from esper.tamiyo import Controller, FixedSchedule, Heuristic, NoGrowth, Planting
from esper.tamiyo.policy.observations import ObservationLayout


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A setting that is applied to all hosts: initial seeds, a schedule or a heuristic."""

    planted: tuple[Planting, ...] = ()
    """Committed seeds that hosts start with."""
    grown: tuple[Planting, ...] = ()
    """Seeds that a fixed schedule grows."""
    heuristic: HeuristicConfig | None = None
    """Settings of the heuristic; None for no heuristic."""

    def first_seeds(self) -> tuple[FirstSeed, ...]:
        """Return the seeds that hosts start with."""
        return tuple(
            FirstSeed(
                action=GrowthAction(
                    op=Op.GERMINATE,
                    slot=planting.slot,
                    blueprint=planting.blueprint,
                    style=planting.style,
                    tempo_epochs=planting.tempo_epochs,
                    alpha_target=planting.alpha_target,
                ),
                number=number,
            )
            for number, planting in enumerate(self.planted)
        )

    def make(self, layout: ObservationLayout) -> Controller:
        """Return the controller of the hosts."""
        if self.heuristic is not None:
            return Heuristic(layout, self.heuristic)
        return FixedSchedule(layout, self.grown) if self.grown else NoGrowth()

    def to_json(self) -> dict[str, Any]:
        """Return the candidate as plain values."""
        values = asdict(self)
        for plantings in (values["planted"], values["grown"]):
            for planting in plantings:
                planting["style"] = planting["style"].value
        return values

    def describe(self, stop: int) -> str:
        """Return the candidate and its last stopping epoch in words."""
        end = f"stop after {stop}"
        if self.heuristic is not None:
            return f"{_describe_heuristic(self.heuristic)}; {end} at the latest"
        if self.planted:
            return f"{_describe_places(self.planted)} from the start, {end}"
        if self.grown:
            return f"{_describe_schedule(self.grown)}, {end}"
        return f"no growth, {end}"


def _describe_places(plantings: Iterable[Planting]) -> str:
    """Return blueprints and slots, such as "widen_large in blocks.0 and blocks.1"."""
    parts = [
        f"{blueprint} in {' and '.join(planting.slot for planting in same)}"
        for blueprint, same in groupby(plantings, lambda planting: planting.blueprint)
    ]
    return ", ".join(parts)


def _describe_schedule(plantings: tuple[Planting, ...]) -> str:
    first, places = plantings[0], _describe_places(plantings)
    words = f"{places} from epoch {first.epoch}, blended in {first.tempo_epochs} epochs"
    is_full = first.alpha_target == ALPHA_TARGETS[-1]
    return words if is_full else f"{words} to alpha {first.alpha_target:g}"


def _describe_heuristic(config: HeuristicConfig) -> str:
    """Return the settings in which a heuristic differs from the default."""
    default = asdict(HeuristicConfig())
    changed = {name: value for name, value in asdict(config).items() if value != default[name]}
    if "blueprints" in changed:
        changed["blueprints"] = f"{changed['blueprints'][0]} first"
    words = [
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in changed.items()
    ]
    return ", ".join(words) or "its default settings"


WIDENINGS = ("widen_small", "widen_medium", "widen_large")
_HEURISTICS = 0x4E4
"""Seed of the random heuristics."""


def size_candidates(slot_config: SlotConfig) -> list[Candidate]:
    """Return fixed sizes: the plain host, and every blueprint in one slot and in all slots.

    Also included are mixed ones, with a large widening in one half of the slots and a smaller
    widening or a module in the other.
    """
    found = [Candidate()]
    found += [Candidate(planted=plantings) for plantings in _uniform(slot_config)]
    found += [Candidate(planted=plantings) for plantings in _mixed(slot_config)]
    return list(dict.fromkeys(found))


def fixed_candidates(slot_config: SlotConfig, n_epochs: int) -> list[Candidate]:
    """Return fixed schedules: widenings by slot, start and tempo; modules; and no growth."""
    starts = sorted({0, n_epochs // 8, n_epochs // 4})
    found = [Candidate()]
    for plantings in _uniform(slot_config):
        is_wide = plantings[0].blueprint in WIDENINGS
        choices = product(starts, TEMPO_EPOCHS[:2]) if is_wide else [(0, TEMPO_EPOCHS[0])]
        for start, tempo in choices:
            grown = tuple(
                Planting(slot=p.slot, blueprint=p.blueprint, epoch=start, tempo_epochs=tempo)
                for p in plantings
            )
            found.append(Candidate(grown=grown))
    return list(dict.fromkeys(found))


def heuristic_candidates(slot_config: SlotConfig, n_candidates: int) -> list[Candidate]:
    """Return the default heuristic and others with random settings."""
    generator = np.random.default_rng(_HEURISTICS)
    names = _growable(slot_config)
    found = [HeuristicConfig()]
    while len(found) < n_candidates:
        found.append(_draw_heuristic(generator, names))
    return [Candidate(heuristic=config) for config in found]


def _draw_heuristic(generator: np.random.Generator, names: list[str]) -> HeuristicConfig:
    """Return a heuristic with random settings, each from a useful range."""

    def pick(*values: float) -> float:
        return values[generator.integers(len(values))]

    plateau = pick(0.0, 0.01, 0.02, 0.04, 0.08, 1.0)
    holding, training = int(pick(1, 1, 2)), int(pick(1, 1, 2))
    patience = int(pick(0, 1, 2, 3, 4, 6))
    order = list(generator.permutation(names[: max(3, len(names) // 2)])) + names
    return HeuristicConfig(
        warmup_epochs=int(pick(0, 1, 2, 4)),
        plateau_rise=plateau,
        training_epochs=training,
        training_patience=training + int(pick(2, 4)),
        min_gradient_ratio=pick(0.0, 0.003, 0.01),
        max_loss_rise=pick(0.1, 0.2, 1.0),
        tempo_epochs=int(pick(*TEMPO_EPOCHS[:2])),
        holding_epochs=holding,
        judging_epochs=holding + int(pick(1, 2)),
        min_contribution=pick(-1.0, -0.01, 0.0, 0.01, 0.02),
        max_live_seeds=int(pick(1, 1, 2, 4)),
        max_prunes=int(pick(0, 1, 2)),
        profit_epochs=int(pick(0, 2, 4)),
        finish_rise=min(plateau, pick(0.0, 0.005, 0.01, 0.02, 0.04)),
        finish_patience=patience or None,
        blueprints=tuple(dict.fromkeys(str(name) for name in order)),
    )


def _uniform(slot_config: SlotConfig) -> list[tuple[Planting, ...]]:
    """Return every blueprint in single slots and in all slots that it fits."""
    found: list[tuple[Planting, ...]] = []
    for name in _growable(slot_config):
        slots = [slot for slot in _usable(slot_config) if slot_config.does_fit(name, slot)]
        middle = {0, len(slots) // 2, len(slots) - 1}
        sets = [slots, *([slots[place]] for place in sorted(middle))]
        found += [tuple(Planting(slot=slot, blueprint=name) for slot in some) for some in sets]
    return list(dict.fromkeys(found))


def _mixed(slot_config: SlotConfig) -> list[tuple[Planting, ...]]:
    """Return a large widening in one half of the slots with another blueprint in the other half."""
    slots, found = _usable(slot_config), list[tuple[Planting, ...]]()
    half = len(slots) // 2
    modules = [name for name in _growable(slot_config) if name not in WIDENINGS]
    for other in ("widen_small", "widen_medium", *modules):
        for wide, rest in ((slots[:half], slots[half:]), (slots[half:], slots[:half])):
            named = [(slot, "widen_large") for slot in wide] + [(slot, other) for slot in rest]
            fitting = [(slot, name) for slot, name in named if slot_config.does_fit(name, slot)]
            ordered = sorted(fitting, key=lambda pair: slots.index(pair[0]))
            if wide and rest:
                found.append(tuple(Planting(slot=s, blueprint=name) for s, name in ordered))
    return [plantings for plantings in found if plantings]


def _usable(slot_config: SlotConfig) -> list[str]:
    return [slot for slot in slot_config.slot_ids if slot_config.is_enabled(slot)]


def _growable(slot_config: SlotConfig) -> list[str]:
    """Return the blueprints that fit a slot and are not a no-op, preferred ones first."""
    known, slots = slot_config.blueprints, _usable(slot_config)
    ranked = [name for name in dict.fromkeys([*PREFERRED_BLUEPRINTS, *known]) if name in known]
    fits = slot_config.does_fit
    return [name for name in ranked if name != "noop" and any(fits(name, one) for one in slots)]

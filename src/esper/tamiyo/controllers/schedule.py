"""The controller that follows a fixed schedule.

Shapes: N = hosts, S = slots, P = plantings, A = alternative blueprints of a planting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esper.arrays import Features, Flags, Floats, Integers
from esper.config.checks import NonNegativeInt, Settings, UnitInterval, check, require_choice
from esper.errors import SlotError
from esper.lifecycle.factored_actions import ALPHA_TARGETS, STYLES, TEMPO_EPOCHS, BlendStyle, Op
from esper.lifecycle.legality import ADVANCEABLE_STAGES
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.tamiyo.controllers.controller import (
    COLUMNS,
    ActionRows,
    EpochCounter,
    NamedController,
    rank_blueprints,
)
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tamiyo.policy.observations import ObservationLayout


@dataclass(frozen=True, kw_only=True)
class Planting(Settings):
    """One seed of a schedule."""

    slot: str
    """The slot."""

    blueprint: str
    """The blueprint of the seed."""

    otherwise: tuple[str, ...] = ()
    """Blueprints for hosts whose slot the first does not fit; the first of them that fits grows."""

    epoch: NonNegativeInt = 0
    """Epochs of training before it germinates."""

    fraction: UnitInterval | None = None
    """Fraction of the budget before it germinates, in place of ``epoch``."""

    style: BlendStyle = BlendStyle.ADD_LINEAR
    """How it is blended in."""

    tempo_epochs: int = TEMPO_EPOCHS[0]
    """Epochs of the first ramp of alpha."""

    alpha_target: float = ALPHA_TARGETS[-1]
    """The target of alpha."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("tempo_epochs", self.tempo_epochs, TEMPO_EPOCHS)
        require_choice("alpha_target", self.alpha_target, ALPHA_TARGETS)


def _rank_choices(plantings: Sequence[Planting], slot_config: SlotConfig) -> Integers:
    """Return the blueprint and alternatives of each planting, ``[P, A]``; the last is repeated."""
    names = [(planting.blueprint, *planting.otherwise) for planting in plantings]
    maximum = max((len(some) for some in names), default=1)
    ranked = [[*some, *some[-1:] * (maximum - len(some))] for some in names]
    indices = [[slot_config.blueprint_index(name) for name in some] for some in ranked]
    return np.array(indices, np.int64).reshape(len(plantings), maximum)


def _check_plantings(plantings: Sequence[Planting], slot_config: SlotConfig) -> None:
    """Reject plantings whose slot or blueprint is unknown or cannot be used."""
    for planting in plantings:
        slot, blueprint = planting.slot, planting.blueprint
        slot_config.slot_index(slot)
        slot_config.blueprint_index(blueprint)
        if not slot_config.does_fit(blueprint, slot):
            fitting = ", ".join(rank_blueprints(slot_config, slot)) or "none"
            raise SlotError(
                f"blueprint {blueprint!r} does not fit slot {slot!r}; those that fit: {fitting}."
            )
        if not slot_config.is_enabled(slot):
            raise SlotError(f"slot {slot!r} is not enabled; enable it or use another.")


_CAN_ADVANCE = np.array([stage in ADVANCEABLE_STAGES for stage in Stage])


class FixedSchedule(NamedController):
    """Grows the seeds of a schedule, each as fast as is legal, and fossilizes them all.

    At each epoch it does one thing: it advances the oldest seed that can advance (a blending one
    only once alpha is at rest), or fossilizes it if it is held; otherwise it germinates the first
    planting that is due and whose slot is free, which a slot is again some epochs after its seed
    was fossilized. A seed that a gate has just refused is tried last. A seed that the governor
    pruned is not planted again. Of hosts of several designs, those that lack a planting's slot, or
    that none of its blueprints fits, skip it.
    """

    def __init__(
        self,
        layout: ObservationLayout,
        plantings: Sequence[Planting],
        *,
        finish_after: int | None = None,
        name: str = "fixed",
    ) -> None:
        """Create the controller.

        Args:
            layout: The layout of the observations.
            plantings: The seeds to grow; those of one slot grow one after another.
            finish_after: Epochs after which to finish a host, if that is legal; None for never.
            name: The controller's name in comparisons.

        Raises:
            SlotError: If a slot or blueprint is unknown or cannot be used.
        """
        check("finish_after", finish_after, NonNegativeInt | None)
        check("layout", layout, ObservationLayout)
        check("plantings", plantings, tuple[Planting, ...])
        self.layout = layout
        self.plantings = tuple(sorted(plantings, key=lambda one: (one.epoch, one.fraction or 0.0)))
        _check_plantings(self.plantings, layout.slot_config)
        self.finish_after = finish_after
        self.name = name
        self._due_epochs = np.array([planting.epoch for planting in self.plantings], np.int64)
        self._due_fractions = np.array([planting.fraction or 0.0 for planting in self.plantings])
        slot_index = layout.slot_config.slot_index
        choices = {
            "slot": [slot_index(planting.slot) for planting in self.plantings],
            "style": [STYLES.index(planting.style) for planting in self.plantings],
            "tempo": [TEMPO_EPOCHS.index(planting.tempo_epochs) for planting in self.plantings],
            "alpha_target": [ALPHA_TARGETS.index(one.alpha_target) for one in self.plantings],
        }
        self._choices = {head: np.array(rows, np.int64) for head, rows in choices.items()}
        """``[P]`` of each head that germinate reads, without the blueprint."""
        self._ranked = _rank_choices(self.plantings, layout.slot_config)
        self._epochs = EpochCounter()
        self._is_planted: Flags = np.zeros((0, len(self.plantings)), np.bool_)
        self._last_slots: Integers = np.zeros(0, np.int64)

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Reset the controller; it ignores the seed."""
        self._epochs.start(n_hosts)
        self._is_planted = np.zeros((n_hosts, len(self.plantings)), np.bool_)
        self._last_slots = np.zeros(n_hosts, np.int64)

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose an action for each host."""
        starts = np.asarray(starts, np.bool_)
        epochs = self._epochs.count(observations, starts)
        self._is_planted[starts] = False
        actions = ActionRows(masks, len(epochs))
        if self.finish_after is not None:
            actions.finish(epochs >= self.finish_after)
        stages = self.layout.stages(observations)
        ages = self.layout.slot(observations, "age")
        is_at_rest = self.layout.slot(observations, "alpha_at_rest") > 0.5
        is_ready = _CAN_ADVANCE[stages] & (is_at_rest | (stages != Stage.BLENDING))
        is_ready |= stages == Stage.HOLDING
        ops = np.where(stages == Stage.HOLDING, Op.FOSSILIZE, Op.ADVANCE)
        # [N, S] whose seeds a gate has just refused.
        was_refused = self.layout.host(observations, "was_refused")[:, None] > 0.5
        was_refused = was_refused & (np.arange(self.layout.n_slots) == self._last_slots[:, None])
        actions.choose(ops, is_ready & ~was_refused, oldest=ages)
        progress = self.layout.host(observations, "progress").astype(np.float64)
        self._germinate(actions, epochs, progress)
        actions.choose(ops, is_ready & was_refused, oldest=ages)
        self._last_slots = actions.rows[:, COLUMNS["slot"]].copy()
        return actions.rows

    def _germinate(self, actions: ActionRows, epochs: Integers, progress: Floats) -> None:
        """Germinate the first planting that is due, where that is legal."""
        if not self.plantings:
            return
        is_due = (epochs[:, None] >= self._due_epochs) & ~self._is_planted
        # Observations are rounded to float32.
        is_due &= progress[:, None] >= self._due_fractions - 1e-6
        slots = self._choices["slot"]
        fits = actions.fits[:, slots[:, None], self._ranked]
        is_ready = is_due & actions.may(Op.GERMINATE)[:, slots] & fits.any(2)
        first = is_ready.argmax(1)
        is_planting: Flags = np.any(is_ready, axis=1)
        wanted = np.arange(self.layout.n_slots) == slots[first][:, None]
        taken = actions.choose(Op.GERMINATE, wanted & is_planting[:, None])
        for head, choices in self._choices.items():
            actions.fill(taken, head, choices[first])
        rank = fits.argmax(2)[np.arange(len(first)), first]
        actions.fill(taken, "blueprint", self._ranked[first, rank])
        self._is_planted[taken, first[taken]] = True


def grow_once(
    layout: ObservationLayout,
    *,
    blueprint: str | None = None,
    slot: str | None = None,
    epoch: NonNegativeInt = 0,
    name: str = "grow once",
) -> FixedSchedule:
    """Return a schedule of one seed, by default in the first usable slot.

    Raises:
        SlotError: If the slot or blueprint is unknown or cannot be used.
    """
    check("layout", layout, ObservationLayout)
    slots = [slot] if slot is not None else _usable_slots(layout.slot_config, blueprint)[:1]
    return FixedSchedule(layout, _plantings(layout, slots, blueprint, [epoch]), name=name)


def grow_everywhere(
    layout: ObservationLayout,
    *,
    blueprint: str | None = None,
    every: int = 2,
    name: str = "grow everywhere",
) -> FixedSchedule:
    """Return a schedule of one seed in each usable slot, with ``every`` epochs between them.

    Raises:
        SlotError: If the blueprint is unknown or fits no slot.
    """
    check("layout", layout, ObservationLayout)
    check("every", every, NonNegativeInt)
    slots = _usable_slots(layout.slot_config, blueprint)
    epochs = [every * number for number in range(len(slots))]
    return FixedSchedule(layout, _plantings(layout, slots, blueprint, epochs), name=name)


def _plantings(
    layout: ObservationLayout, slots: list[str], blueprint: str | None, epochs: list[int]
) -> list[Planting]:
    plantings: list[Planting] = []
    for slot, epoch in zip(slots, epochs, strict=True):
        layout.slot_config.slot_index(slot)
        ranked = [blueprint] if blueprint is not None else rank_blueprints(layout.slot_config, slot)
        if not ranked:
            raise SlotError(f"no blueprint fits slot {slot!r}; use another slot.")
        plantings.append(Planting(slot=slot, blueprint=ranked[0], epoch=epoch))
    return plantings


def _usable_slots(slot_config: SlotConfig, blueprint: str | None) -> list[str]:
    """Return the enabled slots that a blueprint fits, or all for None; reject an empty result."""
    if blueprint is not None:
        slot_config.blueprint_index(blueprint)
    usable = [
        slot
        for slot in slot_config.slot_ids
        if slot_config.is_enabled(slot)
        and (blueprint is None or slot_config.does_fit(blueprint, slot))
    ]
    if not usable:
        what = "any blueprint" if blueprint is None else f"blueprint {blueprint!r}"
        slots = ", ".join(slot_config.slot_ids)
        raise SlotError(f"{what} can be used in none of the slots {slots}; enable one it fits.")
    return usable

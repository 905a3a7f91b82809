"""The controller that follows a plan, whatever happens.

Shapes: N = hosts, S = slots, P = plantings.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from esper.config.checks import require_int
from esper.errors import SlotError
from esper.lifecycle.factored_actions import Op
from esper.lifecycle.legality import ADVANCEABLE_STAGES
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.tamiyo.controllers.action_rows import COLUMNS, ActionRows
from esper.tamiyo.controllers.controller import (
    EpochCounter,
    Flags,
    Floats,
    Integers,
    require_layout,
)
from esper.tamiyo.controllers.planting import (
    Planting,
    check_plantings,
    read_heads,
    require_plantings,
)
from esper.tamiyo.controllers.preferences import rank_blueprints
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tamiyo.policy.observations import ObservationLayout

_CAN_ADVANCE = np.array([stage in ADVANCEABLE_STAGES for stage in Stage])


class FixedSchedule:
    """Grows the seeds of a plan, each as fast as it is legal, and commits them all.

    At each epoch it does one thing. The oldest seed that can go on goes on: it advances, out of
    blending only when alpha is at rest, and is fossilized when it is held. If there is none, the
    first planting that is due germinates. A seed that a gate has just refused stands back behind
    all of this and then tries again. A seed that the governor pruned is not planted again.
    """

    def __init__(
        self,
        layout: ObservationLayout,
        plantings: Sequence[Planting],
        *,
        finish_after: int | None = None,
        name: str = "fixed",
    ) -> None:
        """Make the controller.

        Args:
            layout: What the observations mean.
            plantings: What is grown, at most one seed in each slot.
            finish_after: Epochs of training after which a host is finished, where that is legal;
                None for never.
            name: What the controller is called in comparisons.

        Raises:
            SlotError: If a slot or blueprint is unknown or cannot be used.
        """
        if finish_after is not None:
            require_int("finish_after", finish_after, least=0)
        require_layout(layout)
        require_plantings(plantings)
        self.layout = layout
        self.plantings = tuple(sorted(plantings, key=lambda planting: planting.epoch))
        check_plantings(self.plantings, layout.slot_config)
        self.finish_after = finish_after
        self.name = name
        self._due = np.array([planting.epoch for planting in self.plantings], np.int64)
        self._heads = read_heads(self.plantings, layout.slot_config)
        self._epochs = EpochCounter()
        self._is_planted: Flags = np.zeros((0, len(self.plantings)), np.bool_)
        self._last_slots: Integers = np.zeros(0, np.int64)

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Forget everything and get ready to steer hosts; nothing here is drawn."""
        self._epochs.start(n_hosts)
        self._is_planted = np.zeros((n_hosts, len(self.plantings)), np.bool_)
        self._last_slots = np.zeros(n_hosts, np.int64)

    def act(self, observations: Floats, masks: ActionMasks, starts: Flags) -> Integers:
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
        goes_on = _CAN_ADVANCE[stages] & (is_at_rest | (stages != Stage.BLENDING))
        goes_on |= stages == Stage.HOLDING
        ops = np.where(stages == Stage.HOLDING, Op.FOSSILIZE, Op.ADVANCE)
        stands_back = self._find_refused(observations)
        actions.choose(ops, goes_on & ~stands_back, oldest=ages)
        self._plant(actions, epochs)
        actions.choose(ops, goes_on & stands_back, oldest=ages)
        self._last_slots = actions.rows[:, COLUMNS["slot"]].copy()
        return actions.rows

    def _find_refused(self, observations: Floats) -> Flags:
        """Return the slots ``[N, S]`` whose seeds a gate has just refused."""
        was_refused = self.layout.host(observations, "was_refused") > 0.5
        is_last = np.arange(self.layout.n_slots) == self._last_slots[:, None]
        return was_refused[:, None] & is_last

    def _plant(self, actions: ActionRows, epochs: Integers) -> None:
        """Germinate the first planting that is due, where that is legal."""
        if not self.plantings:
            return
        is_due = (epochs[:, None] >= self._due) & ~self._is_planted
        is_ready = is_due & actions.may(Op.GERMINATE)[:, self._heads["slot"]]
        first = is_ready.argmax(1)
        is_planting: Flags = np.any(is_ready, axis=1)
        wanted = np.arange(self.layout.n_slots) == self._heads["slot"][first][:, None]
        taken = actions.choose(Op.GERMINATE, wanted & is_planting[:, None])
        for head, choices in self._heads.items():
            actions.fill(taken, head, choices[first])
        self._is_planted[taken, first[taken]] = True


def grow_once(
    layout: ObservationLayout,
    *,
    blueprint: str | None = None,
    slot: str | None = None,
    epoch: int = 0,
    name: str = "grow once",
) -> FixedSchedule:
    """Return a schedule that grows one seed; the first usable slot and its best guess by default.

    Raises:
        SlotError: If the slot or blueprint is unknown or cannot be used.
    """
    require_layout(layout)
    slots = [slot] if slot is not None else _usable_slots(layout.slot_config, blueprint)[:1]
    return FixedSchedule(layout, _plantings(layout, slots, blueprint, [epoch]), name=name)


def grow_everywhere(
    layout: ObservationLayout,
    *,
    blueprint: str | None = None,
    every: int = 2,
    name: str = "grow everywhere",
) -> FixedSchedule:
    """Return a schedule that grows a seed in each usable slot, one due ``every`` so many epochs.

    Raises:
        SlotError: If the blueprint is unknown or fits no slot.
    """
    require_layout(layout)
    require_int("every", every, least=0)
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
            raise SlotError(f"no blueprint fits slot {slot!r}; plant in another slot.")
        plantings.append(Planting(slot=slot, blueprint=ranked[0], epoch=epoch))
    return plantings


def _usable_slots(slot_config: SlotConfig, blueprint: str | None) -> list[str]:
    """Return the slots in which a blueprint (any, for None) may grow; refuse if there is none."""
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
        raise SlotError(f"{what} may grow in none of the slots {slots}; enable one that it fits.")
    return usable

"""The lives of seeds as bars over epochs, from the events and steps of an episode.

A step's op is done before its epoch is trained. What a step with epoch ``e`` brought about is
therefore drawn from ``e - 1`` on, and what it measured is at ``e``. A host that is finished trains
no epoch in that step, which begins and ends at ``e``.
"""

from __future__ import annotations

import math
from typing import TypedDict

from esper.lifecycle.stages import Stage
from esper.reports.views.plain import finite
from esper.reports.views.steps import Step
from esper.telemetry.records import SeedEventRecord

Part = TypedDict("Part", {"stage": str, "from": int, "to": int})
"""A stage of a seed's life, and the epochs that it lasted."""


class Bar(TypedDict):
    """The life of one seed, until its slot is free again."""

    slot: str
    blueprint: str | None
    seed: int
    """Which seed of the slot, counted from 0."""
    parts: list[Part]
    alphas: list[tuple[int, float | None]]
    """Epochs, and how strongly it was blended in after each."""
    parameters: int | None


_DORMANT = Stage.DORMANT.name.lower()


def make_bars(
    events: list[SeedEventRecord],
    steps: list[Step],
    slots: list[str],
    *,
    last_epoch: int,
    finish_step: int | None,
) -> list[Bar]:
    """Return a bar for each seed, slot by slot.

    Args:
        events: Of one episode, in order.
        steps: Of the same episode, none if they were not recorded.
        slots: Names of the slots.
        last_epoch: Epochs that the host has trained.
        finish_step: The step that finished the host before another epoch; None if none did.
    """
    bars: list[Bar] = []
    for slot in dict.fromkeys([*slots, *(event.slot for event in events)]):
        place = slots.index(slot) if slot in slots else None
        for number, life in enumerate(_lives([one for one in events if one.slot == slot])):
            own = _steps_of(life, steps)
            bars.append(
                {
                    "slot": slot,
                    "blueprint": next((one.blueprint for one in life if one.blueprint), None),
                    "seed": number,
                    "parts": _parts(life, last_epoch, finish_step),
                    "alphas": _alphas(life, own, place, finish_step),
                    "parameters": _parameters(own, place),
                }
            )
    return bars


def _lives(events: list[SeedEventRecord]) -> list[list[SeedEventRecord]]:
    """Return the events of a slot, those of each of its seeds together."""
    lives: list[list[SeedEventRecord]] = []
    for event in events:
        if not lives or event.from_stage == _DORMANT:
            lives.append([])
        lives[-1].append(event)
    return lives


def _is_over(life: list[SeedEventRecord]) -> bool:
    """Return whether the last event of a life only says that its slot is free again."""
    return life[-1].to_stage == _DORMANT


def _steps_of(life: list[SeedEventRecord], steps: list[Step]) -> list[Step]:
    """Return the steps after which the slot was the seed's."""
    end = life[-1].step if _is_over(life) else math.inf
    return [one for one in steps if life[0].step <= one["step"] < end]


def _parts(life: list[SeedEventRecord], last_epoch: int, finish_step: int | None) -> list[Part]:
    starts = [one.epoch - (one.step != finish_step) for one in life]
    parts: list[Part] = [
        {"stage": one.to_stage, "from": start, "to": end}
        for one, start, end in zip(life, starts, [*starts[1:], last_epoch], strict=True)
    ]
    return parts[:-1] if _is_over(life) else parts


def _alphas(
    life: list[SeedEventRecord], steps: list[Step], place: int | None, finish_step: int | None
) -> list[tuple[int, float | None]]:
    if not steps or place is None:
        return [(one.epoch, finite(one.alpha)) for one in life]
    return [
        (one["epoch"], one["slots"][place]["alpha"])
        for one in steps
        if one["step"] != finish_step and place < len(one["slots"])
    ]


def _parameters(steps: list[Step], place: int | None) -> int | None:
    """Return how many parameters a seed had, if that was recorded."""
    if place is None:
        return None
    found = [one["slots"][place]["parameters"] for one in steps if place < len(one["slots"])]
    return max((number for number in found if number is not None), default=None)

"""One episode in full: its steps, its seeds and its result."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from esper.config.growth import RewardForm
from esper.errors import TelemetryError
from esper.lifecycle.stages import Stage
from esper.reports.views.episodes import Episode, ended_episode
from esper.reports.views.run import Names, names_of, run_of, settings_of
from esper.reports.views.values import finite
from esper.telemetry import RunTelemetry
from esper.telemetry.records import (
    EpisodeRecord,
    GovernorRecord,
    RunRecord,
    SeedEventRecord,
    StepRecord,
)
from esper.telemetry.schema import unpack_probabilities


class SlotState(TypedDict):
    """A slot after a step."""

    stage: str
    blueprint: str | None
    alpha: float | None
    contribution: float | None
    parameters: int | None
    """Parameters of the seed."""
    n_fossils: int
    """Number of seeds that have become part of the block."""
    fossil_parameters: int


class Terms(TypedDict):
    """What a reward is the sum of."""

    progress: float | None
    settlement: float | None
    flops_cost: float | None
    rent: float | None
    penalty: float | None
    shaping: float | None


class Step(TypedDict):
    """One decision and its outcome; None where a value is not recorded or not finite."""

    epoch: int
    """Epochs trained after the step."""
    decided_after: int
    """Epochs trained before the decision, as :class:`esper.Trace` numbers it."""
    step: int
    round: int
    op: str
    op_done: str
    is_illegal: bool
    refusal: str | None
    slot: str | None
    """The chosen slot, if the op reads it."""
    blueprint: str | None
    """The chosen blueprint, if the op reads it."""
    choices: dict[str, int]
    relevant: list[str]
    """The heads that the op reads; all heads if the run did not record them."""
    probabilities: dict[str, list[float | None]] | None
    """By head, for each choice; None for a masked choice."""
    reward: float | None
    terms: Terms
    score: float | None
    flops: float | None
    value: float | None
    log_prob: float | None
    slots: list[SlotState]


def describe_step(record: StepRecord, names: Names, finish_step: int | None) -> Step:
    """Return a step with names instead of indices."""
    op = named(names.ops, record.op)
    reads = names.reads.get(op)
    is_read = set(reads or ())
    return {
        "epoch": record.epoch,
        "decided_after": _epochs_before(record, finish_step),
        "step": record.step,
        "round": record.round,
        "op": op,
        "op_done": named(names.ops, record.op_done),
        "is_illegal": record.is_illegal,
        "refusal": record.refusal,
        "slot": named(names.slots, record.slot) if "slot" in is_read else None,
        "blueprint": (
            named(names.blueprints, record.blueprint) if "blueprint" in is_read else None
        ),
        "choices": _choices(record),
        "relevant": [head for head in names.heads if reads is None or head in is_read],
        "probabilities": _probabilities(record.probabilities, names),
        "reward": finite(record.reward),
        "terms": _terms(record),
        "score": finite(record.score),
        "flops": finite(record.flops),
        "value": finite(record.value),
        "log_prob": finite(record.log_prob),
        "slots": read_slots(record.slots, names.blueprints)[: len(names.slots) or None],
    }


def _epochs_before(record: StepRecord | SeedEventRecord, finish_step: int | None) -> int:
    """Return the epochs trained before a step; the one that finishes a host trains none."""
    return record.epoch - (record.step != finish_step)


def _choices(record: StepRecord) -> dict[str, int]:
    return {
        "slot": record.slot,
        "blueprint": record.blueprint,
        "style": record.style,
        "tempo": record.tempo,
        "alpha_target": record.alpha_target,
        "alpha_speed": record.alpha_speed,
        "alpha_curve": record.alpha_curve,
        "op": record.op,
    }


def _terms(record: StepRecord) -> Terms:
    return {
        "progress": finite(record.progress),
        "settlement": finite(record.settlement),
        "flops_cost": finite(record.flops_cost),
        "rent": finite(record.rent),
        "penalty": finite(record.penalty),
        "shaping": finite(record.shaping),
    }


def _probabilities(packed: bytes | None, names: Names) -> dict[str, list[float | None]] | None:
    """Return the probabilities of each head's choices, if they were recorded."""
    if packed is None or any(head not in names.choices for head in names.heads):
        return None
    sizes = [len(names.choices[head]) for head in names.heads]
    try:
        return dict(zip(names.heads, unpack_probabilities(packed, sizes), strict=True))
    except ValueError as error:
        raise TelemetryError(
            f"a step's probabilities do not match the run's heads: {error} The database is damaged."
        ) from error


def read_slots(text: str, blueprints: list[str]) -> list[SlotState]:
    """Return the slots of a step's record."""
    # NumPy spells non-finite numbers differently from Python's JSON reader.
    values: list[list[Any]] = json.loads(text.replace("nan", "NaN").replace("inf", "Infinity"))
    return [
        {
            "stage": Stage(stage).name.lower(),
            "blueprint": None if blueprint < 0 else named(blueprints, blueprint),
            "alpha": finite(alpha),
            "contribution": finite(contribution),
            "parameters": more[0] if more else None,
            "n_fossils": more[1] if len(more) > 1 else 0,
            "fossil_parameters": more[2] if len(more) > 1 else 0,
        }
        for stage, blueprint, alpha, contribution, *more in values
    ]


def named(names: list[str], index: int) -> str:
    """Return the name at an index, or the index as text if it has none."""
    return names[index] if 0 <= index < len(names) else str(index)


Part = TypedDict("Part", {"stage": str, "from": int, "to": int})
"""A stage of a seed's life, with its first and last epoch."""


class Bar(TypedDict):
    """The life of one seed in a slot."""

    slot: str
    blueprint: str | None
    seed: int
    """The seed's number in its slot, counted from 0."""
    parts: list[Part]
    alphas: list[tuple[int, float | None]]
    """Epochs, with the seed's alpha after each."""
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
        events: The seed events of one episode, in order.
        steps: Its steps; empty if they were not recorded.
        slots: Names of the slots.
        last_epoch: Epochs that the host has trained.
        finish_step: The step that finished the host without training an epoch, or None.
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
    """Return the events of a slot, grouped by seed."""
    lives: list[list[SeedEventRecord]] = []
    for event in events:
        if not lives or event.from_stage == _DORMANT:
            lives.append([])
        lives[-1].append(event)
    return lives


def _is_over(life: list[SeedEventRecord]) -> bool:
    """Return whether the last event frees the slot."""
    return life[-1].to_stage == _DORMANT


def _steps_of(life: list[SeedEventRecord], steps: list[Step]) -> list[Step]:
    """Return the steps after which the seed was in the slot."""
    end = life[-1].step if _is_over(life) else math.inf
    return [one for one in steps if life[0].step <= one["step"] < end]


def _parts(life: list[SeedEventRecord], last_epoch: int, finish_step: int | None) -> list[Part]:
    starts = [_epochs_before(one, finish_step) for one in life]
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
    """Return a seed's number of parameters, None if not recorded."""
    if place is None:
        return None
    found = [one["slots"][place]["parameters"] for one in steps if place < len(one["slots"])]
    return max((number for number in found if number is not None), default=None)


class SeedEvent(TypedDict):
    """A seed that moved from one stage to another."""

    epoch: int
    decided_after: int
    """As in :class:`Step`."""
    step: int
    slot: str
    blueprint: str | None
    from_stage: str
    to_stage: str
    alpha: float | None
    contribution: float | None


class Rescue(TypedDict):
    """A host that the governor rolled back."""

    epoch: int
    step: int
    reason: str


class EpisodeDetail(TypedDict):
    """Everything recorded about one episode."""

    env: int
    episode: int
    draw_seed: str | None
    is_over: bool
    has_steps: bool
    """Whether steps were recorded (``telemetry.record_steps``)."""
    n_epochs_max: int | None
    """Epochs of the budget."""
    problem: str | None
    """What the host learned and what it was, in words, if the task draws it."""
    settings: str | None
    """Learning rate, batch size, price and budget in words; None if not recorded."""
    facts: dict[str, float | None]
    """The drawn values by name."""
    alone_scores: list[float | None]
    """Validation scores of the same host left alone, before training and after each epoch; empty
    if not recorded."""
    schedule_scores: list[float | None]
    """The same for that host grown by the fixed schedule."""
    reward: RewardForm | None
    """What rewards are relative to; None if the run's settings are not recorded."""
    result: Episode | None
    slots: list[str]
    steps: list[Step]
    events: list[SeedEvent]
    bars: list[Bar]
    governor: list[Rescue]
    host_parameters: int | None


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The records of one episode."""

    ended: EpisodeRecord | None
    result: Episode | None
    steps: list[StepRecord]
    events: list[SeedEventRecord]
    rescues: list[GovernorRecord]

    @property
    def draw_seed(self) -> str | None:
        """The seed of the host's data and weights, if a record has it."""
        if self.result is not None:
            return self.result["draw_seed"]
        return next((str(one.draw_seed) for one in (*self.events, *self.rescues)), None)

    @property
    def last_epoch(self) -> int:
        """Epochs that the host has trained, according to the records."""
        if self.result is not None:
            return self.result["n_epochs"]
        return max(one.epoch for one in (*self.steps, *self.events, *self.rescues))

    @property
    def finish_step(self) -> int | None:
        """The step that finished the host without training an epoch, or None."""
        if self.result is None or self.result["ep_len"] <= self.result["n_epochs"]:
            return None
        return self.result["step"]


def episode_detail(telemetry: RunTelemetry, env: int, episode: int) -> EpisodeDetail | None:
    """Return a finished or running episode, or None if nothing is recorded of it."""
    with telemetry.snapshot():
        rows, run = _find_rows(telemetry, env, episode), run_of(telemetry)
    if rows is None:
        return None
    names = _names_of_host(names_of(run), rows.ended)
    steps = [describe_step(record, names, rows.finish_step) for record in rows.steps]
    bars = make_bars(
        rows.events,
        steps,
        names.slots,
        last_epoch=rows.last_epoch,
        finish_step=rows.finish_step,
    )
    return {
        "env": env,
        "episode": episode,
        "draw_seed": rows.draw_seed,
        "is_over": rows.result is not None,
        "has_steps": bool(steps),
        "n_epochs_max": _budget_epochs(rows.ended, run),
        **_describe_problem(rows.ended),
        "reward": None if run is None else settings_of(run).rewards.reward,
        "result": rows.result,
        "slots": names.slots,
        "steps": steps,
        "events": [_event(one, rows.finish_step) for one in rows.events],
        "bars": bars,
        "governor": [{"epoch": g.epoch, "step": g.step, "reason": g.reason} for g in rows.rescues],
        "host_parameters": None if rows.result is None else rows.result["host_parameters"],
    }


def _find_rows(telemetry: RunTelemetry, env: int, episode: int) -> _Rows | None:
    rows = _Rows(
        ended=next(iter(telemetry.rows(EpisodeRecord, env=env, episode=episode)), None),
        result=ended_episode(telemetry, env, episode),
        steps=telemetry.rows(StepRecord, env=env, episode=episode),
        events=telemetry.rows(SeedEventRecord, env=env, episode=episode),
        rescues=telemetry.rows(GovernorRecord, env=env, episode=episode),
    )
    return rows if rows.result or rows.steps or rows.events or rows.rescues else None


def _names_of_host(names: Names, ended: EpisodeRecord | None) -> Names:
    """Return the names in a run with the slots of one host, if they are recorded."""
    if ended is None or ended.slot_names is None:
        return names
    return replace(names, slots=[str(name) for name in json.loads(ended.slot_names)])


def _budget_epochs(ended: EpisodeRecord | None, run: RunRecord | None) -> int | None:
    """Return the epochs of an episode's budget, those of the run's settings if not recorded."""
    if ended is not None and ended.budget_epochs is not None:
        return ended.budget_epochs
    return None if run is None else settings_of(run).budget.n_epochs


class _Problem(TypedDict):
    """What a host was trained on, as in :class:`EpisodeDetail`."""

    problem: str | None
    settings: str | None
    facts: dict[str, float | None]
    alone_scores: list[float | None]
    schedule_scores: list[float | None]


def _describe_problem(ended: EpisodeRecord | None) -> _Problem:
    if ended is None:
        nothing: dict[str, Any] = {"problem": None, "settings": None, "facts": {}}
        return _Problem(**nothing, alone_scores=[], schedule_scores=[])
    facts: dict[str, Any] = json.loads(ended.facts or "{}")
    numbers = {name: finite(value) for name, value in facts.items()}
    return {
        "problem": ended.title,
        "settings": _describe_settings(ended, numbers),
        "facts": numbers,
        "alone_scores": _scores(ended.alone_scores),
        "schedule_scores": _scores(ended.schedule_scores),
    }


def _scores(text: str | None) -> list[float | None]:
    """Return recorded scores, none if there are none."""
    scores: list[Any] = json.loads(text or "[]")
    return [finite(score) for score in scores]


def _describe_settings(ended: EpisodeRecord, facts: dict[str, float | None]) -> str | None:
    """Return the settings of an episode that are recorded, in words."""
    rate, size = facts.get("learning_rate"), facts.get("batch_size")
    price, n_epochs = finite(ended.flop_price), ended.budget_epochs
    words = [
        None if rate is None else f"learning rate {rate:.2g}",
        None if size is None else f"batch size {size:.0f}",
        None if price is None else f"FLOP price {price:.3g}",
        None if n_epochs is None else f"{n_epochs}-epoch budget",
    ]
    return ", ".join(filter(None, words)) or None


def _event(record: SeedEventRecord, finish_step: int | None) -> SeedEvent:
    return {
        "epoch": record.epoch,
        "decided_after": _epochs_before(record, finish_step),
        "step": record.step,
        "slot": record.slot,
        "blueprint": record.blueprint or None,
        "from_stage": record.from_stage,
        "to_stage": record.to_stage,
        "alpha": finite(record.alpha),
        "contribution": finite(record.contribution),
    }

"""One episode in full: its steps, its seeds and its result."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, TypedDict

from esper.config.growth import RewardForm
from esper.dashboard.views.episodes import Episode, ended_episode, episode_list
from esper.dashboard.views.run import Names, names_of, run_of, settings_of
from esper.dashboard.views.values import Row, finite
from esper.errors import TelemetryError
from esper.lifecycle.slot_state import read_slots
from esper.lifecycle.stages import Stage
from esper.telemetry import RunTelemetry
from esper.telemetry.records import (
    EpisodeRecord,
    GovernorRecord,
    SeedEventRecord,
    StepRecord,
)
from esper.telemetry.schema import unpack_probabilities

HEADS = ("slot", "blueprint", "style", "tempo", "alpha_target", "alpha_speed", "alpha_curve", "op")
"""The columns of a step's choices."""

TERMS = ("progress", "settlement", "flops_cost", "rent", "penalty", "shaping")
"""The columns that a reward is the sum of."""

MEASURED = ("reward", "score", "flops", "value", "log_prob")
"""The columns of a step that are None if they are not finite."""


Step = Row
"""One decision and its outcome; see :func:`describe_step`."""


def describe_step(record: StepRecord, names: Names, finish_step: int | None) -> Step:
    """Return the columns of a step with names instead of indices.

    ``choices`` are the indices by head, ``relevant`` the heads that the op reads (all heads if the
    run did not record them), and ``terms`` what the reward is the sum of. The slot and the
    blueprint are None if the op does not read them. ``decided_after`` are the epochs trained before
    the decision, as :class:`esper.Trace` numbers it.
    """
    op = named(names.ops, record.op)
    reads = names.reads.get(op)
    slot, blueprint = (
        named(known, index) if reads and head in reads else None
        for head, known, index in (
            ("slot", names.slots, record.slot),
            ("blueprint", names.blueprints, record.blueprint),
        )
    )
    plain = ("epoch", "step", "round", "is_illegal", "refusal")
    return {
        **{name: getattr(record, name) for name in plain},
        **{name: finite(getattr(record, name)) for name in MEASURED},
        "decided_after": _epochs_before(record, finish_step),
        "op": op,
        "op_done": named(names.ops, record.op_done),
        "slot": slot,
        "blueprint": blueprint,
        "choices": {head: getattr(record, head) for head in HEADS},
        "relevant": [head for head in names.heads if reads is None or head in reads],
        "probabilities": _probabilities(record.probabilities, names),
        "terms": {name: finite(getattr(record, name)) for name in TERMS},
        "slots": [
            slot._asdict()
            for slot in read_slots(record.slots, names.blueprints)[: len(names.slots) or None]
        ],
    }


def _epochs_before(record: StepRecord | SeedEventRecord, finish_step: int | None) -> int:
    """Return the epochs trained before a step; a step that finishes a host trains none."""
    return record.epoch - (record.step != finish_step)


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
    no_growth_scores: list[float | None]
    """Validation scores of the same host with no growth, before training and after each epoch;
    empty if not recorded."""
    schedule_scores: list[float | None]
    """The same for that host grown by the fixed schedule."""
    reward: RewardForm | None
    """What rewards are relative to; None if the run's settings are not recorded."""
    result: Episode | None
    slots: list[str]
    steps: list[Step]
    events: list[Row]
    """Seeds that moved from one stage to another, with ``decided_after`` as in :data:`Step`."""
    bars: list[Bar]
    governor: list[Row]
    """Epoch, step and reason of each rollback of the host."""
    host_parameters: int | None


def episode_detail(telemetry: RunTelemetry, env: int, episode: int) -> EpisodeDetail | None:
    """Return a finished or running episode, or None if nothing is recorded of it."""
    place = {"env": env, "episode": episode}
    with telemetry.snapshot():
        run, result = run_of(telemetry), ended_episode(telemetry, env, episode)
        ended = next(iter(telemetry.rows(EpisodeRecord, **place)), None)
        records = telemetry.rows(StepRecord, **place)
        events = telemetry.rows(SeedEventRecord, **place)
        rescues = telemetry.rows(GovernorRecord, **place)
    if result is None and not (records or events or rescues):
        return None
    names, config = names_of(run), run and settings_of(run)
    n_epochs_max = config and config.budget.n_epochs
    if ended is not None:
        # A host may have other slots and another budget than the run's settings say.
        n_epochs_max = ended.budget_epochs or n_epochs_max
        if ended.slot_names is not None:
            names = replace(names, slots=json.loads(ended.slot_names))
    finish_step: int | None = None
    if result is None:
        last_epoch = max(one.epoch for one in (*records, *events, *rescues))
        draw_seed = next((str(one.draw_seed) for one in (*events, *rescues)), None)
    else:
        last_epoch, draw_seed = result["n_epochs"], result["draw_seed"]
        if result["ep_len"] > last_epoch:
            finish_step = result["step"]  # it trained no epoch
    facts: dict[str, Any] = json.loads((ended and ended.facts) or "{}")
    numbers = {name: finite(value) for name, value in facts.items()}
    steps = [describe_step(record, names, finish_step) for record in records]
    return {
        "env": env,
        "episode": episode,
        "draw_seed": draw_seed,
        "is_over": result is not None,
        "has_steps": bool(steps),
        "n_epochs_max": n_epochs_max,
        "problem": ended and ended.title,
        "settings": ended and _describe_settings(ended, numbers),
        "facts": numbers,
        "no_growth_scores": _scores(ended and ended.no_growth_scores),
        "schedule_scores": _scores(ended and ended.schedule_scores),
        "reward": config and config.rewards.reward,
        "result": result,
        "slots": names.slots,
        "steps": steps,
        "events": [_event(one, finish_step) for one in events],
        "bars": make_bars(
            events, steps, names.slots, last_epoch=last_epoch, finish_step=finish_step
        ),
        "governor": [{"epoch": g.epoch, "step": g.step, "reason": g.reason} for g in rescues],
        "host_parameters": None if result is None else result["host_parameters"],
    }


def _scores(text: str | None) -> list[float | None]:
    """Return the recorded scores, or an empty list."""
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


def _event(record: SeedEventRecord, finish_step: int | None) -> Row:
    names = ("epoch", "step", "slot", "from_stage", "to_stage")
    return {
        **{name: getattr(record, name) for name in names},
        "decided_after": _epochs_before(record, finish_step),
        "blueprint": record.blueprint or None,
        "alpha": finite(record.alpha),
        "contribution": finite(record.contribution),
    }


def shown_episodes(telemetry: RunTelemetry) -> list[Row]:
    """Return a typical and the best episode of the last sixth of training, once if they are one.

    Each has a ``title`` and its ``detail``. Earlier episodes would show a controller that has not
    learned yet.
    """
    with telemetry.snapshot():
        ((last,),) = telemetry.select("SELECT max(round) FROM episodes")
        if last is None:
            return []
        since = 5 * last // 6 + 1
        found: dict[tuple[int, int], str] = {}
        for order in ("typical", "best"):
            chosen = episode_list(telemetry, order=order, first_round=since, limit=1)
            for one in chosen["episodes"]:
                found.setdefault((one["env"], one["episode"]), order.capitalize())
        details = [(episode_detail(telemetry, *place), kind) for place, kind in found.items()]
    return [
        {
            "title": f"{kind} episode since round {since}: environment {detail['env']}, "
            f"episode {detail['episode']}",
            "detail": detail,
        }
        for detail, kind in details
        if detail is not None
    ]

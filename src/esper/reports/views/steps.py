"""The steps of an episode: what was decided, with which probabilities, and what came of it."""

from __future__ import annotations

import json
from typing import Any, TypedDict

from esper.errors import TelemetryError
from esper.lifecycle.stages import Stage
from esper.reports.views.facts import Names
from esper.reports.views.plain import finite
from esper.telemetry.probabilities import unpack_probabilities
from esper.telemetry.records import StepRecord


class SlotState(TypedDict):
    """A slot after a step."""

    stage: str
    blueprint: str | None
    alpha: float | None
    contribution: float | None
    parameters: int | None


class Terms(TypedDict):
    """What a reward is the sum of."""

    progress: float | None
    settlement: float | None
    flops_cost: float | None
    rent: float | None
    penalty: float | None
    shaping: float | None


class Step(TypedDict):
    """One decision and its outcome; None is what was not recorded or is not finite."""

    epoch: int
    step: int
    round: int
    op: str
    op_done: str
    is_illegal: bool
    refusal: str | None
    slot: str | None
    """The slot that was acted on, if the op reads it."""
    blueprint: str | None
    """The blueprint that was chosen, if the op reads it."""
    choices: dict[str, int]
    relevant: list[str]
    """The heads that the op reads; all heads if the run did not record which."""
    probabilities: dict[str, list[float | None]] | None
    """Of each head's choices; None for a choice that was not legal."""
    reward: float | None
    terms: Terms
    score: float | None
    flops: float | None
    value: float | None
    log_prob: float | None
    slots: list[SlotState]


def describe_step(record: StepRecord, names: Names) -> Step:
    """Return a step with names in the place of indices."""
    op = named(names.ops, record.op)
    reads = names.reads.get(op)
    is_read = set(reads or ())
    return {
        "epoch": record.epoch,
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
        "slots": read_slots(record.slots, names.blueprints),
    }


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
            f"a step's probabilities do not fit the run's heads: {error} The database is damaged."
        ) from error


def read_slots(text: str, blueprints: list[str]) -> list[SlotState]:
    """Return the slots that a step's record tells of."""
    # NumPy writes what is not finite in another way than JSON's readers take.
    values: list[list[Any]] = json.loads(text.replace("nan", "NaN").replace("inf", "Infinity"))
    return [
        {
            "stage": Stage(stage).name.lower(),
            "blueprint": None if blueprint < 0 else named(blueprints, blueprint),
            "alpha": finite(alpha),
            "contribution": finite(contribution),
            "parameters": more[0] if more else None,
        }
        for stage, blueprint, alpha, contribution, *more in values
    ]


def named(names: list[str], index: int) -> str:
    """Return the name at an index, or the index itself if there is none."""
    return names[index] if 0 <= index < len(names) else str(index)

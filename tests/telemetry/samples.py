"""Records to write in tests."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from esper.telemetry import RunTelemetry, TelemetryWriter, open_run
from esper.telemetry.records import (
    NoticeRecord,
    Record,
    RecordColumns,
    SessionRecord,
    StepRecord,
)

FILE = "telemetry.sqlite"


def step(number: int, **changes: Any) -> StepRecord:
    """Return a step whose values follow from its number."""
    values: dict[str, Any] = {
        "round": number // 16,
        "step": number,
        "env": number % 4,
        "episode": 0,
        "epoch": number % 16,
        "slot": number % 3,
        "blueprint": 2,
        "style": 1,
        "tempo": 0,
        "alpha_target": 2,
        "alpha_speed": 3,
        "alpha_curve": 4,
        "op": number % 7,
        "op_done": 0,
        "is_illegal": number % 2 == 0,
        "refusal": None,
        "reward": number * 0.1,
        "progress": 0.25,
        "settlement": 0.0,
        "flops_cost": -1e-3,
        "rent": -1e-5,
        "penalty": 0.0,
        "shaping": 1e300,
        "score": 0.5,
        "flops": 1e-300,
        "value": number / 3,
        "log_prob": -1.5,
        "slots": "[[0, -1, 0.0, 0.0, 0], [3, 1, 0.5, -0.001, 40]]",
        "probabilities": None,
    }
    return StepRecord(**(values | changes))


def notice(number: int, message: str = "something") -> NoticeRecord:
    return NoticeRecord(round=number, kind="test", message=message)


def example(kind: type[Any], **changes: Any) -> Any:
    """Return a record of any type with a simple value in each field."""
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for place, field in enumerate(fields(kind)):
        plain = (typing.get_args(hints[field.name]) or (hints[field.name],))[0]
        simple = {int: place, float: place / 8, bool: True, str: "{}", bytes: b"\x00\xff"}
        values[field.name] = simple[plain]
    return kind(**(values | changes))


@contextmanager
def written(
    folder: Path, records: list[Record] | list[Record | RecordColumns]
) -> Iterator[RunTelemetry]:
    """Yield the telemetry of a folder after writing records to it."""
    with TelemetryWriter(folder / FILE) as writer:
        writer.write_many(records)
    with open_run(folder) as telemetry:
        yield telemetry


def seqs(telemetry: RunTelemetry, kinds: tuple[type[Any], ...]) -> list[int]:
    """Return the numbers of all rows of some types, in order."""
    assert SessionRecord not in kinds
    return sorted(seq for kind in kinds for seq in telemetry.columns(kind)["seq"])

"""Every kind of record, the tables that they are kept in, and the version of them all.

A record is a frozen dataclass of plain values: int, float, str, bytes, bool or None. Where a list
or a mapping is needed, it is JSON text.
"""

from __future__ import annotations

from esper.telemetry.episode_records import (
    EpisodeRecord,
    GovernorRecord,
    SeedEventRecord,
    StepRecord,
)
from esper.telemetry.learning_records import EvaluationRecord, RoundRecord, UpdateRecord
from esper.telemetry.run_records import NoticeRecord, RunRecord, SessionRecord

SCHEMA_VERSION = 3
"""Changes when a table or column does. Earlier ones can be read, and not written."""

Record = (
    RunRecord
    | RoundRecord
    | EpisodeRecord
    | StepRecord
    | SeedEventRecord
    | GovernorRecord
    | UpdateRecord
    | EvaluationRecord
    | NoticeRecord
)
"""What a run writes: rows that are numbered in the order of writing."""

RECORD_TYPES: tuple[type[Record], ...] = (
    RunRecord,
    RoundRecord,
    EpisodeRecord,
    StepRecord,
    SeedEventRecord,
    GovernorRecord,
    UpdateRecord,
    EvaluationRecord,
    NoticeRecord,
)
"""The types of :data:`Record`."""

TABLES: dict[str, type[Record] | type[SessionRecord]] = {
    kind.table: kind for kind in (*RECORD_TYPES, SessionRecord)
}
"""Every table's record type."""

__all__ = [
    "RECORD_TYPES",
    "SCHEMA_VERSION",
    "TABLES",
    "EpisodeRecord",
    "EvaluationRecord",
    "GovernorRecord",
    "NoticeRecord",
    "Record",
    "RoundRecord",
    "RunRecord",
    "SeedEventRecord",
    "SessionRecord",
    "StepRecord",
    "UpdateRecord",
]

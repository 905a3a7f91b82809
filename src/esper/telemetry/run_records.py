"""Records of a run as a whole: what it is, who worked on it, and what a person should know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from esper.telemetry.marks import added_field, clock_field


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """What a run is. There is one, and it is the first row."""

    table: ClassVar[str] = "runs"

    name: str = clock_field()
    """The run's name."""
    task: str
    """What hosts learn."""
    config: str
    """The whole configuration, as TOML."""
    slots: str
    """Names of the hosts' slots, in the order of the slot head: a JSON list."""
    blueprints: str
    """Names of the blueprints, in the order of the blueprint head: a JSON list."""
    heads: str
    """Names of the heads of an action: a JSON list."""
    ops: str
    """Names of the ops, in the order of the op head: a JSON list."""
    esper_version: str = clock_field()
    """The version of Esper that began the run."""
    created_at: str = clock_field()
    """When the run began, in ISO 8601 with its time zone."""
    choices: str | None = added_field(since=3)
    """What the choices of each head are called: a JSON object of lists, by head."""
    reads: str | None = added_field(since=3)
    """The heads that each op reads: a JSON object of lists, by op."""
    host: str | None = added_field(since=3)
    """The parts of the task's host in their order: a JSON list of objects with ``name``, ``kind``,
    ``parameters`` and ``slot``, which is null but for a slot; and ``first_env``, the environment
    from which on hosts have this part, where there are several kinds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionRecord:
    """One process that worked on the run. A resumed run has several; none is ever taken back."""

    table: ClassVar[str] = "sessions"

    pid: int
    """The process."""
    started_at: str
    """When it began, in ISO 8601 with its time zone."""
    ended_at: str | None
    """When it ended; none while it runs, or if it was killed."""
    outcome: str | None
    """``done``, ``interrupted`` or ``failed``; none while it runs, or if it was killed."""
    message: str | None
    """What there is to say about how it began and ended."""
    first_round: int
    """The round that it began or went on with."""
    threads: int
    """Threads of PyTorch."""
    torch_version: str
    """The version of PyTorch."""
    python_version: str
    """The version of Python."""
    esper_version: str
    """The version of Esper."""
    platform: str
    """The operating system and the processor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NoticeRecord:
    """Something that a person should know, such as that the run stopped early."""

    table: ClassVar[str] = "notices"

    round: int
    """The round in which it happened."""
    kind: str
    """What sort of thing it is, in a word or two."""
    message: str
    """The thing itself, in a sentence."""

"""Views of a run for pipes and programs: a line for each round, one line in all, or JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from esper.cli import words
from esper.cli.view_state import ViewState
from esper.telemetry.records import (
    EvaluationRecord,
    GovernorRecord,
    NoticeRecord,
    Record,
    RoundRecord,
    UpdateRecord,
)

EVENTS: dict[type[Record], str] = {
    RoundRecord: "round",
    UpdateRecord: "update",
    EvaluationRecord: "evaluation",
    GovernorRecord: "governor",
    NoticeRecord: "notice",
}
"""The records that are printed as JSON, and what they are called there."""

_JSON_FIELDS = (
    "seconds_by_part",
    "approx_kl_by_head",
    "clip_fraction_by_head",
    "entropy_by_head",
    "ops",
)
Print = Callable[[str], None]


class LineView:
    """A sink that prints a line when a round is complete: its record and its update's."""

    def __init__(self, state: ViewState, write_line: Print) -> None:
        self._state = state
        self._print = write_line
        self._waiting: RoundRecord | None = None
        config = state.config
        write_line(
            f"training on {config.task}: {config.rounds} rounds, "
            f"{config.envs} hosts, {config.n_steps} steps of each"
        )

    def write(self, record: Record) -> None:
        """Take a record, and print what it completes."""
        self._state.take(record)
        if isinstance(record, RoundRecord):
            self._flush()
            self._waiting = record
        if isinstance(record, (RoundRecord, UpdateRecord)):
            update = self._state.update
            if self._waiting and update and update.round == self._waiting.round:
                self._flush()
        elif isinstance(record, EvaluationRecord):
            self._flush()
            label = "compared" if record.purpose == "final" else "held out"
            said = words.evaluation_words(record)
            self._print(f"  {label} after round {record.round}, {said}")
        elif isinstance(record, NoticeRecord):
            self._print(f"  round {record.round}: {record.message}")

    def close(self) -> None:
        """Print the round that is waiting for its update, if there is one."""
        self._flush()

    def _flush(self) -> None:
        if self._waiting is not None:
            self._print(round_line(self._state, self._waiting))
            self._waiting = None


class QuietView:
    """A sink that prints one line in the end."""

    def __init__(self, state: ViewState, write_line: Print) -> None:
        self._state = state
        self._print = write_line
        self._is_closed = False

    def write(self, record: Record) -> None:
        """Take a record."""
        self._state.take(record)

    def close(self) -> None:
        """Print how the run went, once; nothing if no round was completed."""
        if not self._is_closed and self._state.round is not None:
            self._print(summary_line(self._state))
        self._is_closed = True


class JsonView:
    """A sink that prints a JSON object for each round, update, evaluation, rescue and notice."""

    def __init__(self, state: ViewState, write_line: Print) -> None:
        self._state = state
        self._print = write_line
        self._is_closed = False

    def write(self, record: Record) -> None:
        """Print a record, if it is one of those."""
        self._state.take(record)
        event = EVENTS.get(type(record))
        if event is not None:
            self._print(json_line(event, asdict(record)))

    def close(self) -> None:
        """Print that the process is at its end, once, and how far the run is."""
        if not self._is_closed:
            done = self._state.round.round if self._state.round else 0
            facts = {"round": done, "rounds": self._state.config.rounds}
            self._print(json_line("end", facts | {"seconds": self._state.seconds}))
        self._is_closed = True


def round_line(state: ViewState, row: RoundRecord) -> str:
    """Return one round in one line."""
    left = state.seconds_left
    parts = [
        f"round {row.round}/{state.config.rounds}",
        f"{words.count(row.steps_per_second)} env-steps/s",
        f"{words.UNKNOWN if left is None else words.duration(left)} left",
        f"return {words.number(row.ep_rew_mean)}",
        f"score {words.score_words(row)}",
        words.parameter_words(row),
        words.op_words(row),
    ]
    update = state.update
    if update is not None and update.round == row.round:
        parts.append(f"KL {words.number(update.approx_kl, 4)}")
        parts.append(f"entropy {words.number(update.entropy, 2)}")
        parts += ["stopped early"] * update.stopped_early
        parts += [f"update refused: {update.refusal}"] * update.was_refused
    if row.n_restored:
        parts.append(f"the governor put back {row.n_restored}")
    return "  ".join(parts)


def summary_line(state: ViewState) -> str:
    """Return how a run went in one line: the comparison at the end, or the last round."""
    assert state.round is not None, "a summary is of a round or more"
    head = f"{state.config.task}, {state.round.round} rounds, {words.duration(state.seconds)}"
    if state.finals:
        arms = [f"{arm} {final.ep_rew_mean:.3f}" for arm, final in state.finals.items()]
        n_episodes = next(iter(state.finals.values())).n_episodes
        return f"{head}: return on {n_episodes} held-out hosts {', '.join(arms)}"
    return f"{head}: return {words.number(state.round.ep_rew_mean)} in the last round"


def json_line(event: str, facts: dict[str, Any]) -> str:
    """Return an event as JSON in one line; a number that is not finite is null."""
    plain = {name: _plain(name, value) for name, value in facts.items()}
    return json.dumps({"event": event} | plain, ensure_ascii=False)


def _plain(name: str, value: Any) -> Any:
    if name in _JSON_FIELDS and isinstance(value, str):
        return {key: _plain("", item) for key, item in json.loads(value or "{}").items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value

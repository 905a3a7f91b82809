"""What the controller chose against what was carried out, by op."""

from __future__ import annotations

from typing import TypedDict

from esper.reports.views.run import names_of, run_of, settings_of
from esper.telemetry import RunTelemetry

MOST_STEPS = 100_000
"""Latest steps that are counted by op; counting all of a long run takes too long."""

N_REASONS = 5
"""Most frequent reasons of gates that are listed."""


class OpOutcome(TypedDict):
    """How often an op was chosen, and what became of it."""

    op: str
    chosen: int
    done: int
    """Steps in which the op was performed; one that is refused or illegal becomes a wait."""
    refused: int
    illegal: int


class Refusal(TypedDict):
    """A reason for which gates refused actions."""

    reason: str
    count: int


class CarriedOut(TypedDict):
    """The outcome of the latest steps, by op."""

    first_round: int | None
    last_round: int | None
    n_steps: int
    """0 if steps are not recorded."""
    ops: list[OpOutcome]
    """In the order of the op head, without those never chosen or performed."""
    reasons: list[Refusal]
    """Most frequent first."""


def carried_out(telemetry: RunTelemetry) -> CarriedOut:
    """Return what became of the actions that were chosen in the latest steps of whole rounds."""
    with telemetry.snapshot():
        run = run_of(telemetry)
        n_envs = 1 if run is None else settings_of(run).envs
        (last_round,) = telemetry.select("SELECT max(round) FROM rounds")[0]
        (last_step,) = telemetry.select("SELECT max(step) FROM steps")[0]
        since = (last_step or 0) - max(1, MOST_STEPS // n_envs)
        bounds = {"since": since, "last": last_round or 0}
        chosen = "FROM steps WHERE step > :since AND round <= :last"
        rows = telemetry.select(
            "SELECT op, op_done, is_illegal, refusal IS NOT NULL, min(round), max(round), count(*) "
            f"{chosen} GROUP BY 1, 2, 3, 4",
            **bounds,
        )
        reasons = telemetry.select(
            f"SELECT refusal, count(*) {chosen} AND refusal IS NOT NULL "
            "GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT :n",
            **bounds,
            n=N_REASONS,
        )
    counted: dict[int, OpOutcome] = {}
    names = names_of(run).ops

    def outcome(op: int) -> OpOutcome:
        name = names[op] if 0 <= op < len(names) else str(op)
        empty: OpOutcome = {"op": name, "chosen": 0, "done": 0, "refused": 0, "illegal": 0}
        return counted.setdefault(op, empty)

    for op, done, is_illegal, is_refused, _, _, n in rows:
        outcome(op)["chosen"] += n
        outcome(done)["done"] += n
        outcome(op)["illegal"] += n if is_illegal else 0
        outcome(op)["refused"] += n if is_refused and not is_illegal else 0
    return {
        "first_round": min((row[4] for row in rows), default=None),
        "last_round": max((row[5] for row in rows), default=None),
        "n_steps": sum(row[6] for row in rows),
        "ops": [counted[op] for op in sorted(counted)],
        "reasons": [{"reason": reason, "count": n} for reason, n in reasons],
    }

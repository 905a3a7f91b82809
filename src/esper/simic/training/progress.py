"""How far a run is, in plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

Phase = Literal["starting", "collecting", "evaluating", "done"]


@dataclass
class Progress:
    """Where a run is, and what its next decisions depend on besides tensors."""

    phase: Phase = "starting"
    """What is done next: the first look at the hosts, a rollout, an evaluation, or nothing."""

    round: int = 0
    """Rounds whose update is done."""

    step: int = 0
    """Steps of all environments, counted as one."""

    n_updates: int = 0
    """Updates that were not refused."""

    refusals_in_a_row: int = 0
    """Updates that were refused since the last that was not."""

    static_score: float | None = None
    """Mean score of hosts left alone, on the draws of evaluations."""

    fixed_return: float | None = None
    """Mean return of the fixed schedule there."""

    fixed_stops: list[int] = field(default_factory=list[int])
    """Epochs after which it stops the hosts of each of the run's tasks; none before it is tried."""

    passed_round: int | None = None
    """The round after which an evaluation first had a higher return than the fixed schedule."""

    best_return: float | None = None
    """Mean return of the best evaluation."""

    best_round: int | None = None
    """The round after which that was."""

    evaluations_since_best: int = 0

    telemetry_position: int = 0
    """Records that were written."""

    def to_facts(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)

    def load_facts(self, facts: dict[str, Any]) -> None:
        """Take over what :meth:`to_facts` gave."""
        for one in fields(self):
            setattr(self, one.name, facts[one.name])

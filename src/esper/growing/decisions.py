"""What a Grower decided after each epoch, and the trace of a whole training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, overload

from esper.formatting import share


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The end of an epoch: how the model did, and what was decided for the next epoch.

    Printing it gives one line.
    """

    epoch: int
    """Epochs trained."""
    epochs: int
    """Epochs of the budget."""
    train_loss: float | None
    val_loss: float | None
    score: float
    """The given score, or how much lower the validation loss is than at first, as a share."""
    op: str
    """What was done: ``wait``, ``germinate``, ``advance``, ``prune``, ..., or ``finish``."""
    slot: str = ""
    """Where; empty for none."""
    blueprint: str = ""
    """What germinated; empty for none."""
    why: str = ""
    """Why a gate refused, the governor rolled back or growth has ended; empty otherwise."""
    probabilities: dict[str, float] = field(default_factory=dict[str, float])
    """How likely the controller made each legal op; empty for a controller of rules."""
    parameters: int
    """Parameters of the model now, seeds included."""
    seed_parameters: int
    """Parameters of what was grown."""
    flops: float
    """FLOPs of training so far, relative to training the given model for all epochs."""
    stages: dict[str, str] = field(default_factory=dict[str, str])
    """The stage of each slot that is not dormant."""
    alphas: dict[str, float] = field(default_factory=dict[str, float])
    """The alpha of each of these slots."""
    contributions: dict[str, float] = field(default_factory=dict[str, float])
    """Score with each held seed minus without it, where that was measured."""

    @property
    def should_stop(self) -> bool:
        """Whether the controller ended the training, or the budget is used up."""
        return self.op == "finish" or self.epoch >= self.epochs

    def __str__(self) -> str:
        did = self.op
        if self.blueprint:
            did += f" {self.blueprint} in {self.slot}"
        elif self.slot:
            did += f" {self.slot}"
        if self.op in self.probabilities:
            did += f" ({share(self.probabilities[self.op])})"
        growing = [
            f"{slot} {stage}" + (f" {self.alphas[slot]:.2g}" if stage == "blending" else "")
            for slot, stage in self.stages.items()
        ]
        parts = [
            f"epoch {self.epoch}/{self.epochs}",
            f"score {self.score:.4g}",
            did,
            *([f"because {self.why}"] if self.why else []),
            *([", ".join(growing)] if growing else []),
            f"{self.parameters:,} parameters",
            f"{share(self.flops)} of the FLOPs",
        ]
        return "  ".join(parts)


class Trace(Sequence[Decision]):
    """All decisions of a training, in order."""

    def __init__(self, decisions: Sequence[Decision] = ()) -> None:
        self._decisions = list(decisions)

    def __len__(self) -> int:
        return len(self._decisions)

    @overload
    def __getitem__(self, index: int) -> Decision: ...
    @overload
    def __getitem__(self, index: slice) -> Trace: ...
    def __getitem__(self, index: int | slice) -> Decision | Trace:
        if isinstance(index, slice):
            return Trace(self._decisions[index])
        return self._decisions[index]

    def __str__(self) -> str:
        return "\n".join(map(str, self._decisions))

    def append(self, decision: Decision) -> None:
        """Add the decision of the next epoch."""
        self._decisions.append(decision)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the decisions as JSON values."""
        return [asdict(decision) for decision in self._decisions]

    @classmethod
    def from_json(cls, values: Sequence[dict[str, Any]]) -> Trace:
        """Return the trace that :meth:`to_json` wrote."""
        known = {one.name for one in fields(Decision)}
        return cls([Decision(**{k: v for k, v in row.items() if k in known}) for row in values])

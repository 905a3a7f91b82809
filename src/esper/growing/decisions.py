"""What was decided after each epoch, and the trace of a whole training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, overload

from esper.formatting import (
    UNKNOWN,
    html_lines,
    html_table,
    many,
    number,
    share,
    since_epoch,
    whole,
    without_empty,
)
from esper.lifecycle.factored_actions import WAIT, Op, decode_action
from esper.lifecycle.slot_arrays import SlotArrays
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.slot_state import SlotState
from esper.tamiyo import Controller
from esper.tamiyo.controllers.learned import expected_return, expects_gain, op_probabilities

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The end of an epoch: how the model did, and what was decided for the next epoch.

    A timeline of a grown model shows each decision with the epoch that follows it: how the model
    did after that epoch. Printing a decision gives one line.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x, y = torch.randn(80, 4), torch.randint(3, (80,))
        >>> data = (x[:60], y[:60]), (x[60:], y[60:])
        >>> grown = esper.grow(model, *data, epochs=4, controller="heuristic", progress=False)
        >>> grown.trace[0].epoch
        0
    """

    epoch: int
    """Epochs trained; 0 before the first."""
    epochs: int
    """Epochs of the budget."""
    train_loss: float | None
    val_loss: float | None
    score: float
    """The given score, or how much lower the validation loss is than at first, as a share."""
    op: str
    """What was done: ``wait``, ``germinate``, ``advance``, ``prune``, ..., or ``finish``; in a race
    of sizes ``stop`` if sizes have lost."""
    slot: str = ""
    """Where, or which sizes; empty for none."""
    blueprint: str = ""
    """What germinated; empty for none."""
    why: str = ""
    """Why a gate refused, the governor rolled back or growth has ended; empty otherwise."""
    probabilities: dict[str, float] = field(default_factory=dict[str, float])
    """How likely the controller made each legal op; empty for a controller of rules."""
    choices: list[int] = field(default_factory=list[int])
    """What the controller chose in each head of its action; empty if it was not asked."""
    value: float | None = None
    """The return that the controller expected from here on, in score: the final score minus what
    it has gained so far and the costs to come. None without an estimate."""
    is_gain: bool = False
    """Whether ``value`` is relative to training the same model with no growth, which is what a
    controller expects that was trained with paired rewards."""
    parameters: int
    """Parameters of the model now, seeds included."""
    seed_parameters: int
    """Parameters of what was grown."""
    flops: float
    """FLOPs of training so far, relative to training the given model for all epochs."""
    slots: dict[str, SlotState] = field(default_factory=dict[str, SlotState])
    """The slots in which something grows or has grown."""
    lanes: dict[str, float] = field(default_factory=dict[str, float])
    """In a race of sizes, the score of each size that trained in this epoch. The other numbers are
    those of the leading size, the smallest one within the tolerance of the best."""

    @property
    def should_stop(self) -> bool:
        """Whether the controller ended the training, or the budget is used up."""
        return self.op == "finish" or self.epoch >= self.epochs

    @property
    def action(self) -> str:
        """What was done and where, such as ``germinate widen in blocks.0``."""
        if self.blueprint:
            return f"{self.op} {self.blueprint} in {self.slot}"
        return f"{self.op} {self.slot}" if self.slot else self.op

    @property
    def stages(self) -> dict[str, str]:
        """The stage of each slot that is not dormant."""
        return {name: slot.stage for name, slot in self.slots.items() if not slot.is_dormant}

    @property
    def alphas(self) -> dict[str, float]:
        """The alpha of each of these slots."""
        return {name: slot.alpha for name, slot in self.slots.items() if not slot.is_dormant}

    @property
    def contributions(self) -> dict[str, float]:
        """Score with each seed minus without it, as last measured, where it was measured."""
        found = {name: slot.contribution for name, slot in self.slots.items()}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def growing(self) -> str:
        """What the slots that are not dormant hold; empty for none."""
        alphas = self.alphas
        return ", ".join(
            f"{slot} {stage}" + (f" {alphas[slot]:.2g}" if stage == "blending" else "")
            for slot, stage in self.stages.items()
        )

    def to_json(self) -> dict[str, Any]:
        """Return the decision as JSON values."""
        slots = {name: slot._asdict() for name, slot in self.slots.items()}
        return {**vars(self), "slots": slots}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Decision:
        """Return the decision that :meth:`to_json` wrote."""
        slots = {name: SlotState(**slot) for name, slot in values["slots"].items()}
        return replace(cls(**values), slots=slots)

    def __str__(self) -> str:
        if self.lanes:
            scores = [f"{name} {score:.4g}" for name, score in self.lanes.items()]
            stops = [f"{self.action} ({self.why})"] * (self.op != "wait")
            flops = f"{share(self.flops)} of the FLOPs of no growth"
            epoch = f"{since_epoch(self.epoch)} of {self.epochs}"
            return "  ".join([epoch, *scores, *stops, flops])
        odds = self.probabilities.get(self.op)
        parts = [
            f"{since_epoch(self.epoch)} of {self.epochs}",
            f"score {self.score:.4g}",
            self.action if odds is None else f"{self.action} ({share(odds)})",
            *([f"({self.why})"] if self.why else []),
            *([self.growing] if self.growing else []),
            f"{self.parameters:,} parameters",
            f"{share(self.flops)} of the FLOPs",
        ]
        return "  ".join(parts)

    def __repr__(self) -> str:
        return f"Decision({self})"

    def _repr_html_(self) -> str:
        return Trace([self]).to_html()


def decision_of(
    controller: Controller | None,
    op: Op,
    choices: list[int],
    slots: SlotArrays,
    config: SlotConfig,
    **facts: Any,
) -> Decision:
    """Return what was done with the only host, with facts about it.

    Args:
        controller: The controller, after it chose; None if it was not asked.
        op: What was done.
        choices: The choice of each head; empty if the controller was not asked.
        slots: The slots of the host.
        config: Their names and blueprints.
        facts: The other fields.
    """
    action = decode_action(choices, config) if choices else WAIT
    return Decision(
        op=op.name.lower(),
        slot="" if op in (Op.WAIT, Op.FINISH) else action.slot,
        blueprint=action.blueprint if op is Op.GERMINATE else "",
        probabilities={} if controller is None else op_probabilities(controller),
        choices=choices,
        value=None if controller is None else expected_return(controller),
        is_gain=controller is not None and expects_gain(controller),
        seed_parameters=int(slots.grown_parameters.sum()),
        slots=slots.states(0, config),
        **facts,
    )


OnStep = Callable[[Decision], None]
"""Called after each epoch with the decision before it and how the model did after it."""


def ignore_step(_: Decision) -> None:
    """Do nothing after an epoch."""


def end_note(epoch: int) -> str:
    """Return that a training has ended, and which epoch is kept; 0 is the given model."""
    return f"the end; epoch {epoch} is kept" if epoch else "the end; the given model is kept"


MAX_ROWS = 40
"""Epochs from which on a table leaves out those in which nothing was done."""

_HEADINGS = (
    "when",
    "decision",
    "probability",
    "why",
    "growing",
    "score",
    "training loss",
    "validation loss",
    "parameters",
    "FLOPs",
)
_WORDS = _HEADINGS[:5]
"""Columns of words, which come first; the others hold numbers."""


def _cells(one: Decision) -> tuple[str, ...]:
    odds = one.probabilities.get(one.op)
    return (
        f"{since_epoch(one.epoch)} of {one.epochs}",
        one.action,
        UNKNOWN if odds is None else share(odds),
        one.why,
        one.growing,
        number(one.score, 4),
        number(one.train_loss, 4),
        number(one.val_loss, 4),
        whole(one.parameters),
        share(one.flops),
    )


class Trace(Sequence[Decision]):
    """All decisions of a training, in order.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x, y = torch.randn(80, 4), torch.randint(3, (80,))
        >>> data = (x[:60], y[:60]), (x[60:], y[60:])
        >>> grown = esper.grow(model, *data, epochs=4, controller="heuristic", progress=False)
        >>> len(grown.trace)
        5
    """

    def __init__(self, decisions: Sequence[Decision] = ()) -> None:
        self._decisions = list(decisions)

    def __len__(self) -> int:
        return len(self._decisions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trace) and self._decisions == other._decisions

    __hash__ = None  # pyright: ignore[reportAssignmentType] - it can be changed

    @overload
    def __getitem__(self, index: int) -> Decision: ...
    @overload
    def __getitem__(self, index: slice) -> Trace: ...
    def __getitem__(self, index: int | slice) -> Decision | Trace:
        if isinstance(index, slice):
            return Trace(self._decisions[index])
        return self._decisions[index]

    @property
    def expected(self) -> float | None:
        """The final score minus costs that the controller expected before the first epoch.

        If ``trace[0].is_gain``, it is how much more that is than with no growth. None for a
        controller of rules, and if the first decision was made after an epoch.
        """
        return self[0].value if self and self[0].epoch == 0 else None

    def __str__(self) -> str:
        return "\n".join(map(str, self._decisions))

    def __repr__(self) -> str:
        return f"Trace of {many(len(self), 'decision')}\n{self}"

    def figure(self, *, title: str = "") -> Figure:
        """Return a matplotlib figure: the score, the seeds of each slot, and the parameters.

        Raises:
            ConfigError: If matplotlib is not installed.
        """
        from esper.dashboard.figures import plot_trace

        return plot_trace(self, title=title)

    def to_html(self) -> str:
        """Return the decisions as a table in HTML for a notebook.

        Of a long training, only epochs in which something was done or happened are listed.
        """
        if not self:
            return html_lines(["Nothing has been decided yet."])
        shown = self._decisions
        if len(shown) > MAX_ROWS:
            ends = (shown[0], shown[-1], max(shown, key=lambda one: one.score))
            shown = [one for one in shown if one.op != "wait" or one.why or one in ends]
        left_out = len(self) - len(shown)
        caption = f"{left_out} of {len(self)} epochs, in which the controller waited, are left out."
        table = html_lines([caption] if left_out else [])
        headings, rows = without_empty(_HEADINGS, map(_cells, shown))
        n_left = sum(heading in _WORDS for heading in headings)
        return table + html_table(headings, rows, n_left=n_left)

    def _repr_html_(self) -> str:
        from esper.dashboard.figures import figure_html

        return (figure_html(self.figure) if self else "") + self.to_html()

    def append(self, decision: Decision) -> None:
        """Add the decision of the next epoch."""
        self._decisions.append(decision)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the decisions as JSON values."""
        return [decision.to_json() for decision in self._decisions]

    @classmethod
    def from_json(cls, values: Sequence[dict[str, Any]]) -> Trace:
        """Return the trace that :meth:`to_json` wrote."""
        return cls([Decision.from_json(row) for row in values])

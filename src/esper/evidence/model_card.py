"""The model card of a saved controller: what it is, what it was shown to do, what not.

It is one page: every number comes from the controller's own file or from results.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from esper.errors import EvidenceError
from esper.evidence.claims import Finding, weigh
from esper.evidence.files import EvidenceFile
from esper.evidence.results import Evidence, Kind
from esper.evidence.text import Table
from esper.formatting import at_price, listed, many
from esper.statistics import Interval
from esper.storage.files import parse_json
from esper.training.comparison import LABELS, Comparison

NOT_EVALUATED = "It has not been evaluated, so nothing is known about its performance."
FIGURE_FILE = "results.png"
MOST_ROWS = 10
"""Rows of the card's table; further comparisons are counted."""

Verdict = Literal["yes", "no", "worse"]
"""Whether a claim was reached; "worse" if the opposite was shown."""


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """A claim about a controller, what was measured, and whether it was reached.

    Raises:
        EvidenceError: If a value is invalid.
    """

    claim: str
    """What was to be shown, such as "a better score on `spirals` at price 0.1"."""
    against: str
    """What it was compared with, such as "the tuned heuristic"."""
    result: float
    """The difference, in units of ``unit``; positive in favor of the controller."""
    interval: tuple[float, float]
    """Both ends of its 95% confidence interval."""
    verdict: Verdict
    unit: str = "points"

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict):
            allowed = ", ".join(get_args(Verdict))
            raise EvidenceError(f"verdict is {self.verdict!r}; it must be one of {allowed}.")
        if not all(math.isfinite(number) for number in (self.result, *self.interval)):
            raise EvidenceError(
                f"the result of {self.claim!r} against {self.against!r} is {self.result} "
                f"{list(self.interval)}; it must be finite."
            )

    @property
    def measured(self) -> str:
        """The result with its interval, such as ``+1.6 [0.5, 2.8] points``."""
        mean, low, high = (round(end, 1) + 0.0 for end in (self.result, *self.interval))
        return f"{mean:+.1f} [{low:.1f}, {high:.1f}] {self.unit}"


def read_claims(text: str | bytes, *, name: str = "the file") -> list[ClaimRow]:
    """Return the claims of a file: one written by an evaluation, or a JSON list of claims.

    A claim is an object with ``claim``, ``against``, ``result``, ``interval`` (two numbers),
    ``verdict`` (yes, no or worse) and optionally ``unit``.

    Args:
        text: Text of the file.
        name: Name of the file, for error messages.

    Raises:
        EvidenceError: If the file is neither.
    """
    try:
        values: object = parse_json(text)
    except ValueError as error:
        raise EvidenceError(f"{name} cannot be read: {error}.") from error
    if not isinstance(values, list):
        return claims_of_evaluation(EvidenceFile.from_text(text, name=name))
    try:
        return [_read_claim(each) for each in cast("list[Any]", values)]
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(
            f"{name} has a claim that cannot be read ({error}); a claim has claim, against, "
            "result, interval, verdict and optionally unit."
        ) from error


def _read_claim(values: Any) -> ClaimRow:
    low, high = values["interval"]
    numbers: dict[str, Any] = {
        "result": float(values["result"]),
        "interval": (float(low), float(high)),
    }
    return ClaimRow(**{**values, **numbers})


def claims_of_evaluation(file: EvidenceFile) -> list[ClaimRow]:
    """Return the comparisons of an evaluation as claims, those with tuned arms first.

    The same controller acting in its other mode is no rival, so it is left out.
    """
    rows: list[ClaimRow] = []
    for evidence in file.entries:
        rivals = [one for one in weigh(evidence) if one.kind in _ORDER]
        rivals.sort(key=lambda one: _ORDER.index(one.kind))
        rows += [_row(evidence, finding) for finding in rivals]
    return rows


def claims_of_run(comparison: Comparison) -> list[ClaimRow]:
    """Return the comparison at the end of a run as claims."""
    claim = f"a higher return on {many(comparison.n_hosts, 'held-out host')}"
    return [
        _claim(claim, LABELS.get(one.against, one.against), one.ep_rew, _verdict(one.ep_rew))
        for one in comparison.differences
    ]


_ORDER: tuple[Kind, ...] = (
    "tuned",
    "same_epochs",
    "same_flops",
    "same_parameters",
    "simple",
    "ablation",
)
_CLAIMS: dict[Kind, str] = {
    "same_epochs": "the same accuracy with fewer FLOPs",
    "same_flops": "a better accuracy with as many FLOPs",
}


def _row(evidence: Evidence, finding: Finding) -> ClaimRow:
    options = "".join(f", {name} {value}" for name, value in evidence.task_options.items())
    runs = f", over {len(evidence.runs)} training runs" if len(evidence.runs) > 1 else ""
    price = at_price(evidence.price, evidence.learned_price)
    where = f"on {evidence.n_hosts} hosts of `{evidence.task}`{options}, {price}{runs}"
    is_accuracy = finding.kind in _CLAIMS
    return _claim(
        f"{_CLAIMS.get(finding.kind, 'a better score')} {where}",
        finding.label,
        finding.accuracy if is_accuracy else finding.score,
        "yes" if finding.is_claim else "worse" if finding.verdict == "worse" else "no",
    )


def _verdict(difference: Interval) -> Verdict:
    if difference.is_above_zero:
        return "yes"
    return "worse" if difference.is_below_zero else "no"


def _claim(claim: str, against: str, difference: Interval, verdict: Verdict) -> ClaimRow:
    mean, low, high = (100.0 * end for end in (difference.mean, difference.low, difference.high))
    return ClaimRow(
        claim=claim, against=against, result=mean, interval=(low, high), verdict=verdict
    )


def write_card(
    facts: Mapping[str, Any],
    rows: Sequence[ClaimRow] = (),
    *,
    figure: str = "",
    is_shipped: bool = False,
) -> str:
    """Return the card in Markdown.

    Args:
        facts: The contents of ``controller.json``.
        rows: What was measured. If there are too many for the table, each claim gets its share of
            it; claims that were not reached are all listed below.
        figure: Name of a picture of the rows in the same folder; empty for none.
        is_shipped: Whether it is the controller that ships with Esper.
    """
    parts = [
        f"# Controller {facts['name']}",
        _identity(facts),
        "## What it was shown to do",
        *(_shown(rows) if rows else [NOT_EVALUATED]),
        *([f"![Results with their 95% intervals]({figure})"] if figure else []),
        "## What was not shown",
        "\n".join([*_not_shown(rows), "- Anything about other tasks, models, data and budgets."]),
        "## How to use it",
        _usage(is_shipped=is_shipped),
    ]
    return "\n\n".join(parts) + "\n"


def _identity(facts: Mapping[str, Any]) -> str:
    origin, budget = facts["origin"], facts["budget"]
    what = (
        "A recurrent policy that decides after each epoch of a network's training whether to grow "
        f"it, where and how; trained by Esper {facts['esper']}."
    )
    if "command" not in origin:
        return f"{what} Its training is not recorded."
    options = "".join(f", {name} {value}" for name, value in origin["task_options"].items())
    n_epochs = origin["rounds"] * origin["envs"] * origin["n_steps"]
    price = ""
    if budget["flop_price"]:  # otherwise compute is free, or the task draws prices
        price = f" and a price of {budget['flop_price']:g} for the FLOPs of a reference run"
    if "lesson_hosts" in origin:
        what += (
            f" It first learned what growth is worth at any price from {origin['lesson_hosts']:,} "
            f"networks, each grown by {many(origin['lesson_schedules'], 'schedule')}."
        )
    return (
        f"{what} It learned by PPO on `{origin['task']}`{options}: {n_epochs:,} epochs of networks "
        f"in {many(origin['rounds'], 'round')}, with at most {many(budget['n_epochs'], 'epoch')} "
        f"for a network{price}. Of all rounds, the policy that did best on held-out networks was "
        "kept. To train it again:\n\n"
        f"```sh\n{origin['command']}\n```"
    )


def _shown(rows: Sequence[ClaimRow]) -> list[str]:
    table = Table(
        headers=("claim", "against", "result, 95% interval", "reached?"),
        rows=tuple(
            (row.claim, row.against, row.measured, row.verdict) for row in choose_rows(rows)
        ),
        n_left=2,
    )
    note = "Results are the controller minus what it is compared with; a point is 0.01 of score."
    if len(rows) > MOST_ROWS:
        note += f" {MOST_ROWS} of {len(rows)} comparisons are listed, chosen without their results."
    return [table.to_markdown(), note]


def choose_rows(rows: Sequence[ClaimRow]) -> list[ClaimRow]:
    """Return at most ``MOST_ROWS`` rows in their order: the first of each claim, then the second.

    What was measured plays no part in it.
    """
    seen = Counter[str]()
    turns: list[int] = []
    for row in rows:
        turns.append(seen[row.claim])
        seen[row.claim] += 1
    chosen = sorted(range(len(rows)), key=lambda number: turns[number])[:MOST_ROWS]
    return [rows[number] for number in sorted(chosen)]


def _not_shown(rows: Sequence[ClaimRow]) -> list[str]:
    """Return a line for each claim that was not reached against everything."""
    lines: list[str] = []
    for claim in dict.fromkeys(row.claim for row in rows if row.verdict != "yes"):
        own = [row for row in rows if row.claim == claim]
        found = {
            words: [row.against for row in own if row.verdict == verdict]
            for verdict, words in (("worse", "it is worse than"), ("no", "not shown against"))
        }
        said = [f"{words} {listed(names)}" for words, names in found.items() if names]
        lines.append(f"- {claim[:1].upper()}{claim[1:]}: {'; '.join(said)}.")
    return lines


def _usage(*, is_shipped: bool) -> str:
    how = (
        "`esper.grow(model, train_data, val_data)`, `esper.Grower(...)` and `esper grow` use it by "
        "default."
        if is_shipped
        else "Name this folder: `controller=` of `esper.grow` and `esper.Grower`, or `esper grow "
        "--controller`."
    )
    return f"{how} The weights are licensed like Esper, under MIT."

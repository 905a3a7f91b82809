"""The model card of a saved controller: what it is, what it was shown to do, what not.

It is one page: every number comes from the controller's own file or from results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from esper.formatting import listed, many
from esper.results.arms import Kind
from esper.results.evidence import Evidence
from esper.results.findings import weigh
from esper.results.sentences import where
from esper.results.tables import Table

NOT_EVALUATED = "It has not been evaluated, so nothing is known about its performance."
FIGURE_FILE = "results.png"
MAX_ROWS = 10
"""Rows of the card's table; further comparisons are counted."""

Verdict = Literal["yes", "no", "worse"]
"""Whether a claim was reached; "worse" if the opposite was shown."""


@dataclass(frozen=True, kw_only=True)
class ClaimRow:
    """A claim about a controller, what was measured, and whether it was reached."""

    claim: str
    """What was to be shown, such as "a higher return on `spirals` at price 0.1"."""
    against: str
    """What it was compared with, such as "the tuned heuristic"."""
    result: float
    """The difference, in units of ``unit``; positive in favor of the controller."""
    interval: tuple[float, float]
    """Both ends of its 95% confidence interval."""
    verdict: Verdict
    unit: str = "points"

    @property
    def measured(self) -> str:
        """The result with its interval, such as ``+1.6 [0.5, 2.8] points``."""
        mean, low, high = (round(end, 1) + 0.0 for end in (self.result, *self.interval))
        return f"{mean:+.1f} [{low:.1f}, {high:.1f}] {self.unit}"


_CLAIMS: dict[Kind, str] = {
    "tuned": "a higher return",
    "same_epochs": "as high a score with fewer FLOPs",
    "same_flops": "a higher score with as many FLOPs",
    "simple": "a higher return",
    "ablation": "a higher return",
}
"""What is claimed against each kind of arm, in the order of the card."""


def claims_of(evidence: Evidence) -> list[ClaimRow]:
    """Return the comparisons of an evaluation, or of the end of a run, as claims."""
    options = "".join(f", {name} {value}" for name, value in evidence.task_options.items())
    runs = f"over {len(evidence.runs)} training runs" if len(evidence.runs) > 1 else ""
    hosts = f"on {evidence.n_hosts} held-out hosts of `{evidence.task}`{options}"
    place = ", ".join(filter(None, (hosts, where(evidence), runs)))
    order = list(_CLAIMS)
    found = [one for one in weigh(evidence) if one.kind in order]
    return [
        ClaimRow(
            claim=f"{_CLAIMS[one.kind]} {place}",
            against=one.label,
            result=100.0 * one.difference.mean,
            interval=(100.0 * one.difference.low, 100.0 * one.difference.high),
            verdict=_REACHED.get(one.verdict, "yes"),
        )
        for one in sorted(found, key=lambda one: order.index(one.kind))
    ]


_REACHED: dict[str, Verdict] = {"worse": "worse", "not shown": "no"}


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
    note = "Results are the controller minus what it is compared with; a point is 0.01."
    if len(rows) > MAX_ROWS:
        note += f" {MAX_ROWS} of {len(rows)} comparisons are listed, chosen without their results."
    return [table.to_markdown(), note]


def choose_rows(rows: Sequence[ClaimRow]) -> list[ClaimRow]:
    """Return at most ``MAX_ROWS`` rows in their order: the first of each claim, then the second.

    What was measured plays no part in it.
    """
    seen = Counter[str]()
    turns: list[int] = []
    for row in rows:
        turns.append(seen[row.claim])
        seen[row.claim] += 1
    chosen = sorted(range(len(rows)), key=lambda number: turns[number])[:MAX_ROWS]
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
        "`esper.Grower(...)`, `esper grow` and `esper.grow` of a task use it by default; "
        '`esper.grow` of a model with `controller="learned"`. Without that, `esper.grow` races '
        "sizes of the model by a rule: no controller was shown to be better than that."
        if is_shipped
        else "Name this folder: `controller=` of `esper.grow` and `esper.Grower`, or `esper grow "
        "--controller`."
    )
    return f"{how} The weights are licensed like Esper, under MIT."

"""Evidence as tables, for the terminal, Markdown and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esper.formatting import (
    html_details,
    html_lines,
    html_table,
    listed,
    points,
    probability,
    without_empty,
)
from esper.results.arms import Arm
from esper.results.evidence import Evidence
from esper.results.findings import Finding, weigh
from esper.results.sentences import comparison_sentences, verdict_sentences
from esper.statistics import nested_interval

ROUNDING = 1e-5
"""What is left of a return without its score and FLOPs, if it has no other costs."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of text cells."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    n_left: int = 1
    """Number of left-aligned columns, which hold words; the others are right-aligned numbers."""

    def to_markdown(self) -> str:
        """Return the table in Markdown."""
        n_right = len(self.headers) - self.n_left
        rules = ("---",) * self.n_left + ("---:",) * n_right
        return "\n".join(_markdown_row(row) for row in (self.headers, rules, *self.rows))


def results_table(evidence: Evidence) -> Table:
    """Return a table with a row for each arm, the one under test first."""
    headers = (
        "arm",
        "return",
        *evidence.own.means(),
        "difference, points",
        "IQM, points",
        "P(improvement)",
        "p (Holm)",
        "tuning runs",
    )
    rows = [_row(evidence.own, None)]
    rows += [
        _row(arm, finding) for arm, finding in zip(evidence.others, weigh(evidence), strict=True)
    ]
    return Table(headers=headers, rows=tuple(rows))


def settings_table(evidence: Evidence) -> Table:
    """Return a table of the settings that were chosen for tuned arms."""
    rows = tuple((arm.name, arm.setting) for arm in evidence.arms if arm.setting)
    return Table(headers=("arm", "what was chosen"), rows=rows, n_left=2)


def facts(evidence: Evidence, *, is_full_table: bool = True) -> tuple[str, ...]:
    """Return how the evidence was measured, in sentences.

    Args:
        evidence: The evidence.
        is_full_table: Whether to explain the columns that the terminal leaves out, too.
    """
    of_columns = (
        "IQM is the mean of the middle half of the differences; P(improvement) is how often the "
        "difference is positive.",
        "Tuning runs are host runs spent on choosing a setting; for learned arms, the episodes of "
        "training, mean over runs.",
    )
    n_runs = len(evidence.runs)
    several = f"{n_runs} training runs ({listed(list(evidence.runs))}); 95% intervals are over "
    several += "runs and hosts, so they also hold for further training runs."
    one = f"One training run ({evidence.runs[0]}); 95% intervals are over hosts, so they hold "
    one += "for this run only."
    return (
        f"{evidence.n_hosts} hosts of {evidence.task}, the same for all arms, drawn only for "
        f"{evidence.purpose} (seed {evidence.seed}).",
        return_fact(evidence),
        f"FLOPs are the total of training, as a share of {evidence.reference}.",
        _reads(evidence),
        *_shared_tests(evidence),
        several if n_runs > 1 else one,
        *_learned_price(evidence),
        f"Differences are {evidence.own.label} minus the arm, host by host; a point is 0.01.",
        "p is corrected for all comparisons at this price (Holm), not for those at other prices; "
        "intervals are not corrected. "
        "It tests equal returns; at equal FLOPs, equal scores; for as many epochs, a score lower "
        "than that of the same size from scratch by 0.5 points, then equal FLOPs.",
        *(of_columns if is_full_table else ()),
    )


def return_fact(evidence: Evidence) -> str:
    """Return what the return is; only that of training can have costs besides FLOPs."""
    price = evidence.price
    if price is None:
        return "Return = score - costs, with a price of FLOPs for each host."
    cost = f"{price:g} x FLOPs (a share of the reference run's)"
    terms = ((arm.returns, arm.score - price * arm.flops) for arm in evidence.arms)
    if all(np.allclose(returns, net, atol=ROUNDING) for returns, net in terms):
        return f"Return = score - {cost}, without rent."
    return f"Return = score - {cost} - rent - penalties."


def to_markdown(evidence: Evidence, *, level: int = 1) -> str:
    """Return evidence at one price as a page, or from level 2 on as a section of one.

    Args:
        evidence: The evidence.
        level: Level of the heading.
    """
    mark = "#" * level
    first, *others = verdict_sentences(evidence)
    parts = [
        f"{mark} {_title(evidence)}",
        f"**{first}**",
        "\n\n".join(others),
        _items((*comparison_sentences(evidence), *evidence.notes)),
        results_table(evidence).to_markdown(),
        f"{mark}# How this was measured",
        _items((*facts(evidence), *_origin(evidence))),
    ]
    settings = settings_table(evidence)
    if settings.rows:
        parts += [f"{mark}# What was chosen", settings.to_markdown()]
    return "\n\n".join(part for part in parts if part) + "\n"


def to_html(evidence: Evidence, *, is_folded: bool = False) -> str:
    """Return the verdict, the results and how they were measured as HTML for a notebook.

    Args:
        evidence: The evidence.
        is_folded: Whether everything but the verdict's first sentence is folded away.
    """
    table = results_table(evidence)
    headers, rows = without_empty(table.headers, table.rows)
    first, *others = evidence.sentences
    rest = (
        html_lines(others)
        + html_table(headers, rows, n_left=table.n_left)
        + html_details("How this was measured", html_lines(facts(evidence)))
    )
    if is_folded:
        rest = html_details("Comparison with other controllers", rest)
    return html_lines([first], is_headed=True) + rest


def all_to_markdown(entries: Sequence[Evidence]) -> str:
    """Return evidence about one task at one or several prices as one page."""
    if len(entries) == 1:
        return to_markdown(entries[0])
    title = f"# {entries[0].task} at {len(entries)} prices\n"
    return "\n".join([title, *(to_markdown(entry, level=2) for entry in entries)])


def _title(evidence: Evidence) -> str:
    at = "" if evidence.price is None else f" at price {evidence.price:g}"
    return f"{evidence.task}{at}"


def _reads(evidence: Evidence) -> str:
    """Return the split that hosts were scored on and, where it was counted, how often."""
    arms: dict[int, list[str]] = {}
    for arm in evidence.arms:
        if arm.test_reads is not None:
            arms.setdefault(arm.test_reads, []).append(arm.name)
    counts = [
        f"{'once' if times == 1 else f'up to {times} times'} by {listed(names)}"
        for times, names in sorted(arms.items())
    ]
    counted = f"; each host {', '.join(counts)}" if counts else ""
    return f"Hosts are scored on the {evidence.split} split{counted}."


def _shared_tests(evidence: Evidence) -> list[str]:
    """Return what a test set that all hosts share means for the intervals."""
    if evidence.test_pool is None:
        return []
    return [
        f"All hosts are scored on the same {evidence.test_pool:,} test samples or some of them: "
        "intervals hold for this test set and leave out the variance of drawing another."
    ]


def _learned_price(evidence: Evidence) -> list[str]:
    """Return the price that the controllers learned at, if known."""
    learned = evidence.learned_price
    if learned is None:
        return []
    if learned == evidence.price:
        return ["Controllers learned at this price."]
    return [
        f"Controllers learned at price {learned:g} and were not retrained; tuned arms were tuned "
        f"at price {evidence.price:g}."
    ]


def _row(arm: Arm, finding: Finding | None) -> tuple[str, ...]:
    results = (
        arm.name,
        nested_interval(arm.returns).text(signed=False),
        *arm.means().values(),
    )
    tuning = f"{arm.tuning_runs:,}" if arm.tuning_runs else ""
    if finding is None:
        return (*results, "", "", "", "", tuning)
    return (
        *results,
        points(finding.returns).removesuffix(" points"),
        points(finding.interquartile).removesuffix(" points"),
        f"{finding.improvement.mean:.2f}",
        ", ".join(
            probability(p)
            for p in (finding.corrected_p, finding.corrected_flops_p)
            if p is not None
        ),
        tuning,
    )


def _origin(evidence: Evidence) -> list[str]:
    """Return what is needed to reproduce the evidence, as far as it is known."""
    options = ", ".join(f"{name} = {value}" for name, value in evidence.task_options.items())
    versions = ", ".join(f"{name} {value}" for name, value in evidence.versions.items())
    found = [f"Task options: {options}."] if options else []
    found += [f"Command: `{evidence.command}`"] if evidence.command else []
    found += [f"Created {evidence.created}."] if evidence.created else []
    return found + ([f"Versions: {versions}."] if versions else [])


def _items(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _markdown_row(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(escaped)} |"

"""What was shown about the controllers of a report: verdicts first, then what they rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from esper.evidence.claims import verdict_sentences
from esper.evidence.results import Evidence
from esper.evidence.text import Table, facts, results_table, settings_table
from esper.formatting import listed, number, share, whole
from esper.reports.run_report.blocks import Block, Code, Items, Rows, Section, Text
from esper.reports.run_report.values import RunValues
from esper.reports.views import ComparisonView
from esper.reports.views.comparison import IntervalValues

NOT_COMPARED = "It is not compared with other controllers yet: that follows its last round."
NOT_EVALUATED = (
    "There is no evaluation against tuned rules, static networks and training from scratch; "
    "esper evaluate makes one."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class FoundEvidence:
    """What an evaluation measured at one price, and where that is written."""

    source: str
    evidence: Evidence


def evaluation_section(found: FoundEvidence, names: Sequence[str], place: int) -> Section:
    """Return what an evaluation showed, from what it measured.

    Args:
        found: The evaluation at one price.
        names: Of the runs that the report is about.
        place: Of the evaluation in the report, counted from 1.
    """
    evidence = found.evidence
    first, *others = verdict_sentences(evidence)
    blocks: list[Block] = [
        Text(text=first, is_verdict=True),
        Items(lines=tuple(others)),
        Rows(table=results_table(evidence)),
        Items(lines=(*_about_runs(evidence, names), *facts(evidence))),
    ]
    settings = settings_table(evidence)
    if settings.rows:
        blocks.append(Rows(table=settings))
    if evidence.command:
        blocks += [Text(text=f"From {found.source}; this measures it again:"), _shell(evidence)]
    return Section(
        title=f"Evaluation on {evidence.task} at price {evidence.price:g}",
        anchor=f"evaluation-{place}",
        blocks=tuple(blocks),
    )


def comparison_blocks(run: RunValues) -> tuple[Block, ...]:
    """Return how a run's controller did beside simple ones at the end of the run."""
    view = run["comparison"]
    if view is None or not view["arms"]:
        problems = () if view is None else tuple(view["problems"])
        return (Text(text=" ".join((NOT_COMPARED, *problems))),)
    first, *others = view["sentences"] or ["The comparison says nothing."]
    about = (
        f"On the same {view['n_hosts']} held-out hosts, scored on the {view['split']} split. "
        "Return is the score minus what computing and added parameters cost; FLOPs are a share of "
        "a reference run's, added parameters a share of the host's. In brackets: where the mean "
        "lies with 95 % confidence, over hosts and for this one training run."
    )
    return (
        Text(text=first, is_verdict=True),
        Items(lines=(*others, *view["problems"])),
        Rows(table=comparison_table(view)),
        Text(text=about),
    )


def comparison_table(view: ComparisonView) -> Table:
    """Return a row for each controller of the comparison at the end of a run."""
    differences = {one["against"]: one["ep_rew"] for one in view["differences"]}
    rows = [
        (
            arm["name"],
            interval_text(arm["ep_rew"], signed=False),
            interval_text(differences[arm["name"]]) if arm["name"] in differences else "",
            number(arm["score"]["mean"]),
            number(arm["flops"], 2),
            number(arm["n_epochs"], 1),
            _added(arm["seed_parameters"], arm["host_parameters"]),
            "" if arm["grown_share"] is None else share(arm["grown_share"]),
        )
        for arm in view["arms"]
    ]
    headers = (
        "controller",
        "return",
        "learned minus it",
        "score",
        "FLOPs",
        "epochs",
        "added",
        "hosts grown",
    )
    return Table(headers=headers, rows=tuple(rows))


def interval_text(interval: IntervalValues, *, signed: bool = True) -> str:
    """Return a mean with its ends; differences have their sign."""
    sign = "+" if signed else ""
    mean, low, high = (interval["mean"], interval["low"], interval["high"])
    if mean is None or low is None or high is None:
        return number(mean)
    return f"{mean:{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"


def _added(seeds: float | None, host: float | None) -> str:
    if seeds is None or not host:
        return whole(seeds)
    return f"{seeds / host:.0%}"


def _about_runs(evidence: Evidence, names: Sequence[str]) -> list[str]:
    """Return which runs the evaluation is about, where these are not those of the report."""
    missing = [name for name in names if name not in evidence.runs]
    if not missing:
        return []
    told = f"It is about the controllers of {listed(list(evidence.runs))}"
    return [f"{told}; {listed(missing)} {'is' if len(missing) == 1 else 'are'} not among them."]


def _shell(evidence: Evidence) -> Code:
    return Code(text=evidence.command, language="sh")

"""A report put together: the verdict first, then how it came about."""

from __future__ import annotations

from collections.abc import Sequence

from esper.evidence.text import Table
from esper.formatting import listed, moment, number
from esper.reports.run_report.blocks import Block, Document, Items, Mount, Rows, Section, Text
from esper.reports.run_report.evaluation_part import (
    NOT_EVALUATED,
    FoundEvidence,
    comparison_blocks,
    evaluation_section,
)
from esper.reports.run_report.run_words import state_sentence
from esper.reports.run_report.sections import (
    episodes_section,
    health_section,
    identity_sentence,
    learned_section,
    learning_section,
    reproduce_section,
    settings_section,
)
from esper.reports.run_report.several import (
    about_table,
    runs_table,
    settings_table,
    verdict_blocks,
)
from esper.reports.run_report.tables import N_TRIALS, spread
from esper.reports.run_report.values import ReportValues, RunValues


def make_document(values: ReportValues, evidence: Sequence[FoundEvidence] = ()) -> Document:
    """Return the report on one run or several.

    Args:
        values: The runs, as :func:`collect_values` gives them.
        evidence: Evaluations to be told of, one for each price.
    """
    runs = values["runs"]
    made = f"Made by Esper {values['esper_version']} on {moment(values['made_at'])}."
    ends = (
        Text(text=made),
        *([Items(lines=tuple(values["problems"]))] if values["problems"] else ()),
    )
    if len(runs) == 1:
        return _about_one(runs[0], evidence, ends)
    return _about_several(runs, evidence, ends)


def _about_one(
    run: RunValues, evidence: Sequence[FoundEvidence], ends: tuple[Block, ...]
) -> Document:
    return Document(
        title=f"Report on {run['name']}",
        blocks=(Text(text=state_sentence(run)), Text(text=identity_sentence(run)), *ends),
        sections=(
            Section(
                title="Verdict",
                anchor="verdict",
                blocks=() if evidence else (*comparison_blocks(run), Text(text=NOT_EVALUATED)),
                sections=(
                    *_evaluations(evidence, [run["name"]]),
                    *([_comparison(run, "")] if evidence else ()),
                ),
            ),
            learning_section(run, 0),
            episodes_section(run, 0),
            learned_section(run, 0),
            health_section(run, 0),
            settings_section(run),
            reproduce_section(run),
        ),
    )


def _about_several(
    runs: Sequence[RunValues], evidence: Sequence[FoundEvidence], ends: tuple[Block, ...]
) -> Document:
    names = [run["name"] for run in runs]
    unlike = settings_table(runs)
    settings: tuple[Block, ...] = (Text(text="All settings of the runs are the same."),)
    if unlike.rows:
        settings = (Text(text="Settings in which the runs differ:"), Rows(table=unlike))
    beside = Section(
        title="The runs beside one another",
        anchor="runs",
        blocks=(
            *verdict_blocks(runs),
            Rows(table=runs_table(runs)),
            Items(lines=about_table(runs)),
            *(() if evidence else (Text(text=NOT_EVALUATED),)),
        ),
    )
    return Document(
        title=f"Report on {len(runs)} runs",
        blocks=(Text(text=f"The runs are {listed(names)}."), *ends),
        sections=(
            Section(
                title="Verdict",
                anchor="verdict",
                sections=(*_evaluations(evidence, names), beside),
            ),
            Section(
                title="How they learned",
                anchor="learning",
                blocks=(Mount(drawing="charts", instead=(Rows(table=_trials(runs)),)),),
            ),
            Section(title="What differs", anchor="settings", blocks=settings),
            *(_one_of_several(run, place) for place, run in enumerate(runs)),
        ),
    )


def _one_of_several(run: RunValues, place: int) -> Section:
    prefix = f"run-{place}-"
    return Section(
        title=run["name"],
        anchor=f"run-{place}",
        blocks=(Text(text=state_sentence(run)), Text(text=identity_sentence(run))),
        sections=(
            _comparison(run, prefix),
            learning_section(run, place, prefix),
            episodes_section(run, place, prefix),
            learned_section(run, place, prefix),
            health_section(run, place, prefix),
            settings_section(run, prefix),
            reproduce_section(run, prefix),
        ),
    )


def _evaluations(evidence: Sequence[FoundEvidence], names: Sequence[str]) -> list[Section]:
    return [evaluation_section(one, names, place) for place, one in enumerate(evidence, start=1)]


def _comparison(run: RunValues, prefix: str) -> Section:
    return Section(
        title="The comparison at the end of the run",
        anchor=f"{prefix}comparison",
        blocks=comparison_blocks(run),
    )


def _trials(runs: Sequence[RunValues]) -> Table:
    """Return the return on held-out hosts by round, a column for each run."""
    by_run = [
        dict(zip(points["rounds"], points["values"], strict=True))
        for points in (
            run["metrics"]["series"].get("eval/mean_reward", {"rounds": [], "values": []})
            for run in runs
        )
    ]
    rounds = spread(sorted({one for known in by_run for one in known}), N_TRIALS)
    rows = tuple((str(one), *(number(known.get(one)) for known in by_run)) for one in rounds)
    headers = ("round", *(f"return of {run['name']}" for run in runs))
    return Table(headers=headers, rows=rows, n_left=0)

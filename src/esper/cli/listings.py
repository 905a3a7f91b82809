"""The command ``esper tasks``: what hosts can learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from esper.cli.output import print_columns, print_json
from esper.cli.parsing import parse

if TYPE_CHECKING:
    from esper.growth.blueprints import Blueprint


@dataclass(frozen=True, kw_only=True)
class TasksOptions:
    """List what hosts can learn: the tasks that come with Esper, and those of other packages."""

    json: bool = False
    """Print JSON."""


def run_tasks(words: Sequence[str]) -> int:
    """Print every task and what it is."""
    options = parse(TasksOptions, words, command="tasks")
    from esper.tasks import task_summaries

    summaries = task_summaries()
    if options.json:
        print_json([{"name": name, "summary": about} for name, about in summaries.items()])
    else:
        print_columns(list(summaries.items()))
    return 0


@dataclass(frozen=True, kw_only=True)
class BlueprintsOptions:
    """List what can be grown: for each blueprint what it fits, what it reads and what it is."""

    json: bool = False
    """Print JSON."""


def run_blueprints(words: Sequence[str]) -> int:
    """Print every blueprint."""
    options = parse(BlueprintsOptions, words, command="blueprints")
    from esper.growth.blueprints import blueprint_names, find_blueprint

    blueprints = [find_blueprint(name) for name in blueprint_names()]
    if options.json:
        print_json([_facts(each) for each in blueprints])
    else:
        rows = [_facts(each) for each in blueprints]
        print_columns([(*map(_cell, facts.values()),) for facts in rows])
    return 0


def _facts(blueprint: Blueprint) -> dict[str, str | list[str]]:
    # A kind's name ends with the shape of its tensors, which is of no use here.
    kinds = sorted(kind.value.partition(" [")[0] for kind in blueprint.kinds)
    return {
        "name": blueprint.name,
        "kinds": kinds,
        "form": blueprint.form.value,
        "summary": blueprint.summary,
    }


def _cell(value: str | list[str]) -> str:
    return value if isinstance(value, str) else ", ".join(value)

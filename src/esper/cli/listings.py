"""``esper tasks`` and ``esper blueprints``: list what hosts can learn and what can be grown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from esper.cli.output import print_columns, print_json
from esper.cli.parsing import Switch, parse

if TYPE_CHECKING:
    from esper.growth.blueprints import Blueprint


@dataclass(frozen=True, kw_only=True)
class TasksOptions:
    """List the tasks that hosts can learn, including those of other packages."""

    json: Switch = False
    """Print JSON."""


def run_tasks(args: Sequence[str]) -> int:
    """Print each task with its summary."""
    options = parse(TasksOptions, args, command="tasks")
    from esper.tasks import task_summaries

    summaries = task_summaries()
    if options.json:
        print_json([{"name": name, "summary": about} for name, about in summaries.items()])
    else:
        print_columns(list(summaries.items()))
    return 0


@dataclass(frozen=True, kw_only=True)
class BlueprintsOptions:
    """List the modules that can be grown: name, tensor kinds, form and summary."""

    json: Switch = False
    """Print JSON."""


def run_blueprints(args: Sequence[str]) -> int:
    """Print each blueprint with its tensor kinds, form and summary."""
    options = parse(BlueprintsOptions, args, command="blueprints")
    from esper.growth.blueprints import blueprint_names, find_blueprint

    rows = [_facts(find_blueprint(name)) for name in blueprint_names()]
    if options.json:
        print_json(rows)
    else:
        print_columns([(*map(_cell, facts.values()),) for facts in rows])
    return 0


def _facts(blueprint: Blueprint) -> dict[str, str | list[str]]:
    # A kind's name ends with the shape of its tensors, which is left out here.
    kinds = sorted(kind.value.partition(" [")[0] for kind in blueprint.kinds)
    return {
        "name": blueprint.name,
        "kinds": kinds,
        "form": blueprint.form.value,
        "summary": blueprint.summary,
    }


def _cell(value: str | list[str]) -> str:
    return value if isinstance(value, str) else ", ".join(value)

"""``esper tasks`` and ``esper blueprints``: list what hosts can learn and what can be grown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

from esper.cli.arguments import parse
from esper.cli.output import print_columns, print_json
from esper.config.catalogue import BLUEPRINT_GROUP, BLUEPRINTS, TASK_GROUP, TASKS


@dataclass(frozen=True, kw_only=True)
class TasksOptions:
    """List the tasks that hosts can learn, including those of other packages."""

    json: bool = False
    """Print JSON."""


def run_tasks(args: Sequence[str]) -> int:
    """Print each task with its summary."""
    options = parse(TasksOptions, args, command="tasks")
    summaries = TASKS
    if entry_points(group=TASK_GROUP):  # tasks of other packages, which import PyTorch
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

    json: bool = False
    """Print JSON."""


def run_blueprints(args: Sequence[str]) -> int:
    """Print each blueprint with its tensor kinds, form and summary."""
    options = parse(BlueprintsOptions, args, command="blueprints")
    known = BLUEPRINTS
    if entry_points(group=BLUEPRINT_GROUP):
        from esper.growth.blueprints import blueprint_names, find_blueprint

        known = {name: find_blueprint(name).facts for name in blueprint_names()}
    if options.json:
        print_json([{"name": name, **facts._asdict()} for name, facts in known.items()])
    else:
        print_columns(
            [
                (name, ", ".join(facts.kinds), facts.form, facts.summary)
                for name, facts in known.items()
            ]
        )
    return 0

"""``esper tasks``, ``blueprints`` and ``explain``: lists, and the meaning of words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from esper.cli.arguments import Positional, parse
from esper.cli.output import print_columns, print_json, print_wrapped
from esper.config.catalogue import BLUEPRINTS, TASKS
from esper.config.glossary import FORMS, GLOSSARY, find_word
from esper.errors import ConfigError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class TasksOptions:
    """List the tasks that hosts can learn."""

    json: bool = False
    """Print JSON."""


def run_tasks(args: Sequence[str]) -> int:
    """Print each task with its summary."""
    options = parse(TasksOptions, args, command="tasks")
    if options.json:
        print_json([{"name": name, "summary": about} for name, about in TASKS.items()])
    else:
        print_columns(list(TASKS.items()))
    return 0


@dataclass(frozen=True, kw_only=True)
class BlueprintsOptions:
    """List the modules that can be grown: name, tensor kinds, form and summary."""

    json: bool = False
    """Print JSON."""


def run_blueprints(args: Sequence[str]) -> int:
    """Print each blueprint with its tensor kinds, form and summary."""
    options = parse(BlueprintsOptions, args, command="blueprints")
    if options.json:
        print_json([{"name": name, **facts._asdict()} for name, facts in BLUEPRINTS.items()])
    else:
        print_columns(
            [
                (name, ", ".join(facts.kinds), facts.form, facts.summary)
                for name, facts in BLUEPRINTS.items()
            ]
        )
    return 0


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    """Explain Esper's words, such as slot, seed or price; without a word, list them all."""

    word: Annotated[tuple[str, ...], Positional("WORD")] = ()
    """The word to explain."""


def run_explain(args: Sequence[str]) -> int:
    """Print what a word means."""
    given = " ".join(parse(ExplainOptions, args, command="explain").word)
    if not given:
        print_columns(list(GLOSSARY.items()))
        return 0
    word = find_word(given)
    if word is None:
        hint = did_you_mean(given, [*GLOSSARY, *FORMS]) or " `esper explain` lists all words."
        raise ConfigError(f"WORD is {given!r}, which is not in the glossary.{hint}")
    print_wrapped(f"{word}: {GLOSSARY[word]}")
    return 0

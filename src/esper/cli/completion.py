"""``esper completion``: print a shell script that completes commands, options and names."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any, Literal, get_args, get_origin

import tyro

from esper.cli.main import COMMANDS
from esper.cli.parsing import flags_of, parse
from esper.config.catalogue import CONTROLLERS, SHIPPED, TASKS

Shell = Literal["bash", "zsh", "tcsh", "fish"]


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """Print a shell script that completes commands, options, runs, tasks and controllers.

    For bash: source <(esper completion bash)
    """

    shell: tyro.conf.Positional[Shell]
    """Shell to print the script for."""


def run_completion(args: Sequence[str]) -> int:
    """Print the script for a shell."""
    print(script(parse(CompletionOptions, args, command="completion").shell), end="")
    return 0


def script(shell: Shell) -> str:
    """Return the completion script for a shell."""
    kinds = {name: _options_of(name) for name in COMMANDS}
    if shell == "tcsh":
        return tcsh_script(kinds)
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            tyro.extras.subcommand_cli_from_dict(
                kinds, prog="esper", args=["--tyro-print-completion", shell]
            )
    except SystemExit:
        return _with_names(printed.getvalue())
    raise AssertionError("tyro printed no script")


_ANCHOR = "    # Output one completion per line.\n"
_NAMES = """\
    import glob, os
    names, runs = [], os.environ.get('ESPER_RUNS') or 'runs'
    word = words[current_index] if current_index < len(words) else ''
    def folders(pattern):
        return [os.path.dirname(file) for file in glob.glob(pattern + '*/config.toml')]
    def named_runs():
        here = folders(os.path.join(glob.escape(runs), ''))
        return [os.path.basename(place) for place in here] + folders(glob.escape(word))
    before = words[current_index - 1]
    if before == '--task':
        completions, names = [], TASKS
    elif before == '--controller':
        completions, names = [], CONTROLLERS + named_runs()
    elif current_index > 1 and not word.startswith('-') and not before.startswith('-'):
        names = named_runs() if words[1] in RUN_COMMANDS else []
        names += CONTROLLERS if words[1] == 'compare' else []
    completions += sorted(name for name in names if name.startswith(word))
"""
"""Completes names of runs, tasks and controllers in the program that tyro's scripts run.

It contains nothing that a shell would replace: no double quotes, dollar signs or backslashes.
"""
_RUN_COMMANDS = (
    "resume",
    "show",
    "report",
    "evaluate",
    "compare",
    "export-controller",
    "export-telemetry",
)


def _with_names(text: str) -> str:
    """Return a script that also completes the names of runs, tasks and controllers."""
    assert text.count(_ANCHOR) == 1, "tyro's script has a place for names"
    names = _NAMES.replace("RUN_COMMANDS", repr(_RUN_COMMANDS))
    names = names.replace("TASKS", repr(list(TASKS)))
    names = names.replace("CONTROLLERS", repr([SHIPPED, *CONTROLLERS]))
    return text.replace(_ANCHOR, names + _ANCHOR)


def _options_of(command: str) -> type[Any]:
    """Return a command's options class, such as ``ExportTelemetryOptions``."""
    name = "".join(part.title() for part in command.split("-")) + "Options"
    return getattr(importlib.import_module(f"esper.cli.{COMMANDS[command].module}"), name)


def tcsh_script(kinds: Mapping[str, type[Any]]) -> str:
    """Return the one-line script for tcsh, for which tyro would need another package."""
    rules = [f"'p/1/({' '.join(kinds)})/'"]
    flags = {flag: hint for kind in kinds.values() for flag, hint in flags_of(kind).items()}
    for flag, hint in flags.items():
        if get_origin(hint) is Literal:
            rules.append(f"'n/{flag}/({' '.join(get_args(hint))})/'")
    rules.append(f"'n/--task/({' '.join(TASKS)})/'")
    rules.append(f"'n/--controller/({' '.join([SHIPPED, *CONTROLLERS])})/'")
    rules.append(f"'n/completion/({' '.join(get_args(Shell))})/'")
    rules.append(f"'c/--/({' '.join(flag.removeprefix('--') for flag in flags)})/'")
    return f"complete esper {' '.join(rules)}\n"

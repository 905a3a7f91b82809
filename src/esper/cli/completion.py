"""The command ``esper completion``: a script that completes commands and options in a shell."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any, Literal, get_args, get_origin

import tyro

from esper.cli.main import COMMANDS
from esper.cli.parsing import UsageError, flags_of, parse
from esper.errors import did_you_mean

Shell = Literal["bash", "zsh", "tcsh", "fish"]


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """Print a script that completes commands and options in a shell.

    For bash: source <(esper completion bash)
    """

    shell: tyro.conf.Positional[Shell]
    """The shell."""


def run_completion(words: Sequence[str]) -> int:
    """Print the script for a shell."""
    shells = get_args(Shell)
    if words and not words[0].startswith("-") and words[0] not in shells:
        hint = did_you_mean(words[0], shells)
        raise UsageError(f"the shell is {words[0]!r}; it must be one of {', '.join(shells)}.{hint}")
    if not words:
        raise UsageError(f"no shell is given; it must be one of {', '.join(shells)}.")
    print(script(parse(CompletionOptions, words, command="completion").shell), end="")
    return 0


def script(shell: Shell) -> str:
    """Return the script for a shell, with the options of every command."""
    kinds = {
        name: getattr(importlib.import_module(f"esper.cli.{command.module}"), _options_name(name))
        for name, command in COMMANDS.items()
    }
    if shell == "tcsh":
        return tcsh_script(kinds)
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            tyro.extras.subcommand_cli_from_dict(
                kinds, prog="esper", args=["--tyro-print-completion", shell]
            )
    except SystemExit:
        return printed.getvalue()
    raise AssertionError("the parser printed no script")


def _options_name(command: str) -> str:
    """Return the name of a command's options: ``ExportTelemetryOptions`` for export-telemetry."""
    return "".join(part.title() for part in command.split("-")) + "Options"


def tcsh_script(kinds: Mapping[str, type[Any]]) -> str:
    """Return the script for tcsh: one line, for which the parser would need another package."""
    rules = [f"'p/1/({' '.join(kinds)})/'"]
    flags = {flag: hint for kind in kinds.values() for flag, hint in flags_of(kind).items()}
    for flag, hint in flags.items():
        if get_origin(hint) is Literal:
            rules.append(f"'n/{flag}/({' '.join(get_args(hint))})/'")
    rules.append(f"'n/completion/({' '.join(get_args(Shell))})/'")
    rules.append(f"'c/--/({' '.join(flag.removeprefix('--') for flag in flags)})/'")
    return f"complete esper {' '.join(rules)}\n"

"""``esper completion``: print a shell script that completes commands and options."""

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

Shell = Literal["bash", "zsh", "tcsh", "fish"]


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """Print a shell script that completes commands and options.

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
        return printed.getvalue()
    raise AssertionError("tyro printed no script")


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
    rules.append(f"'n/completion/({' '.join(get_args(Shell))})/'")
    rules.append(f"'c/--/({' '.join(flag.removeprefix('--') for flag in flags)})/'")
    return f"complete esper {' '.join(rules)}\n"

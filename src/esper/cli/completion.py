"""``esper completion``: print a shell script that completes commands, options and names."""

from __future__ import annotations

import importlib
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from esper.cli.arguments import Argument, Positional, arguments_for, arguments_of, parse
from esper.cli.main import COMMANDS
from esper.config.catalogue import CONTROLLERS, LEARNED, TASKS
from esper.config.glossary import GLOSSARY
from esper.invocation import program
from esper.storage.run_folder import runs_folder

_SCRIPTS = {
    "bash": "complete -o default -C {command} esper",
    "zsh": (
        "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"
        "complete -o default -C {command} esper"
    ),
    "tcsh": "complete esper 'p@*@`{bare}`@'",
    "fish": "complete -c esper -a '(env COMP_LINE=(commandline -pc) {bare})'",
}
"""Each shell runs ``esper completion`` with the line so far in the environment."""
_LINES = ("COMP_LINE", "COMMAND_LINE")
"""Variables with the line to complete; the second is tcsh's."""


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """Print a shell script that completes commands, options, runs, tasks and controllers.

    For bash: source <(esper completion bash)
    """

    shell: Annotated[Literal["bash", "zsh", "tcsh", "fish"], Positional("SHELL")]
    """Shell to print the script for: bash, zsh, tcsh or fish."""


def run_completion(args: Sequence[str]) -> int:
    """Print the script for a shell, or what completes a line if a shell asks."""
    line = next((os.environ[name] for name in _LINES if name in os.environ), None)
    if line is not None:
        for word in complete(line[: int(os.environ.get("COMP_POINT", len(line)))]):
            print(word)
        return 0
    shell = parse(CompletionOptions, args, command="completion").shell
    bare = f"{program()} completion"
    print(_SCRIPTS[shell].format(command=shlex.quote(bare), bare=bare))
    return 0


def complete(line: str) -> list[str]:
    """Return the words that complete the last word of a command line."""
    words = line.split()
    last = words.pop() if line[-1:].strip() else ""
    return sorted(word for word in _candidates(words, last) if word.startswith(last))


def _candidates(words: Sequence[str], last: str) -> Iterable[str]:
    if len(words) < 2:
        return COMMANDS
    if words[1] not in COMMANDS:
        return ()
    known = _arguments_of(words[1])
    before = [argument for argument in known if words[-1] in argument.flags]
    if before and before[0].kind is not bool:
        return _names(before[0], last)
    if last.startswith("-"):
        return [flag for argument in known for flag in argument.flags] + ["--help"]
    return [name for one in known if not one.flags for name in _names(one, last)]


def _arguments_of(command: str) -> list[Argument]:
    """Return the arguments of a command, whose options are a class such as ``TrainOptions``."""
    name = "".join(part.title() for part in command.split("-")) + "Options"
    module = importlib.import_module(f"esper.cli.{COMMANDS[command][0]}")
    settings = arguments_for() if command == "train" else []
    return [*arguments_of(getattr(module, name)), *settings]


def _names(argument: Argument, last: str) -> Iterable[str]:
    """Return what an argument can be; files are left to the shell."""
    metavar = argument.metavar
    if argument.choices or metavar.startswith("{"):
        return argument.choices or metavar.strip("{}").split(",")
    if metavar == "TASK":
        return TASKS
    if metavar == "WORD":
        return GLOSSARY
    if metavar == "CONTROLLER":
        return [LEARNED, *CONTROLLERS, *_runs(last)]
    return _runs(last) if metavar == "RUN" else ()


def _runs(last: str) -> list[str]:
    """Return the runs in the runs folder by name, and those in the folder being typed."""
    folder, _, _ = last.rpartition("/")
    places = [(runs_folder(), ""), *([(Path(folder), f"{folder}/")] if folder else [])]
    return [
        prefix + file.parent.name
        for place, prefix in places
        for file in place.glob("*/config.toml")
    ]

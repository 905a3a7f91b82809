"""The command ``esper``: finds the command that is asked for, and turns mistakes into one line."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NamedTuple, TextIO

from esper.cli.output import (
    forget_output,
    is_output_broken,
    one_line,
    prepare_streams,
    settle_output,
)
from esper.errors import EsperError, StorageError, TrainingError, did_you_mean
from esper.training.signals import INTERRUPTED, handling
from esper.version import __version__


class Command(NamedTuple):
    """Where a command is, and what it does."""

    module: str
    """The module below esper.cli, imported when the command runs."""
    function: str
    """The function that takes the words after the command's name and returns the exit code."""
    summary: str


COMMANDS = {
    "train": Command("train", "run_train", "train a controller"),
    "resume": Command("train", "run_resume", "resume an interrupted run"),
    "runs": Command("runs", "run_runs", "list runs"),
    "show": Command("runs", "run_show", "show the progress and results of a run"),
    "report": Command("report", "run_report", "write a report on one or more runs"),
    "dashboard": Command("dashboard", "run_dashboard", "watch runs in a browser"),
    "evaluate": Command(
        "evaluate", "run_evaluate", "benchmark controllers against tuned baselines"
    ),
    "compare": Command("evaluate", "run_compare", "compare controllers with each other"),
    "headroom": Command(
        "headroom", "run_headroom", "measure how much a controller could gain on a task"
    ),
    "grow": Command("grow", "run_grow", "grow one host and save it as a plain model"),
    "export-controller": Command(
        "export", "run_export_controller", "save a run's best controller to a folder"
    ),
    "export-telemetry": Command(
        "export", "run_export_telemetry", "export a run's telemetry as tables"
    ),
    "tasks": Command("listings", "run_tasks", "list the tasks that hosts can learn"),
    "blueprints": Command("listings", "run_blueprints", "list the modules that can be grown"),
    "doctor": Command("doctor", "run_doctor", "check the installation"),
    "completion": Command("completion", "run_completion", "print a shell completion script"),
}
"""Every command, in the order of ``esper --help``."""

DONE, FAILED, USER_MISTAKE, READER_GONE = 0, 1, 2, 141

_EXAMPLES = """\
examples:
  esper train                   the quick preset, about two minutes
  esper train --print-config    its settings, as a file to start from
  esper train --help            every setting
  esper show RUN                what a run came to
  esper grow --controller RUN   a network grown by it, as a plain model
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    0 is done, 1 something that other words would not change (a full disk, updates that are refused
    again and again), 2 a mistake of the user, 130 interrupted and saved. Any other exception is a
    defect of Esper and keeps its traceback.

    Args:
        argv: The words after ``esper``; None for those of the process.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is not None:
        return _answer(words, ends_ignoring=True)
    if not prepare_streams():
        return _tell_no_output("it is closed")
    try:
        # A process of its own may end as deaf to signals as it has become.
        return _answer(words, ends_ignoring=False)
    finally:
        settle_output()


def _answer(words: list[str], *, ends_ignoring: bool) -> int:
    """Run a command, say in a line what went wrong, and return the exit code."""
    try:
        with handling(_interrupt, ends_ignoring=ends_ignoring), warnings.catch_warnings():
            warnings.showwarning = show_warning
            code = _run(words)
            if code != INTERRUPTED:  # what was saved counts more than what cannot be shown
                sys.stdout.flush()
            return code
    except EsperError as error:
        print(f"esper: error: {one_line(error)}", file=sys.stderr)
        return FAILED if isinstance(error, (StorageError, TrainingError)) else USER_MISTAKE
    except KeyboardInterrupt:
        lost = "; nothing was saved" if words[:1] == ["train"] else ""
        print(f"esper: interrupted{lost}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        forget_output()
        return READER_GONE
    except OSError as error:
        if not is_output_broken():
            raise
        forget_output()
        return _tell_no_output(error.strerror or str(error))


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning in one line on stderr; where in the code it arose helps no user."""
    print(f"esper: warning: {one_line(message)}", file=sys.stderr if file is None else file)


def help_text() -> str:
    """Return what ``esper --help`` prints."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {each.summary}" for name, each in COMMANDS.items())
    return (
        "usage: esper COMMAND [options]\n\n"
        "Grow neural networks while they train, steered by a controller that learns.\n\n"
        f"commands:\n{commands}\n\n"
        "options:\n  --help     show this, or with a command what it takes\n"
        f"  --version  show the version\n\n{_EXAMPLES}"
    )


def find_command(name: str) -> Callable[[Sequence[str]], int]:
    """Return the function that runs a command with the words after its name.

    Raises:
        EsperError: If there is no such command.
    """
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS) or " See esper --help."
        raise EsperError(f"there is no command {name!r}; there are {', '.join(COMMANDS)}.{hint}")
    command = COMMANDS[name]
    return getattr(importlib.import_module(f"esper.cli.{command.module}"), command.function)


def _run(words: list[str]) -> int:
    if not words:
        raise EsperError(f"no command is given; there are {', '.join(COMMANDS)}. See esper --help.")
    if words[0] in ("-h", "--help", "help"):
        print(help_text(), end="")
        return DONE
    if words[0] in ("-V", "--version"):
        print(f"esper {__version__}")
        return DONE
    try:
        return find_command(words[0])(words[1:])
    except SystemExit as ended:  # The parser ends so when it has printed a command's help.
        return ended.code if isinstance(ended.code, int) else DONE


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _tell_no_output(reason: str) -> int:
    print(f"esper: error: the output cannot be written: {reason}", file=sys.stderr)
    return FAILED

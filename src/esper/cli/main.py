"""The ``esper`` command: runs a subcommand and reports errors in one line."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TextIO

from esper.cli.output import (
    discard_output,
    escaped_output,
    flush_or_discard_output,
    is_output_broken,
    one_line,
    prepare_streams,
)
from esper.config.memory import address_space, amount_of
from esper.config.schema import shown
from esper.errors import EsperError, StorageError, TrainingError, did_you_mean
from esper.installation import find_clash
from esper.training.signals import INTERRUPTED, handling
from esper.version import __version__

COMMANDS = {
    "grow": ("grow", "grow a network and save it as a plain PyTorch model"),
    "expand": ("expand", "deepen or widen a Transformers checkpoint"),
    "train": ("train", "train a controller"),
    "resume": ("train", "resume an interrupted run"),
    "study": ("study", "train configurations with several seeds and compare them"),
    "runs": ("runs", "list runs"),
    "show": ("runs", "show the progress and results of a run"),
    "report": ("report", "write a report on one or more runs"),
    "dashboard": ("dashboard", "watch runs in a browser"),
    "evaluate": ("evaluate", "benchmark controllers against tuned baselines"),
    "compare": ("evaluate", "compare controllers with each other"),
    "export-controller": ("export", "save a run's best controller to a folder"),
    "export-telemetry": ("export", "export a run's telemetry as tables"),
    "tasks": ("listings", "list the tasks that hosts can learn"),
    "check-task": ("check_task", "check how fast a task's hosts train, and why"),
    "blueprints": ("listings", "list the modules that can be grown"),
    "explain": ("listings", "explain Esper's words, such as slot, seed or price"),
    "doctor": ("doctor", "check the installation"),
}
"""The module in esper.cli and the summary of each command, in the order of ``esper --help``.

The module is imported when the command runs; it has a function such as ``run_train``.
"""

_WITHOUT_TORCH = {
    "runs",
    "show",
    "report",
    "dashboard",
    "export-telemetry",
    "tasks",
    "blueprints",
    "explain",
    "completion",
}
MIN_MEMORY = 800e6
"""Bytes of addresses without which PyTorch aborts the process while it is being loaded."""

_DISK_FAILURES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}

SUCCESS, FAILED, USAGE_ERROR, READER_GONE = 0, 1, 2, 141

_EXAMPLES = """\
examples:
  esper expand FOLDER --deepen 4 --out LARGER
                                add four blocks to a checkpoint
  esper train                   train with the quick preset, about two minutes
  esper train --print-config    print its settings as a file to start from
  esper train --help            list all settings
  esper show RUN                show the results of a run
  esper grow --controller RUN   grow a network with the trained controller
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    0: success. 1: runtime failure (a full disk, rejected updates, dying workers). 2: usage error.
    130: interrupted and saved. 141: the reader of the output went away. A file that the system
    refuses and a lack of memory are reported too; any other exception is a bug in Esper and keeps
    its traceback.

    Args:
        argv: The arguments after ``esper``; None for those of the process.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    if argv is not None:
        with escaped_output():
            return _run_and_report(args, ends_ignoring=True)
    if not prepare_streams():
        return _report_failure("cannot write the output: it is closed")
    try:
        with escaped_output():
            return _run_and_report(args, ends_ignoring=False)
    finally:
        flush_or_discard_output()


def _run_and_report(args: list[str], *, ends_ignoring: bool) -> int:
    """Run a command, report an error in one line, and return the exit code."""
    try:
        with handling(_interrupt, ends_ignoring=ends_ignoring), warnings.catch_warnings():
            warnings.showwarning = show_warning
            _warn_of_clash()
            code = _run(args)
            if code != INTERRUPTED:  # a saved run exits with 130 even if the output is broken
                sys.stdout.flush()
            return code
    except EsperError as error:
        print(f"esper: error: {one_line(error)}", file=sys.stderr)
        return FAILED if isinstance(error, (StorageError, TrainingError)) else USAGE_ERROR
    except KeyboardInterrupt:
        lost = "; nothing was saved" if args[:1] == ["train"] else ""
        print(f"esper: interrupted{lost}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        discard_output()
        return READER_GONE
    except MemoryError as error:
        return _report_failure(f"out of memory: {error or 'nothing more can be allocated'}")
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):  # PyTorch has no class for it
            raise
        return _report_failure("out of memory; use smaller settings")
    except OSError as error:
        if is_output_broken():
            discard_output()
            return _report_failure(f"cannot write the output: {error.strerror or error}")
        if error.filename is None:
            raise
        name = shown(os.fsdecode(error.filename))
        _report_failure(f"cannot use {name}: {error.strerror or error}")
        return FAILED if error.errno in _DISK_FAILURES else USAGE_ERROR


def show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning in one line on stderr, without its place in the code."""
    print(f"esper: warning: {one_line(message)}", file=sys.stderr if file is None else file)


def help_text() -> str:
    """Return the text of ``esper --help``."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {about}" for name, (_, about) in COMMANDS.items())
    return (
        "usage: esper COMMAND [options]\n\n"
        "Grow PyTorch models, wider and deeper, and train controllers that do.\n\n"
        f"commands:\n{commands}\n\n"
        "options:\n  --help     show this help, or the help of a command\n"
        f"  --version  show the version\n\n{_EXAMPLES}"
    )


def find_command(name: str) -> Callable[[Sequence[str]], int]:
    """Return the function that runs a command.

    Raises:
        EsperError: If the command is unknown.
    """
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS) or " See esper --help."
        raise EsperError(f"unknown command {name!r}; choose one of {', '.join(COMMANDS)}.{hint}")
    if name not in _WITHOUT_TORCH and (left := address_space()) < MIN_MEMORY:
        raise MemoryError(
            f"the limit of the address space (ulimit -v) leaves {amount_of(left)}; PyTorch needs "
            f"{amount_of(MIN_MEMORY)}"
        )
    module = importlib.import_module(f"esper.cli.{COMMANDS[name][0]}")
    return getattr(module, f"run_{name.replace('-', '_')}")


def _run(args: list[str]) -> int:
    if not args:
        raise EsperError(f"no command; choose one of {', '.join(COMMANDS)}. See esper --help.")
    if args[0] in ("-h", "--help", "help"):
        print(help_text(), end="")
        return SUCCESS
    if args[0] in ("-V", "--version"):
        print(f"esper {__version__}")
        return SUCCESS
    try:
        return find_command(args[0])(args[1:])
    except SystemExit as ended:  # raised after a command's help is printed
        return ended.code if isinstance(ended.code, int) else SUCCESS


def _warn_of_clash() -> None:
    """Warn if another package overwrote our ``esper/__init__.py``, which would warn itself."""
    clash = None if hasattr(sys.modules["esper"], "find_clash") else find_clash()
    if clash:
        warnings.warn(clash, stacklevel=2)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _report_failure(reason: str) -> int:
    print(f"esper: error: {one_line(reason)}", file=sys.stderr)
    return FAILED

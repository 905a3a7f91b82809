"""Running a training job from the command line: signals, live view, results at the end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from esper.cli.output import json_text, print_columns, print_wrapped
from esper.cli.verdict import show_evidence
from esper.cli.views import View, make_view, print_to_stderr
from esper.config.run import RunConfig
from esper.dashboard.companion import companion_dashboard
from esper.errors import EsperError
from esper.invocation import program
from esper.storage.run_folder import shell_word
from esper.training.run import Run
from esper.training.signals import (
    INTERRUPTED,
    StopRequest,
    end_at_once,
    handling,
    ignore_signals,
)

if TYPE_CHECKING:
    from esper.cli.train import LaunchOptions


def show_results(run: Run, options: LaunchOptions) -> None:
    """Print the results of a finished run."""
    summary = run.summary
    assert summary is not None, "a finished run has a summary"
    if options.json:
        print_end_event(run, state=run.state)
    elif options.quiet:
        print(f"{run.path}: {summary.sentences[0]}")
    else:
        from esper.results.sentences import AS_TAUGHT

        print()
        show_evidence(summary)
        if AS_TAUGHT in summary.notes:
            print_wrapped(AS_TAUGHT)
        print()
        show_next_steps(run)


def print_end_event(run: Run | None, *, state: str, message: str | None = None) -> None:
    """Print the last JSON line of a process: the run's state, progress and results.

    Args:
        run: The run; None if none was created.
        state: ``"done"``, ``"interrupted"`` or ``"failed"``.
        message: The error of a failed run.
    """
    event: dict[str, Any] = {"event": "end", "state": state, "message": message}
    event |= dict.fromkeys(("run", "round", "rounds", "summary"))
    if run is not None:
        event |= {"run": str(run.path), "round": run.rounds_done, "rounds": run.config.rounds}
    if run is not None and state == "done" and run.summary is not None:
        from esper.results.sentences import verdict_json

        event["summary"] = verdict_json(run.summary)
    print(json_text(event), flush=True)


def show_next_steps(run_done: Run) -> None:
    """Print commands to try next."""
    esper, run = program(), shell_word(run_done.path)
    print("Next:")
    print_columns(
        [
            (
                f"  {esper} dashboard {shell_word(run_done.path.parent)} --open",
                "see in a browser how it learned",
            ),
            (f"  {esper} show {run} --verbose", "the table, and every comparison in words"),
            (
                f"  {esper} grow --controller {run}{run_done.allow_code_flag}",
                "grow a host with this controller",
            ),
        ]
    )
    print()
    print_wrapped(
        f"This controller has seen only {run_done.config.task}. For other models, leave out "
        "--controller: the shipped one was trained on many tasks."
    )


class EarlySignals:
    """Defers a signal that arrives while PyTorch is being imported.

    An exception in the middle of importing a compiled package would leave it half initialized and
    raise a confusing error. A second signal ends the process at once: nothing can be lost yet.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._received: str | None = None
        self._stop: StopRequest | None = None

    def make_stop_request(self) -> StopRequest:
        """Load PyTorch, and return a stop request that later signals trigger.

        Raises:
            KeyboardInterrupt: If a signal has already arrived.
        """
        import_module("esper.training.runs")  # with PyTorch; a signal until then starts no run
        self._stop = StopRequest(tell=self._tell)
        if self._received is not None:
            raise KeyboardInterrupt
        return self._stop

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Record a signal, or trigger the stop request."""
        name = signal.Signals(number).name
        if self._stop is not None:
            self._stop.ask(name)
        elif self._received is not None:
            end_at_once()
        else:
            self._tell(f"{name}: stopping as soon as PyTorch is loaded")
        self._received = name


Work = Callable[[View, StopRequest], Run]
"""Trains a run, given a view that shows its progress and a request that may stop it."""


def run_with_view(
    work: Work,
    config: RunConfig,
    options: LaunchOptions,
    *,
    folder: Path | None,
    resumed: Run | None = None,
) -> int:
    """Train with a live view, print the results, and return the exit code.

    Args:
        work: Trains the run.
        config: The run's settings.
        options: How it is shown.
        folder: The run's folder, which the dashboard shows; None if it is chosen later.
        resumed: The run, if it is being resumed.
    """
    with ExitStack() as stack:
        dashboard = None
        if folder is not None and options.dashboard:
            path = folder.absolute()
            companion = companion_dashboard(path.parent, path.name, print_to_stderr)
            dashboard = stack.enter_context(companion)
        try:
            # The view starts first, because loading PyTorch takes seconds.
            with (
                make_view(config, quiet=options.quiet, json=options.json, resumed=resumed) as view,
                handling((early := EarlySignals(view.tell)).handle),
            ):
                try:
                    run = work(view, early.make_stop_request())
                except KeyboardInterrupt:
                    ignore_signals()
                    raise
        except KeyboardInterrupt as interrupted:
            saved: Run | None = getattr(interrupted, "run", None)
            if options.json:
                with suppress(OSError):  # the resume command is printed even if the output is full
                    print_end_event(saved or resumed, state="interrupted")
            _report_interruption(saved, resumed)
            return INTERRUPTED
        except EsperError as error:
            if options.json:
                with suppress(OSError):
                    print_end_event(resumed, state="failed", message=str(error))
            raise

        show_results(run, options)
        if dashboard is not None:
            sys.stdout.flush()
            dashboard.wait(print_to_stderr)
    return 0


def _report_interruption(saved: Run | None, resumed: Run | None) -> None:
    """Print on stderr what was saved and how to resume."""
    run, what = saved or resumed, "interrupted and saved" if saved else "interrupted"
    if run is None:
        print("esper: interrupted before training began; nothing was saved", file=sys.stderr)
    else:
        print(f"esper: {what}; resume with: {run.resume_command}", file=sys.stderr)

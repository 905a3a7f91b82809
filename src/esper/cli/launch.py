"""Running a training job from the command line: signals, live view, results at the end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from esper.cli.interval_plot import plot_differences
from esper.cli.output import json_text, print_columns, print_table, print_wrapped
from esper.cli.views import View, make_view, print_to_stderr
from esper.config.run import RunConfig
from esper.dashboard.companion import Companion, companion_dashboard
from esper.errors import EsperError
from esper.invocation import program
from esper.storage.run_folder import shell_word
from esper.training.comparison import ArmSummary, Comparison, Difference
from esper.training.run import Run
from esper.training.signals import INTERRUPTED, end_at_once, handling, ignore_signals

if TYPE_CHECKING:
    from esper.training.stopping import StopRequest


_HEADINGS = (
    "controller",
    "return [95%]",
    "learned minus this",
    "score",
    "FLOPs",
    "added",
)


def show_results(run: Run, *, quiet: bool = False, as_json: bool = False) -> None:
    """Print the results of a finished run."""
    summary = run.summary
    assert summary is not None, "a finished run has a summary"
    if as_json:
        print_end_event(run, state=run.state)
    elif quiet:
        print(f"{run.path}: {summary.sentences[0]}")
    else:
        print()
        show_comparison(summary)
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
        event["summary"] = run.summary.to_json()
    print(json_text(event), flush=True)


def show_comparison(summary: Comparison, *, verbose: bool = False) -> None:
    """Print the verdict, the differences as a plot, the table and, if ``verbose``, all in words."""
    first, *others = summary.sentences
    print_wrapped(first)
    if others:
        print()
        print_wrapped(others[0])
    print(f"\nReturn on {summary.n_hosts} held-out hosts, learned minus each:\n")
    strongest_first = sorted(summary.differences, key=lambda one: one.ep_rew.mean)
    rows = [(one.against, one.ep_rew, one.ep_rew.excludes_zero) for one in strongest_first]
    print("\n".join(plot_differences(rows, label="{:+.3f}".format)))
    print(f"\nResults on {summary.n_hosts} held-out hosts, {summary.split} split:\n")
    differences = {one.against: one for one in summary.differences}
    print_table([_HEADINGS, *(_row(arm, differences.get(arm.name)) for arm in summary.arms)])
    print()
    print_wrapped(
        "Return is the score minus the cost of FLOPs and added parameters. FLOPs are relative to "
        "the reference run, added parameters to the host. Brackets: 95% confidence intervals."
    )
    if verbose:
        print()
        for sentence in others[1:]:
            print_wrapped(sentence, first="- ", indent="  ")


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
            (f"  {esper} report {run}", "write a report, one HTML page"),
            (f"  {esper} show {run} --verbose", "every comparison in words"),
            (
                f"  {esper} grow --controller {run}{run_done.allow_code_flag}",
                "grow a host with this controller",
            ),
            (f"  {esper} compare {run} shipped", "compare it with the shipped controller"),
            (f"  {esper} train --preset digits-family", "train longer, for a better controller"),
        ]
    )
    shipped = _shipped_sentence(run_done)
    if shipped:
        print()
        print_wrapped(shipped)


def _shipped_sentence(run_done: Run) -> str:
    """Return how the shipped controller differs from that of a run; empty if there is none."""
    from esper.tamiyo import load_shipped

    try:
        shipped = load_shipped()
    except EsperError:
        return ""
    origin, config = shipped.origin, run_done.config
    names = ("task", "rounds", "envs", "n_steps")
    if not all(name in origin for name in names):
        return ""
    n_epochs = origin["rounds"] * origin["envs"] * origin["n_steps"]
    own = run_done.rounds_done * config.envs * config.n_steps
    n_lessons = origin.get("lesson_hosts", 0) * origin.get("lesson_schedules", 0)
    lessons = f"{n_lessons:,} trainings and " if n_lessons else ""
    return (
        f"This controller learned from {own:,} epochs of networks, all of {config.task}. Without "
        f"--controller, Esper uses {shipped.label}, which learned from {lessons}{n_epochs:,} "
        f"{'more ' if lessons else ''}epochs of networks of {origin['task']}."
    )


def _row(arm: ArmSummary, difference: Difference | None) -> tuple[str, ...]:
    return (
        arm.name,
        arm.ep_rew.text(signed=False),
        "" if difference is None else difference.ep_rew.text(),
        f"{arm.score.mean:.3f}",
        f"{arm.flops:.2f}",
        f"{arm.seed_parameters / max(arm.host_parameters, 1):.0%}",
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
        """Return a stop request that later signals trigger.

        Raises:
            KeyboardInterrupt: If a signal has already arrived.
        """
        from esper.training.stopping import StopRequest

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


@contextmanager
def early_signals(tell: Callable[[str], None]) -> Generator[EarlySignals]:
    """Defer signals within the context; do nothing outside the main thread.

    Args:
        tell: Shows a message about a received signal to the user.
    """
    early = EarlySignals(tell)
    with handling(early.handle):
        yield early


Work = Callable[[View, "StopRequest"], Run]
"""Trains a run, given a view that shows its progress and a request that may stop it."""


def run_with_view(
    work: Work,
    config: RunConfig,
    *,
    resumed: Run | None = None,
    served: Path | None = None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Train with a live view, print the results, and return the exit code.

    Args:
        work: Trains the run.
        config: The run's settings.
        resumed: The run, if it is being resumed.
        served: Folder of the run, to show it in the dashboard until Ctrl-C; None for no dashboard.
        quiet: Print only one line at the end.
        as_json: Print one JSON object per line.
    """
    with ExitStack() as stack:
        dashboard = None if served is None else stack.enter_context(_serve(served))
        try:
            # The view starts first, because loading PyTorch takes seconds.
            with (
                make_view(config, quiet=quiet, json=as_json, resumed=resumed) as view,
                early_signals(view.tell) as early,
            ):
                try:
                    run = work(view, early.make_stop_request())
                except KeyboardInterrupt:
                    ignore_signals()
                    raise
        except KeyboardInterrupt as interrupted:
            saved: Run | None = getattr(interrupted, "run", None)
            if as_json:
                with suppress(OSError):  # the resume command is printed even if the output is full
                    print_end_event(saved or resumed, state="interrupted")
            _report_interruption(saved, resumed)
            return INTERRUPTED
        except EsperError as error:
            if as_json:
                with suppress(OSError):
                    print_end_event(resumed, state="failed", message=str(error))
            raise

        show_results(run, quiet=quiet, as_json=as_json)
        if dashboard is not None:
            sys.stdout.flush()
            dashboard.wait(print_to_stderr)
    return 0


def _serve(run_path: Path) -> AbstractContextManager[Companion]:
    """Return a dashboard of the folder that a run is in, whose link opens the run."""
    path = run_path.absolute()
    return companion_dashboard(path.parent, path.name, print_to_stderr)


def _report_interruption(saved: Run | None, resumed: Run | None) -> None:
    """Print on stderr what was saved and how to resume."""
    run, what = saved or resumed, "interrupted and saved" if saved else "interrupted"
    if run is None:
        print("esper: interrupted before training began; nothing was saved", file=sys.stderr)
    else:
        print(f"esper: {what}; resume with: {run.resume_command}", file=sys.stderr)

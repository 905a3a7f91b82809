"""What is said when a run ends: how its controller did beside others, and what to try next."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from esper.cli.output import json_text, print_columns, print_wrapped
from esper.cli.progress import View, make_view, tell_on_stderr
from esper.config.run import RunConfig
from esper.dashboard.companion import dashboard_beside
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
    "return [95 %]",
    "learned minus it",
    "score",
    "FLOPs",
    "added",
)


def show_end(run: Run, *, quiet: bool = False, as_json: bool = False) -> None:
    """Print what a run that is done came to."""
    summary = run.summary
    assert summary is not None, "a run that is done has a summary"
    if as_json:
        print_end_event(run, state=run.state)
    elif quiet:
        print(f"{run.path}: {summary.sentences[0]}")
    else:
        print()
        show_comparison(summary)
        print()
        show_next_steps(run.path)


def print_end_event(run: Run | None, *, state: str, message: str | None = None) -> None:
    """Print as JSON in a line that a process has ended its work on a run.

    Args:
        run: The run; None if there is none.
        state: Done, interrupted or failed.
        message: What went wrong.
    """
    event: dict[str, Any] = {"event": "end", "state": state, "message": message}
    event |= dict.fromkeys(("run", "round", "rounds", "summary"))
    if run is not None:
        event |= {"run": str(run.path), "round": run.rounds_done, "rounds": run.config.rounds}
    if run is not None and state == "done" and run.summary is not None:
        event["summary"] = run.summary.to_json()
    print(json_text(event), flush=True)


def show_comparison(summary: Comparison) -> None:
    """Print the table of controllers and what it supports."""
    print(f"On the same {summary.n_hosts} held-out hosts, scored on the {summary.split} split:\n")
    differences = {one.against: one for one in summary.differences}
    print_columns([_HEADINGS, *(_row(arm, differences.get(arm.name)) for arm in summary.arms)])
    print()
    print_wrapped(
        "Return is the score minus what computing and added parameters cost; FLOPs are a share of "
        "a reference run's, added parameters a share of the host's. In brackets: where the mean "
        "lies with 95 % confidence."
    )
    print()
    for sentence in summary.sentences:
        print_wrapped(sentence, first="- ", indent="  ")


def show_next_steps(path: Path) -> None:
    """Print commands that can follow."""
    esper, run = program(), shell_word(path)
    print("Next:")
    print_columns(
        [
            (f"  {esper} show {run}", "this again, and how the run went"),
            (f"  {esper} grow --controller {run}", "grow one host with it and keep it"),
            (f"  {esper} export-telemetry {run} --csv", "all that happened, as tables"),
            (f"  {esper} train --preset digits-family", "a longer run, for a better controller"),
        ]
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
    """Remembers a signal until there is something that it can stop.

    An exception in the middle of importing a compiled package would leave it half made, and what
    is said of that is of no use to anybody. A second signal ends the process at once: there is
    nothing yet that could be lost.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._received: str | None = None
        self._stop: StopRequest | None = None

    def make_stop_request(self) -> StopRequest:
        """Return a request to stop, which later signals make.

        Raises:
            KeyboardInterrupt: If there was a signal already.
        """
        from esper.training.stopping import StopRequest

        self._stop = StopRequest(tell=self._tell)
        if self._received is not None:
            raise KeyboardInterrupt
        return self._stop

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Remember a signal, or ask for a stop."""
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
    """Hold signals back while the context lasts; in another thread than the main one, do nothing.

    Args:
        tell: Says to whoever sends a signal what it does.
    """
    early = EarlySignals(tell)
    with handling(early.handle):
        yield early


Work = Callable[[View, "StopRequest"], Run]
"""Works on a run: takes the view on it and the request that may stop it."""


def follow(
    work: Work,
    config: RunConfig,
    *,
    begun: Run | None = None,
    served: Path | None = None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Do the work with a view on it, say what came of it, and return the exit code.

    Args:
        work: Works on the run.
        config: The run's settings.
        begun: The run, if there is one already.
        served: The folder of runs that a dashboard shows meanwhile; None for no dashboard.
        quiet: Say one line in the end.
        as_json: Print a JSON object in each line.
    """
    try:
        # The view comes first: loading PyTorch takes seconds in which nothing would be seen.
        with (
            nullcontext() if served is None else dashboard_beside(served, tell_on_stderr),
            make_view(config, quiet=quiet, json=as_json, begun=begun) as view,
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
            with suppress(OSError):  # the way to go on is told where the output is full, too
                print_end_event(saved or begun, state="interrupted")
        _tell_interrupted(saved, begun)
        return INTERRUPTED
    except EsperError as error:
        if as_json:
            with suppress(OSError):
                print_end_event(begun, state="failed", message=str(error))
        raise

    show_end(run, quiet=quiet, as_json=as_json)
    return 0


def _tell_interrupted(saved: Run | None, begun: Run | None) -> None:
    """Say on stderr what is left of the run, and how to go on."""
    esper = program()
    if saved is not None:
        told = f"interrupted and saved; go on with: {esper} resume {shell_word(saved.path)}"
    elif begun is not None:
        told = f"interrupted; the run is as it was: {esper} resume {shell_word(begun.path)}"
    else:
        told = "interrupted before training began; nothing was saved"
    print(f"esper: {told}", file=sys.stderr)
